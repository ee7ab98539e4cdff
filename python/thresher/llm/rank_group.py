"""The processes that run one model together, as MPI has started them."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import time
from typing import Any, NoReturn

from thresher import _engine
from thresher.machine import core_slices

_TAG = 1  # of what rank 0 tells the others
_EAGER_S = 0.005  # for so long a rank that has nothing to do asks for more without a pause
_PAUSE_S = 0.0005  # then it asks so often
_EVENTS = {str(event["name"]): int(str(event["number"])) for event in _engine.profile_events()}
_AGREED, _TOLD = _EVENTS["thresherBarrier1"], _EVENTS["thresherPrepareAndSyncRemote"]
_SITE = _engine.profile_site("ranks")
_ADVICE = "start it by mpirun -n 2 (or more), with as many ranks as share the model"


class RankError(RuntimeError):
    """Another rank could not do its part."""


class RankGroup:
    """Processes of which each computes its share of every layer (tensor parallel).

    Rank 0 is who is asked, and tells the others; they follow it until it ends. One that fails ends all.

    Attributes:
      rank: of this process, from 0.
      size: how many there are.
      device: the CPU of this rank, for plans.
    """

    def __init__(self) -> None:
        """Joins the processes of this mpirun.

        Those on one machine share its cores: each keeps to its part of them, unless mpirun has bound it to some. So it
        has to be called before the engine begins to compute.

        Raises:
          ModuleNotFoundError: mpi4py is not installed (the extra `mpi`).
          RuntimeError: there is no MPI library, or it allows for calls of one thread alone.
        """
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError("expected an MPI library for several threads, got one that was initialised for one")
        self._group = MPI.COMM_WORLD.Dup()
        self._group.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self._group.rank, self._group.size
        self._share_cores(MPI)
        library = ctypes.CDLL(MPI.__file__)  # whose symbols are those of the MPI library that it has loaded
        self.device = _engine.Device.of_rank(
            self.rank,
            self.size,
            all_reduce=_address(library.MPI_Allreduce),
            all_gather=_address(library.MPI_Allgather),
            type=MPI._handleof(MPI.FLOAT),
            sum=MPI._handleof(MPI.SUM),
            group=MPI._handleof(self._group),
        )
        _engine.profile_rank(self.rank, self.size)
        if self.rank:
            # What ends rank 0 ends the others, in its own time.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            atexit.register(self.end)

    def tell(self, what: Any) -> None:
        """Says something to all other ranks, by rank 0."""
        start_ns = _engine.profile_now_ns() if _engine.profile_enabled() else 0
        for rank in range(1, self.size):
            self._group.send(what, rank, _TAG)
        if start_ns:
            _engine.profile_event(_TOLD, _SITE, start_ns)

    def end(self) -> None:
        """Lets the other ranks end what they follow."""
        self.tell(None)

    def listen(self) -> Any:
        """What rank 0 tells next; None: the end. Waits without a core of its own once nothing has come for a while."""
        since = time.monotonic()
        while not self._group.Iprobe(0, _TAG):
            if time.monotonic() - since > _EAGER_S:
                time.sleep(_PAUSE_S)
        return self._group.recv(source=0, tag=_TAG)

    def agree(self, error: Exception | None) -> None:
        """Every rank says whether it can go on.

        Args:
          error: why this one cannot.

        Raises:
          Exception: this one's own.
          RankError: another's.
        """
        start_ns = _engine.profile_now_ns() if _engine.profile_enabled() else 0
        found = self._group.allgather(None if error is None else str(error))
        if start_ns:
            _engine.profile_event(_AGREED, _SITE, start_ns)
        if error is not None:
            raise error
        for rank, message in enumerate(found):
            if message is not None:
                raise RankError(f"rank {rank}: {message}")

    def abort(self, error: BaseException) -> NoReturn:
        """Ends all ranks: one that has left a step halfway would keep the others waiting for ever."""
        print(f"thresher: rank {self.rank} of {self.size} failed, and all end with it: {error!r}", file=sys.stderr)
        sys.stderr.flush()
        self._group.Abort(1)
        raise SystemExit(1)

    def _share_cores(self, mpi: Any) -> None:
        here = self._group.Split_type(mpi.COMM_TYPE_SHARED)
        try:
            allowed = here.allgather(sorted(os.sched_getaffinity(0)))
            if here.size == 1 or any(cpus != allowed[0] for cpus in allowed):
                return
            cores = len(_engine.topology()["cores"])
            if cores < here.size:
                raise RuntimeError(
                    f"expected at most {cores} ranks on this machine, as many as there are cores, got {here.size}"
                )
            os.sched_setaffinity(0, core_slices(here.size)[here.rank])
        finally:
            here.Free()


def started_ranks() -> RankGroup:
    """The ranks of this mpirun, which are at least two.

    Raises:
      ValueError: this process runs alone.
      ModuleNotFoundError, RuntimeError: as RankGroup says.
    """
    group = RankGroup()
    if group.size < 2:
        raise ValueError(f"expected several ranks, got one; {_ADVICE}")
    return group


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found
