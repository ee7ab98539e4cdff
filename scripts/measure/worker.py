"""The driver's half of the protocol: a long-lived process that does one thing at a time when told to."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TAIL_LINES = 25
LOOK_S = 0.001  # between two looks at a worker's threads
LOOKS = 3  # that must find all of them asleep
REST_LIMIT_S = 1.0


class WorkerError(RuntimeError):
    """A worker died, hung or reported an error; the message holds what it last wrote to its standard error."""


def clean_environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a worker: the caller's, without what could leak one installation into another.

    Of Thresher's own variables only THRESHER_ISA passes, so that a slower instruction set can be measured on purpose.

    Args:
      threads: number of threads, set for every library that reads a variable for it.
      extra: variables of this worker alone; they win.
    """
    drop = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
    ours = {k for k in os.environ if k.startswith(("THRESHER_", "TORCH_LOGS"))} - {"THRESHER_ISA"}
    kept = {k: v for k, v in os.environ.items() if k not in drop and k not in ours}
    fixed = {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**kept, **fixed, **extra}


def runs(process: int) -> bool:
    """Whether a thread of a process runs, or waits for a core to run on; of a process that has ended none does."""
    for status in Path(f"/proc/{process}/task").glob("*/stat"):
        try:
            # The name before the state is in brackets, and may hold some itself.
            state = status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue  # the thread ended
        if state == "R":
            return True
    return False


class Worker:
    """One process under control. Use it as a context manager, so that the process never outlives the driver."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Starts the process.

        Args:
          name: for messages.
          command: program and arguments; the program must speak the protocol of `service`.
          environment: all of its environment variables.
          log: file that receives its standard error.

        Raises:
          WorkerError: the program cannot be started.
        """
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environment),
                    cwd=log.parent,
                    text=True,
                    encoding="utf-8",
                )
        except OSError as error:
            raise WorkerError(
                f"{name}: cannot start {command[0]}: {error.strerror}; give the python of an existing environment"
            ) from error
        # A thread reads the replies, because a pipe has no portable read with a time limit.
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put(None)

    def tail(self) -> str:
        """The last lines of the worker's standard error, indented; a remark where there are none."""
        try:
            with self._log.open(encoding="utf-8", errors="replace") as file:
                lines = deque(file, maxlen=TAIL_LINES)
        except OSError:
            lines = deque()
        if not lines:
            return "  (it wrote nothing to standard error)"
        return "\n".join("  | " + line.rstrip() for line in lines)

    def call(self, do: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Sends one command and waits for its result, and then until the process rests.

        Threads of some libraries spin for up to a tenth of a second after their work, and would have a core of whoever
        is called next. Those that spin for longer than REST_LIMIT_S are not waited for.

        Raises:
          WorkerError: the process ended, did not answer within `timeout_s` seconds, or reported an error.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise WorkerError(
                f"{self.name}: no answer to '{do}' within {timeout_s:g} s, stopped it; standard error ends with\n"
                f"{self.tail()}"
            ) from None
        except OSError:
            line = None
        if line is None:
            code = self._process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise WorkerError(
                f"{self.name}: the process {how} while it did '{do}'; its standard error ({self._log}) ends with\n"
                f"{self.tail()}"
            )
        reply = json.loads(line)
        if not reply["ok"]:
            trace = "\n".join("  | " + part for part in reply["traceback"].rstrip().splitlines()[-TAIL_LINES:])
            raise WorkerError(f"{self.name}: '{do}' failed: {reply['error']}\n{trace}")
        self._rest()
        result: dict[str, Any] = reply["result"]
        return result

    def _rest(self) -> None:
        end = time.monotonic() + REST_LIMIT_S
        quiet = 0
        while quiet < LOOKS and time.monotonic() < end:
            time.sleep(LOOK_S)
            quiet = 0 if runs(self._process.pid) else quiet + 1

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Asks the process to end, and ends it if it does not within ten seconds."""
        if self._process.poll() is None:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write('{"do": "quit"}\n')
                self._process.stdin.close()
                self._process.wait(timeout=10)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                pass
        self.kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
