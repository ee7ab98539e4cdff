"""Connects the engine with PyTorch's profiler, once per process."""

from __future__ import annotations

import atexit
import dataclasses
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C._autograd import _disable_profiler, _profiler_enabled
from torch._C._profiler import _RecordFunctionFast
from torch.utils.backend_registration import rename_privateuse1_backend

from thresher import _engine
from thresher.fork_lock import ForkLock
from thresher.profiler import hooks
from thresher.torch_shim import device, library, merge
from thresher.torch_shim.library import ShimError

BACKEND = "thresher"
PTI_VERSION = 1
UNNAMED_BACKEND = "privateuseone"  # PyTorch's own name for the slot, while no backend has taken it


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether the engine's rows appear in PyTorch's profiler.

    Attributes:
        connected: they do; else they are added to the files that `export_chrome_trace` writes.
        reason: why not; empty if they do.
        torch: version of PyTorch.
        shims: minor versions of PyTorch that this installation can connect to.
    """

    connected: bool
    reason: str
    torch: str
    shims: tuple[str, ...]


_lock = ForkLock()
_status: list[Status] = []


def connect() -> None:
    """Names PyTorch's backend, loads the shim and registers it. Later calls do nothing.

    Where that is impossible, a RuntimeWarning says why, and the engine's events go into exported traces instead.
    """
    with _lock:
        if _status:
            return
        reason = ""
        try:
            _connect()
        except ShimError as error:
            reason = str(error)
            merge.install()
        _status.append(Status(not reason, reason, torch.__version__, tuple(library.available())))
    if reason:
        warnings.warn(
            f"PyTorch's profiler does not show the engine: {reason}. Until then its events are added to the traces "
            "that export_chrome_trace writes.",
            RuntimeWarning,
            stacklevel=3,
        )


def _connect() -> None:
    shim = library.load(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    owner = torch._C._get_privateuse1_backend_name()
    if owner not in (UNNAMED_BACKEND, BACKEND):
        raise ShimError(
            f"expected PyTorch's slot for further backends (PrivateUse1), got it taken by {owner!r}. Profile without "
            "importing that package"
        )
    if torch.accelerator.is_available():
        # A named backend takes precedence over it, and autograd would no longer follow its streams.
        raise ShimError(
            f"expected a process without other accelerators, got {torch.accelerator.current_accelerator()}: PyTorch "
            "serves one at a time. Hide it (CUDA_VISIBLE_DEVICES= for CUDA)"
        )
    try:
        shim.install(_engine.pti_api(PTI_VERSION))
    except RuntimeError as error:
        raise ShimError(f"expected to register with PyTorch's profiler; {error}") from error
    if owner == UNNAMED_BACKEND:
        rename_privateuse1_backend(BACKEND)
    if not hasattr(torch, BACKEND):
        torch._register_device_module(BACKEND, device)  # type: ignore[no-untyped-call]
    hooks.set_call_range(_call_range)
    atexit.register(_end_session)


def _end_session() -> None:
    """Ends a session that still runs when the process ends: it would outlive the engine, and PyTorch would crash."""
    shim = library.loaded()
    if shim is not None and shim.is_recording():
        if _profiler_enabled():
            _disable_profiler()
        shim.stop_recording()


def _call_range(name: str, arguments: Sequence[Any]) -> AbstractContextManager[object]:
    """An operator of PyTorch around one call of a compiled graph: what the kernels of the call belong to."""
    shim = library.loaded()
    if shim is None or not shim.is_recording():
        return nullcontext()
    # Parameters have a class of their own; with hundreds of them, shapes of inputs would say nothing.
    return _RecordFunctionFast(f"thresher::{name}", tuple(a for a in arguments if type(a) is torch.Tensor))


def status() -> Status:
    """Whether the engine is connected with PyTorch's profiler, and if not, why."""
    connect()
    return _status[0]


def profile(**arguments: Any) -> torch.profiler.profile:
    """`torch.profiler.profile` with the engine among its activities.

    Args:
        **arguments: those of `torch.profiler.profile`; `activities` defaults to the CPU and the engine.
    """
    if "activities" not in arguments:
        wanted = [torch.profiler.ProfilerActivity.CPU]
        if status().connected:
            wanted.append(torch.profiler.ProfilerActivity.PrivateUse1)
        arguments["activities"] = wanted
    return torch.profiler.profile(**arguments)
