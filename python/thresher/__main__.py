"""``python -m thresher`` is the same as ``thresher``."""

from thresher.cli import main

main()
