"""torch.logcumsumexp in Thresher: models that use it need not import this."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("scans.so")
