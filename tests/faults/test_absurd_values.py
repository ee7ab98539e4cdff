"""Values that nobody means: an error that says what was wanted, and the engine works on.

Empty tensors, NaN and infinity, indices out of range and memory that nobody has are in tests/python/test_compile.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import lines_of

from thresher import _engine

LOAD = """
import sys
import numpy as np, thresher
model = thresher.load(sys.argv[1])
print(float(model(np.ones((64, 128), np.float32))["output"].sum()), model.stats().threads)
"""


@pytest.mark.parametrize("wanted", ["0", "-1", "1025", "1e9", "99999999999999999999", "two", " "])
def test_a_number_of_threads_that_cannot_be(wanted: str, python: Any, model_file: Path) -> None:
    done = python(LOAD, model_file, THRESHER_NUM_THREADS=wanted)
    assert done.returncode == 1
    assert "THRESHER_NUM_THREADS: expected an integer from 1 to 1024, got" in done.stderr.splitlines()[-1]


def test_far_more_threads_than_cores(python: Any, model_file: Path) -> None:
    ((one, _), (many, threads)) = (
        lines_of(python(LOAD, model_file, THRESHER_NUM_THREADS=count))[0].split() for count in ("1", "1024")
    )
    assert threads == "1024"
    assert float(many) == pytest.approx(float(one), rel=1e-5)


@pytest.mark.release_build  # limits addresses, of which sanitizers take a multiple
def test_fewer_threads_than_were_asked_for(python: Any, model_file: Path) -> None:
    """The system gives no more: the work is done by those there are."""
    code = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))\n{LOAD}"
    # glibc reserves 64 MiB for a thread that allocates, as many times as there is room.
    settings = {"THRESHER_NUM_THREADS": "1024", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    (line,) = lines_of(python(code, model_file, **settings))
    assert float(line.split()[0]) == pytest.approx(
        float(lines_of(python(LOAD, model_file, THRESHER_NUM_THREADS="1"))[0].split()[0]), rel=1e-5
    )


@pytest.mark.parametrize(
    "shape",
    [(1 << 62,), (1 << 62, 1 << 62), (1 << 40, 1 << 40), ((1 << 63) - 1,), (-1,), (2, -(1 << 40)), (0, 1 << 62)],
)
def test_shapes_beyond_all_memory(shape: tuple[int, ...]) -> None:
    graph = _engine.Graph()
    x = graph.input("x", "f32", shape)
    with pytest.raises(ValueError, match=r"relu: expected tensors of at most \d+ bytes and no negative size, got the"):
        graph.add("relu", [x])
    small = graph.input("small", "f32", (1,))
    if -1 not in shape:  # which keeps the size that there is
        with pytest.raises(ValueError, match="expand: "):
            graph.add("expand", [small], {"shape": list(shape)})
    graph.set_outputs(graph.add("relu", [small]))
    found = np.zeros(1, np.float32)
    kept = _engine.Graph.parse("graph 1\ninput %0 : f32[1]\n%1 = relu(%0)\nreturn %1\n")
    _engine.Plan.build(kept, _engine.WeightStore()).run([np.full(1, 7, np.float32)], [found])
    assert found.tolist() == [7]


def test_a_plan_that_needs_more_than_there_is() -> None:
    graph = _engine.Graph()
    x = graph.input("x", "f32", (1 << 43,))
    for _ in range(3):
        (x,) = graph.add("relu", [x])
    graph.set_outputs([x])
    with pytest.raises(MemoryError, match=r"the plan wants more than .* bytes of intermediate memory; use smaller"):
        _engine.Plan.build(graph, _engine.WeightStore(), level="O0")


def test_very_deep_graphs(python: Any) -> None:
    """As many nodes one after the other as would end a recursion, on a stack of a quarter of the usual size."""
    code = """
import threading
import numpy as np
from thresher import _engine
def work():
    for level in ("O0", "O2"):
        graph = _engine.Graph()
        x = graph.input("x", "f32", (4,))
        for i in range(20_000):
            (x,) = graph.add("relu" if i % 2 else "neg", [x])
        graph.set_outputs([x])
        text = graph.text()
        assert _engine.Graph.parse(text).text() == text
        found = np.zeros(4, np.float32)
        _engine.Plan.build(graph, _engine.WeightStore(), level=level).run([np.ones(4, np.float32)], [found])
        print(np.abs(found).tolist())
threading.stack_size(2 << 20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert lines_of(python(code, timeout=120)) == ["[0.0, 0.0, 0.0, 0.0]"] * 2
