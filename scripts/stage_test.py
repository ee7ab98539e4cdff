#!/usr/bin/env python3
"""Measures Thresher end to end beside stock PyTorch and judges the result; see --help and docs/stage_test.md."""

from __future__ import annotations

import sys

# The package of the same name beside this file.
from stage_test.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
