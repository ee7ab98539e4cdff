"""`python -m release`, with scripts/ on the path: the checks without nox and its lock on build/."""

from __future__ import annotations

import argparse
import sys

from toolchain.process import ToolchainError

from .session import add_options, carry_out_session

parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
add_options(parser)
try:
    carry_out_session(parser.parse_args())
except ToolchainError as error:
    sys.exit(str(error))
