"""Runs a fuzz target of tests/fuzz/python under atheris, or once for each file that is named.

    python tests/fuzz/run_python.py chrome_trace build/fuzz/corpus/chrome_trace -max_total_time=60
    python tests/fuzz/run_python.py chrome_trace build/fuzz/findings/chrome_trace/crash-0123

Options are libFuzzer's. Memory beyond what the target starts with is limited, so that a parser which allocates without
bounds fails with a MemoryError instead of taking the machine's.
"""

from __future__ import annotations

import resource
import sys
import warnings
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fuzz_targets

MOST_MIB = 1024


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MOST_MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    name = sys.argv[1]
    with atheris.instrument_imports(include=["thresher"]):
        # The target's own branches lead to the inputs, too; for what is planted they are all there is.
        run = atheris.instrument_func(fuzz_targets.load(name))
        run(b"")  # parsers import parts of themselves when they are first used
    warnings.simplefilter("ignore")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    limit_memory()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
