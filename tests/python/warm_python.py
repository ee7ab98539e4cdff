"""Python processes with PyTorch and TorchDynamo imported, or what commands import: forks of one that did nothing else.

The imports of PyTorch take five seconds of processor time, most of what a test spends that compiles one small model in
a process of its own; the others most of the half second of a command. The process that is forked has neither imported
thresher nor started a thread nor computed anything, so its children differ from fresh ones in one thing: variables
that are read while Python or these libraries start come too late.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

PYTORCH = "torch, torch._dynamo.backends.debugging, torch._functorch.aot_autograd, torch.profiler"
COMMAND_LINE = "asyncio, numpy, pydantic.type_adapter, rich.console, rich.table, typer"
# Leaving the loop is being the child: it ends as any interpreter does, and what it raises goes to its standard error.
SERVER = """
import json, os, sys, types
requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")

def say(reply):
    print(json.dumps(reply), file=replies, flush=True)

def child():
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the child"
        pid = os.fork()
        if pid == 0:
            return request
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    sys.exit()

request = child()
for descriptor, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
    os.dup2(os.open(name, os.O_WRONLY if descriptor else os.O_RDONLY), descriptor)
os.close(requests.fileno())
os.close(replies.fileno())
os.chdir(request["folder"])
os.environ.clear()
os.environ.update(request["environment"])
sys.argv[1:] = request["arguments"]
sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(request["code"], "<string>", "exec"), sys.modules["__main__"].__dict__)
"""
# Read before main(), or by libraries as they are loaded.
READ_AT_THE_START = (
    *("PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "PYTORCH", "ASAN_", "TSAN_", "UBSAN_"),
    *("FORCE_COLOR", "PY_COLORS", "TERMINAL_WIDTH", "TYPER_", "_TYPER_"),
)


def is_watched() -> bool:
    """Whether a sanitizer or the counters of lines are in each process: they do not all bear a fork."""
    return "LD_PRELOAD" in os.environ or any(name.startswith("COVERAGE_") for name in os.environ)


@cache
def _server(modules: str) -> subprocess.Popen[bytes]:
    """Starts the process that is forked; it ends with this one, which holds the other end of its input."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import {modules}\n{SERVER}"],
        # numpy's OpenBLAS starts threads as it is loaded.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )


def _reply(server: subprocess.Popen[bytes], timeout: float | None) -> int:
    output = server.stdout
    assert output is not None
    if not select.select([output], [], [], timeout)[0]:
        raise TimeoutError
    line = output.readline()
    assert line, "the process that is forked has ended"
    return int(line)


def run_warm(
    code: str,
    *arguments: str,
    environment: dict[str, str],
    timeout: float,
    folder: Path | None = None,
    modules: str = PYTORCH,
) -> subprocess.CompletedProcess[str]:
    """Runs code as `python -c` would, in a process that has imported modules; standard output and error are kept.

    Args:
        code: what to run.
        arguments: sys.argv after the first.
        environment: all variables; those that are read at the start of a process are as they are here.
        timeout: seconds after which the process is killed.
        folder: where it runs; default: here.
        modules: what is imported already.
    """
    late = {**os.environ, **environment}
    for name, value in late.items():
        if name.startswith(READ_AT_THE_START) and os.environ.get(name) != value:
            raise ValueError(
                f"{name} is read before the code runs; this test needs a process of its own from the start"
            )
    command = [sys.executable, "-c", code, *arguments]
    if is_watched():
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryDirectory() as output:
        stdout, stderr = Path(output, "stdout"), Path(output, "stderr")
        stdout.touch()
        stderr.touch()
        request = {
            "code": code,
            "arguments": arguments,
            "environment": environment,
            "folder": str(folder or Path.cwd()),
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        server = _server(modules)
        assert server.stdin is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        pid = _reply(server, None)
        try:
            code_of_exit = _reply(server, timeout)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            _reply(server, None)
            raise subprocess.TimeoutExpired(command, timeout) from None
        return subprocess.CompletedProcess(command, code_of_exit, stdout.read_text(), stderr.read_text())
