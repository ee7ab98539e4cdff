"""Where models can run."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from typing import Any

from thresher.machine import device_choices

_MISSING = "the kernels for NVIDIA GPUs are not installed; pip install thresher-cuda, of the version of thresher"


@dataclasses.dataclass(frozen=True)
class Backend:
    """A kind of device, by name.

        >>> thresher.Backend("cpu").available()
        True

    Attributes:
      name: "cpu" or "cuda".

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _OBSTACLES:
            raise ValueError(f"backend: expected one of {', '.join(_OBSTACLES)}, got {self.name!r}")

    def available(self) -> bool:
        """Whether kernels can run there now, with what is installed on this machine."""
        return self.obstacle() is None

    def obstacle(self) -> str | None:
        """What stands in the way, or None."""
        return _OBSTACLES[self.name]()


def _cpu() -> str | None:
    try:
        from thresher import _engine

        _engine.initialize()
    except ImportError as error:
        return f"the engine cannot be loaded: {error}; see `thresher doctor`"
    except ValueError as error:
        return str(error)  # a THRESHER_* variable
    return None


def _cuda() -> str | None:
    try:
        path = cuda_library()
        if path is None:
            return _MISSING
        from thresher import _engine

        _engine.library_devices(path)
    except (FileNotFoundError, ImportError, ValueError, NotImplementedError, RuntimeError) as error:
        return str(error)
    return None


def cuda_library() -> str | None:
    """Where the package thresher-cuda keeps its library; None where it is not installed.

    Raises:
      FileNotFoundError: the package is not whole.
    """
    try:
        package: Any = importlib.import_module("thresher_cuda")
    except ModuleNotFoundError:
        return None
    return str(package.library_path())


_opened: dict[tuple[str, int, int], Any] = {}


def open_device(name: str, index: int) -> Any:
    """The device of a backend that all models of this process share.

    Args:
      name: "cuda".
      index: among the devices of that kind, as PyTorch counts them.

    Raises:
      NotImplementedError: the package or the driver is missing, or of another version.
      RuntimeError: the device cannot be used.
      ValueError: there is no device of this index.
    """
    from thresher import _engine

    key = (name, index, os.getpid())  # what a parent process opened is of no use to a child
    if key not in _opened:
        path = cuda_library()
        if path is None:
            raise NotImplementedError(_MISSING)
        _opened[key] = _engine.Device(path, index)
        device_choices.begin(_opened[key])
    return _opened[key]


def set_tool_windows(open: bool) -> None:
    """Opens or closes, on the devices in use, the window outside of which tools that were told so record nothing.

    `nsys profile --capture-range=cudaProfilerApi`, say.
    """
    for (_, _, process), device in _opened.items():
        if process == os.getpid():
            device.tool_window(open)


_OBSTACLES: dict[str, Callable[[], str | None]] = {"cpu": _cpu, "cuda": _cuda}


def backends() -> list[Backend]:
    """All known ones, available or not."""
    return [Backend(name) for name in _OBSTACLES]
