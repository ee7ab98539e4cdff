"""The tests of tests/cuda run on the CPU, which shows that they test the right thing, and on a GPU where there is one.

pytest tests/cuda                               # on the CPU; on the first GPU, if thresher-cuda is installed
pytest tests/cuda -m gpu                        # only on the GPU
pytest tests/cuda --device-library LIBRARY.so   # another library of kernels where there is no GPU: the emulator's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from thresher import _engine
from thresher.machine import Backend
from thresher.machine.backend import cuda_library

_SKIPPED = "skipped: no GPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device-library", help="library of kernels to test where there is no GPU")


class Lab:
    """A device with a stream, and arrays that go there and come back.

    Attributes:
        library: where its kernels are; None for the CPU.
        device: the device.
        stream: where its work is done.
        is_cpu: whether it is the CPU.
        is_real: whether it is neither the CPU nor an emulator, so that large arrays take no time.
    """

    def __init__(self, library: str | None) -> None:
        self.library = library
        self.device = _engine.Device(library)
        self.stream = self.device.stream()
        self.is_cpu = library is None
        self.is_real = not self.is_cpu and self.device.info["name"] != "emulator"

    def put(self, array: Any) -> Any:
        """The array in memory of the device that is exactly as long."""
        buffer = self.device.empty(max(array.nbytes, 1))
        self.stream.copy_in(buffer, _storable(array))
        return buffer

    def plan(self, build: Callable[[Any], Sequence[int]], *, allow_tf32: bool = False) -> Any:
        """A plan for this device of a graph as it stands, which `build` fills and gives the outputs of."""
        graph = _engine.Graph()
        graph.set_outputs(build(graph))
        return _engine.Plan.build(
            graph, _engine.WeightStore(), level="O0", use_tuning=False, device=self.device, allow_tf32=allow_tf32
        )

    def run(self, plan: Any, *arrays: Any) -> list[Any]:
        """What the plan makes of these inputs, in memory of the device."""
        import numpy as np

        guards = 2  # elements behind each output, which must stay as they are
        inputs = [self.put(array) for array in arrays]
        likes = [np.full(math.prod(shape) + guards, 777, np.float32) for _, shape in plan.outputs]
        outputs = [self.put(like) for like in likes]
        plan.launch(self.stream, inputs, outputs)
        results = [self.get(buffer, like) for buffer, like in zip(outputs, likes, strict=True)]
        assert all((result[-guards:] == 777).all() for result in results), "wrote behind the output"
        return [result[:-guards].reshape(shape) for result, (_, shape) in zip(results, plan.outputs, strict=True)]

    def node(self, op: str, *arrays: Any, **attrs: Any) -> list[Any]:
        """What one operator makes of arrays; None: an optional operand that is absent."""
        given = [array for array in arrays if array is not None]

        def build(graph: Any) -> Sequence[int]:
            inputs = [None if array is None else graph.input("x", _name(array.dtype), array.shape) for array in arrays]
            return graph.add(op, inputs, attrs)  # type: ignore[no-any-return]

        return self.run(self.plan(build), *given)

    def get(self, buffer: Any, like: Any) -> Any:
        """An array of the shape and type of `like` with the buffer's content."""
        out = like.copy()
        self.stream.copy_out(_storable(out), buffer)
        return out


def _name(dtype: Any) -> str:
    import numpy as np

    return {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}.get(dtype, "bool")


def _storable(array: Any) -> Any:
    """The same bytes as elements of a type that the engine knows."""
    import numpy as np

    assert array.flags.c_contiguous
    known = (np.float32, np.int32, np.int64, np.bool_)
    return array if array.dtype in known else array.reshape(-1).view(np.bool_)


def _gpu(config: pytest.Config) -> Lab:
    obstacle = Backend("cuda").obstacle()
    library: str | None = config.getoption("--device-library") if obstacle else cuda_library()
    if library is None:
        pytest.skip(f"{_SKIPPED}: {obstacle}")
    return Lab(library)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(None) if request.param == "cpu" else _gpu(request.config)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Lab:
    """For what the CPU does not have; mark the test with gpu, too."""
    return _gpu(request.config)


@pytest.fixture
def real_gpu(gpu: Lab) -> Lab:
    """For what the emulator does not have either."""
    if not gpu.is_real:
        pytest.skip(f"{_SKIPPED}, and the emulator does not do for this")
    return gpu


def pytest_terminal_summary(terminalreporter: Any) -> None:
    count = sum(1 for report in terminalreporter.stats.get("skipped", []) if _SKIPPED in str(report.longrepr))
    if count:
        terminalreporter.write_line(f"{_SKIPPED}: {count} tests ({Backend('cuda').obstacle()})")
