"""Energy counters of NVIDIA GPUs, from the library of NVIDIA's driver (NVML)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"

_SUCCESS = 0
_NOT_SUPPORTED = 3
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE

_opened: dict[tuple[str, int], ctypes.CDLL] = {}


class NvmlError(Exception):
    """Why a GPU's energy is not known, and what to do."""


@dataclass(frozen=True, slots=True)
class GpuCounter:
    """The energy that a GPU used since its driver was loaded.

    Attributes:
        name: "gpu 0 (NVIDIA H100)".
        read: Gives it in millijoules; raises NvmlError.
    """

    name: str
    read: Callable[[], int]


def counters(library: str = LIBRARY) -> list[GpuCounter]:
    """The counters of all GPUs of the machine; none where the driver is not installed.

    Raises:
        NvmlError: There is a driver, and it cannot be asked.
    """
    nvml = _open(library)
    if nvml is None:
        return []
    count = ctypes.c_uint()
    _check(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "the number of GPUs")
    return [_counter(nvml, index) for index in range(count.value)]


def _open(library: str) -> ctypes.CDLL | None:
    """The library, ready; the driver takes long to begin, so it stays open as long as the process lives."""
    key = (library, os.getpid())  # a forked child begins anew
    if key not in _opened:
        try:
            nvml = ctypes.CDLL(library)
        except OSError:
            return None
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        _check(nvml, nvml.nvmlInit_v2(), "NVIDIA's driver to begin")
        _opened[key] = nvml
    return _opened[key]


def _counter(nvml: ctypes.CDLL, index: int) -> GpuCounter:
    device = ctypes.c_void_p()
    _check(nvml, nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)), f"gpu {index}")
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check(nvml, nvml.nvmlDeviceGetName(device, name, ctypes.c_uint(_NAME_BYTES)), f"the name of gpu {index}")
    label = f"gpu {index} ({name.value.decode(errors='replace')})"

    def read() -> int:
        millijoules = ctypes.c_ulonglong()
        result = nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        if result == _NOT_SUPPORTED:
            raise NvmlError(f"expected {label} to count energy, got none; GPUs count it from Volta on")
        _check(nvml, result, f"the energy of {label}")
        return millijoules.value

    return GpuCounter(label, read)


def _check(nvml: ctypes.CDLL, result: int, what: str) -> None:
    if result != _SUCCESS:
        text = nvml.nvmlErrorString(result)
        said = text.decode(errors="replace") if isinstance(text, bytes) else f"error {result}"
        raise NvmlError(f"expected {what} from {LIBRARY}, got: {said}; `nvidia-smi` should work first")
