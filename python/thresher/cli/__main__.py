"""``python -m thresher.cli`` is the same as ``thresher``."""

from thresher.cli import main

main()
