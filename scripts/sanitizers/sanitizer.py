"""What each sanitizer needs to be built with, to be run with and to be believed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.layout import ROOT
from toolchain.native import PROFILES, Flavour
from toolchain.process import ToolchainError, output

SUPPRESSIONS = ROOT / "tests" / "sanitizers"
# The run-time library of GCC 12 knows where things lie only up to this much randomisation of addresses.
MOST_RANDOM_BITS = 28


@dataclass(frozen=True)
class Sanitizer:
    """One sanitizer of the compiler.

    Attributes:
        name: what `nox -s sanitize` takes; also the Conan profile.
        library: the run-time library as the compiler calls it.
        variable: the environment variable of its run-time options.
        options: those options.
        suppressions: files of tests/sanitizers by the variable that takes them; each entry there has its reason.
        symbol: what objects built with it refer to.
        planted: fault of tests/sanitizers/planted_faults.cc -> what the report of it must say.
        emulator: whether it bears the emulated device, which jumps between stacks.
        left_out: marks of the Python tests that it does not bear.
    """

    name: str
    library: str
    variable: str
    options: Mapping[str, str | int]
    suppressions: Mapping[str, str]
    symbol: str
    planted: Mapping[str, str]
    emulator: bool = True
    left_out: tuple[str, ...] = ()

    @property
    def flavour(self) -> Flavour:
        """How it is built."""
        return Flavour(self.name, PROFILES[self.name])

    def environment(self, log: Path | None = None) -> dict[str, str]:
        """Returns the variables to run a program with.

        Args:
            log: reports go to files of this name with the process id behind it, and leaks alone do not change the exit
                code: the reader of the reports judges them. None: to the terminal, and every report is fatal.
        """
        found = {variable: f"suppressions={SUPPRESSIONS / file}" for variable, file in self.suppressions.items()}
        options = dict(self.options)
        if log:
            # Other errors still end the process: abort is no exit code.
            options |= {"log_path": str(log), "exitcode": 0, "abort_on_error": 1}
        own = ":".join(f"{key}={value}" for key, value in options.items())
        found[self.variable] = f"{own}:{found[self.variable]}" if self.variable in found else own
        return found

    def preload(self) -> dict[str, str]:
        """Returns the variable that puts the run-time library in front of a Python that was built without it.

        libstdc++ has to be there, too: it is where the library finds the functions that throw.

        Raises:
            ToolchainError: the compiler has no such library.
        """
        compiler = os.environ.get("CXX", "g++")
        paths = []
        for name in (f"lib{self.library}.so", "libstdc++.so"):
            path = output([compiler, f"-print-file-name={name}"]) or name
            if not Path(path).is_absolute() or not Path(path).is_file():
                raise ToolchainError(
                    f"Expected {name} of {compiler}, to load it into Python; got none. Install the compiler's "
                    "sanitizer libraries (with Debian's g++ they come along), or set CXX to another GCC."
                )
            paths.append(str(Path(path).resolve()))
        return {"LD_PRELOAD": ":".join(paths)}

    def is_in(self, binary: Path) -> bool:
        """Says whether a library or program was built with the sanitizer."""
        return self.symbol.encode() in binary.read_bytes()


ADDRESS = Sanitizer(
    "address",
    library="asan",
    variable="ASAN_OPTIONS",
    options={
        "detect_leaks": 1,
        "strict_string_checks": 1,
        "detect_stack_use_after_return": 1,
        "check_initialization_order": 1,
        "malloc_context_size": 40,
        "allocator_may_return_null": 1,  # as the C library does: tests ask for more than there is
    },
    suppressions={},
    symbol="__asan_report_load",
    planted={
        "leak": r"Direct leak of 64 byte",
        "overflow": r"AddressSanitizer: heap-buffer-overflow",
        "stack_overflow": r"AddressSanitizer: stack-buffer-overflow",
        "use_after_free": r"AddressSanitizer: heap-use-after-free",
    },
)
THREAD = Sanitizer(
    "thread",
    library="tsan",
    variable="TSAN_OPTIONS",
    options={"halt_on_error": 0, "second_deadlock_stack": 1, "history_size": 5, "allocator_may_return_null": 1},
    suppressions={"TSAN_OPTIONS": "thread.supp"},
    symbol="__tsan_read",
    planted={
        "race": r"ThreadSanitizer: data race",
        "deadlock": r"ThreadSanitizer: lock-order-inversion",
    },
    # It would need to be told of every jump, a test takes minutes, and a block's threads are one thread there.
    emulator=False,
    # The forked child is ended when it starts a thread; told not to (die_after_fork), the library fails in it.
    left_out=("threads_after_fork",),
)
UNDEFINED = Sanitizer(
    "undefined",
    library="ubsan",
    variable="UBSAN_OPTIONS",
    options={"print_stacktrace": 1, "halt_on_error": 1},
    suppressions={},
    symbol="__ubsan_handle",
    planted={
        "signed_overflow": r"runtime error: signed integer overflow",
        "misaligned": r"runtime error: load of misaligned address",
        "shift": r"runtime error: shift exponent",
        "null": r"runtime error: .*null pointer",
    },
)
SANITIZERS = {sanitizer.name: sanitizer for sanitizer in (ADDRESS, THREAD, UNDEFINED)}


def launcher() -> list[str]:
    """Returns what stands before a command where addresses are more random than ThreadSanitizer's map allows."""
    try:
        bits = int(Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    except (OSError, ValueError):
        return []
    return ["setarch", "--addr-no-randomize"] if bits > MOST_RANDOM_BITS else []
