"""The processes behind a router: started on cores of their own, watched, and started again."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thresher.machine import core_slices
from thresher.serve.prefixes import Prefixes
from thresher.serve.served_model import ServedModel

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before a process is started again
_STEADY_S = 60.0  # one that has lived so long begins with the first pause again
_END_S = 10.0  # that processes have to end in


class WorkerError(RuntimeError):
    """A process ended before it served."""


class Worker:
    """One process.

    Attributes:
      number: counted from 0.
      cpus: that it may use, by the system's numbers.
      socket: where it listens.
      up: it listens.
      answering: it said lately that it is well.
      open: requests that it has.
      asked: how many it was given.
      starts: how often it was started.
      seen: what requests began with that went there.
    """

    def __init__(self, number: int, cpus: Sequence[int], socket: Path, order: Mapping[str, Any]) -> None:
        self.number, self.cpus, self.socket = number, tuple(cpus), socket
        self.up = False
        self.answering = True
        self.open = self.asked = 0
        self.starts = 0
        self.seen = Prefixes()
        self._order = json.dumps({**order, "socket": str(socket)}).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._settled = threading.Event()  # it listens for the first time, or never will
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"thresher-worker-{number}", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process, and again whenever it ends."""
        self._thread.start()

    def wait_ready(self) -> None:
        """Waits until the process listens.

        Raises:
          WorkerError: it has ended instead.
        """
        self._settled.wait()
        if not self.up and not self._ending.is_set():
            raise WorkerError(f"expected process {self.number} to serve, got its end; its own message says why")

    def stop(self) -> None:
        """Lets it end: what it still has is answered with 503."""
        self._ending.set()
        if self._process is not None:
            self._process.terminate()

    def join(self, timeout_s: float) -> None:
        """Waits for its end, then kills it."""
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()

    def _watch(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ending.is_set():
            began = time.monotonic()
            status = self._run_once()
            served = self._settled.is_set()
            self._settled.set()
            if self._ending.is_set() or not served:
                return
            _log.error("process %d ended with %s and is started again", self.number, status)
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began > _STEADY_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._ending.wait(pause_s)

    def _run_once(self) -> int:
        """Starts the process, and gives its exit status."""
        self.socket.unlink(missing_ok=True)
        self.starts += 1
        self.seen = Prefixes()
        os.sched_setaffinity(0, self.cpus)  # of this thread; the process inherits it
        command = [sys.executable, "-m", "thresher.serve.worker"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            self._process = process
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(self._order)
                process.stdin.flush()
            except BrokenPipeError:
                return process.wait()
            if self._ending.is_set():
                process.terminate()
            if process.stdout.readline() == b"ready\n":
                self.up = self.answering = True
                self._settled.set()
            status = process.wait()
            self.up = False
            return status


@dataclasses.dataclass(frozen=True, slots=True)
class Workers:
    """Several processes that serve the same model.

    Attributes:
      all: the processes.
    """

    all: tuple[Worker, ...]

    @staticmethod
    def of(model: ServedModel, count: int, folder: Path, *, max_body_bytes: int) -> Workers:
        """Prepares processes, each for a share of the cores that lie beside each other.

        Args:
          model: what each serves.
          count: how many.
          folder: for their sockets; nobody else may read it.
          max_body_bytes: of a request.

        Raises:
          ValueError: there are fewer cores than processes.
        """
        order = {"model": dataclasses.asdict(model), "max_body_bytes": max_body_bytes}
        slices = core_slices(count)
        return Workers(
            tuple(Worker(number, cpus, folder / f"{number}.sock", order) for number, cpus in enumerate(slices))
        )

    def start(self) -> None:
        """Starts all and waits until they listen.

        Raises:
          WorkerError: one has ended; the others are ended, too.
        """
        for worker in self.all:
            worker.start()
        try:
            for worker in self.all:
                worker.wait_ready()
        except BaseException:
            self.stop()
            self.join()
            raise

    def stop(self) -> None:
        """Lets all end."""
        for worker in self.all:
            worker.stop()

    def join(self) -> None:
        """Waits for the end of all."""
        end = time.monotonic() + _END_S
        for worker in self.all:
            worker.join(max(0.1, end - time.monotonic()))
