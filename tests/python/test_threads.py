"""Whose word about the number of threads holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python, run_with_torch

torch = pytest.importorskip("torch")

from thresher import _engine  # noqa: E402

CORES = _engine.usable_cores()
needs_cores = pytest.mark.skipif(CORES < 2, reason="there is one core only")

MODEL = """
import torch, thresher
from thresher import _engine
from thresher.compiler.stats import RECORDER

def numbers():
    # What the plans of all models share their work among.
    return sorted({plan.num_threads for graph in RECORDER.alive() for plan in graph.plans()})

x = torch.ones(64, 64)

def compiled(**settings):
    model = thresher.compile(torch.nn.Linear(64, 64).eval(), **settings)
    with torch.no_grad():
        model(x)
    return model
"""


def said(code: str, **environment: str) -> list[str]:
    # PyTorch's own variable is read as its libraries are loaded.
    run = run_python if "OMP_NUM_THREADS" in environment else run_with_torch
    done = run(MODEL + code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_by_default_as_pytorch() -> None:
    code = "model = compiled(); print(thresher.get_num_threads(), *numbers(), torch.get_num_threads())"
    own, plans, pytorch = said(code)
    assert own == plans == str(min(int(pytorch), CORES))


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "THRESHER_NUM_THREADS"])
def test_variables(variable: str) -> None:
    code = "model = compiled(); print(thresher.get_num_threads(), *numbers())"
    assert said(code, **{variable: "1"}) == ["1", "1"]


def test_more_threads_than_cores_are_had_by_asking_thresher() -> None:
    many = str(CORES + 1)
    code = "print(thresher.get_num_threads())"
    assert said(code, OMP_NUM_THREADS=many) == [str(CORES)]
    assert said(code, THRESHER_NUM_THREADS=many) == [many]


def test_without_pytorch() -> None:
    code = "import sys, thresher; print(thresher.get_num_threads(), 'torch' in sys.modules)"
    assert run_python(code, OMP_NUM_THREADS="1").stdout.split() == ["1", "False"]
    assert run_python(code, OMP_NUM_THREADS="").stdout.split() == [str(CORES), "False"]


@pytest.mark.thorough
@needs_cores
def test_pytorch_may_change_its_mind() -> None:
    code = """
torch.set_num_threads(2)
model = compiled()
print(*numbers())
torch.set_num_threads(1)
with torch.no_grad():
    torch.testing.assert_close(model(x), model._orig_mod(x))
print(thresher.get_num_threads(), *numbers())
"""
    assert said(code, OMP_NUM_THREADS="2") == ["2", "1", "1", "2"]


def test_own_word_goes_before_all_others() -> None:
    code = """
torch.set_num_threads(1)
thresher.set_num_threads(3)
model = compiled()
print(thresher.get_num_threads(), *numbers())
thresher.set_num_threads(2)
print(len(numbers()))
with torch.no_grad():
    model(x)
print(*numbers(), _engine.num_threads())
"""
    assert said(code, THRESHER_NUM_THREADS="1", OMP_NUM_THREADS="1") == ["3", "3", "0", "2", "2"]


def test_a_model_of_its_own_mind() -> None:
    code = """
thresher.set_num_threads(1)
own = compiled(threads=3)
other = compiled()
print(*numbers(), _engine.num_threads())
thresher.set_num_threads(2)
print(*numbers(), _engine.num_threads())
"""
    assert said(code) == ["1", "3", "3", "3", "3"]


def test_options_of_torch_compile() -> None:
    code = """
model = torch.compile(torch.nn.Linear(64, 64), backend="thresher", options={"threads": 3})
with torch.no_grad():
    model(x)
print(*numbers())
"""
    assert said(code.replace('"thresher"', "thresher.compiler.thresher_backend")) == ["3"]


def test_loaded_models(tmp_path: Path) -> None:
    code = f"""
path = thresher.export(torch.nn.Linear(64, 64).eval(), (x,), {str(tmp_path / "m.thrmodel")!r})
thresher.set_num_threads(2)
print(thresher.load(path).stats().threads, thresher.load(path, threads=3).stats().threads, _engine.num_threads())
"""
    assert said(code) == ["2", "3", "3"]


def test_a_forked_child_keeps_the_number() -> None:
    code = """
import os
thresher.set_num_threads(3)
if os.fork() == 0:
    print(thresher.get_num_threads(), _engine.num_threads(), flush=True)
    os._exit(0)
os.wait()
"""
    assert said(code) == ["3", "3"]


@pytest.mark.parametrize("number", [0, -1, 1025, 1.0, "2", True, None])
def test_what_is_no_number_of_threads(number: object) -> None:
    import thresher

    with pytest.raises(ValueError, match="set_num_threads: expected an integer from 1 to 1024, got"):
        thresher.set_num_threads(number)  # type: ignore[arg-type]
