"""The tests of tests/cuda run on the CPU, which shows that they test the right thing, and on a GPU where there is one.

    pytest tests/cuda                               # on the CPU; on the first GPU, if thresher-cuda is installed
    pytest tests/cuda -m gpu                        # only what needs the GPU
    pytest tests/cuda --device-library LIBRARY.so   # another library of kernels, such as the emulator's
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from thresher import _engine
from thresher.machine import Backend
from thresher.machine.backend import cuda_library

_SKIPPED = "skipped: no GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device-library", help="library of kernels to test instead of that of thresher-cuda")


class Lab:
    """A device with a stream, and arrays that go there and come back.

    Attributes:
        device: the device.
        stream: where its work is done.
        is_cpu: whether it is the CPU.
        is_real: whether it is neither the CPU nor an emulator, so that large arrays take no time.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.stream = device.stream()
        self.is_cpu = device.info["kind"] == "cpu"
        self.is_real = not self.is_cpu and device.info["name"] != "emulator"

    def put(self, array: Any) -> Any:
        """The array in memory of the device that is exactly as long."""
        buffer = self.device.empty(max(array.nbytes, 1))
        self.stream.copy_in(buffer, _storable(array))
        return buffer

    def get(self, buffer: Any, like: Any) -> Any:
        """An array of the shape and type of `like` with the buffer's content."""
        out = like.copy()
        self.stream.copy_out(_storable(out), buffer)
        return out


def _storable(array: Any) -> Any:
    """The same bytes as elements of a type that the engine knows."""
    import numpy as np

    assert array.flags.c_contiguous
    known = (np.float32, np.int32, np.int64, np.bool_)
    return array if array.dtype in known else array.reshape(-1).view(np.bool_)


def _library(config: pytest.Config) -> str | None:
    chosen: str | None = config.getoption("--device-library")
    return chosen or (None if Backend("cuda").obstacle() else cuda_library())


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    if request.param == "cpu":
        yield Lab(_engine.Device())
        return
    library = _library(request.config)
    if library is None:
        pytest.skip(f"{_SKIPPED}: {Backend('cuda').obstacle()}")
    yield Lab(_engine.Device(library))


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Lab:
    """For what the CPU does not have; mark the test with gpu, too."""
    library = _library(request.config)
    if library is None:
        pytest.skip(f"{_SKIPPED}: {Backend('cuda').obstacle()}")
    return Lab(_engine.Device(library))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    count = sum(1 for report in reports if _SKIPPED in str(report.longrepr))
    if count:
        terminalreporter.write_line(f"{_SKIPPED}: {count} tests of tests/cuda ({Backend('cuda').obstacle()})")
