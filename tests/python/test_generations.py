"""Models that share a graph, and parameters that come, change and go."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from thresher import _engine  # noqa: E402
from thresher.compiler import generations  # noqa: E402
from thresher.compiler.stats import RECORDER  # noqa: E402


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.last = nn.Linear(24, 8)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)))


def agree(compiled: Any, model: Any, x: Any) -> None:
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


compile_ = partial(torch.compile, backend="thresher")


@pytest.fixture
def x() -> Any:
    return torch.randn(3, 16)


def graph() -> Any:
    (found,) = (one for one in RECORDER.alive() if one.plans())
    return found


def is_packed() -> bool:
    """Whether what ran last has all of its parameters packed."""
    return bool(graph().generation.whole)


def test_models_of_one_class_are_packed_each(compiler: Any, x: Any) -> None:
    models = [Model().eval() for _ in range(5)]
    compiled = [compile_(model) for model in models]
    with torch.no_grad():
        for _ in range(4):
            for call, model in zip(compiled, models, strict=True):
                agree(call, model, x)
                assert is_packed()
    stats = compiler.compilation_stats()
    assert stats.graphs == 1  # TorchDynamo gives all of them the same
    assert stats.plans == 5 and stats.plans_built == 5 and stats.repacks == 0


def test_precisions_are_those_that_were_asked_for(compiler: Any, x: Any) -> None:
    models = [Model().eval() for _ in range(3)]
    compiled = [compile_(model, options={"precision": "int8", "precision_exclude": []}) for model in models]
    alone = compiler.compile(models[2], precision="int8", config=compiler.CompilerConfig(precision_exclude=()))
    with torch.no_grad():
        for _ in range(3):
            results = [call(x) for call in compiled]
        assert torch.equal(results[2], alone(x))
        assert not torch.allclose(results[2], models[2](x), rtol=1e-6, atol=1e-6)  # which says that it is int8


def test_models_that_share_a_parameter(compiler: Any, x: Any) -> None:
    models = [Model().eval() for _ in range(2)]
    models[1].first.weight = models[0].first.weight
    compiled = [compile_(model) for model in models]
    with torch.no_grad():
        for _ in range(3):
            for call, model in zip(compiled, models, strict=True):
                agree(call, model, x)
        assert compiler.compilation_stats().repacks == 0
        models[0].first.weight.mul_(2)
        for _ in range(3):
            for call, model in zip(compiled, models, strict=True):
                agree(call, model, x)
        assert is_packed() and compiler.compilation_stats().repacks == 2


def test_one_is_trained_beside_another(compiler: Any, x: Any) -> None:
    trained, other = Model().eval(), Model().eval()
    compiled, beside = compile_(trained), compile_(other)
    with torch.no_grad():
        agree(beside, other, x)
        for _ in range(6):
            agree(compiled, trained, x)
            trained.first.weight.add_(0.01)
            agree(beside, other, x)
            assert is_packed()
        assert compiler.compilation_stats().repacks <= 2
        agree(compiled, trained, x)
        assert not is_packed()


@pytest.mark.parametrize("by", ["torch.compile", "thresher.compile"])
def test_parameters_that_were_trained_are_packed_again(compiler: Any, x: Any, by: str) -> None:
    model = Model().eval()
    compiled = compile_(model) if by == "torch.compile" else compiler.compile(model)
    with torch.no_grad():
        for _ in range(2):  # trainings
            for _ in range(4):
                agree(compiled, model, x)
                for parameter in model.parameters():
                    parameter.add_(0.01)
            agree(compiled, model, x)
            assert not is_packed()
            for _ in range(2 * generations.LASTING_CALLS):
                agree(compiled, model, x)
            assert is_packed()


def test_a_replaced_parameter_is_packed_anew(compiler: Any, x: Any) -> None:
    model = Model().eval()
    compiled = compile_(model)
    with torch.no_grad():
        for number in range(3):
            for _ in range(generations.TRAINING_CALLS):
                agree(compiled, model, x)
            assert is_packed() and len(graph().weight_stores()) == 1
            assert compiler.compilation_stats().repacks == number
            model.first.weight = nn.Parameter(torch.randn(24, 16))


def test_adapters_that_take_turns(compiler: Any, x: Any) -> None:
    model = Model().eval()
    compiled = compile_(model)
    weights = [model.first.weight, nn.Parameter(torch.randn(24, 16)), nn.Parameter(torch.randn(24, 16))]
    with torch.no_grad():
        for _ in range(4):
            for weight in weights:
                model.first.weight = weight
                agree(compiled, model, x)
                assert is_packed()
    assert compiler.compilation_stats().plans_built == 3


def test_what_is_given_up_is_freed(compiler: Any, x: Any) -> None:
    gc.collect()
    before = _engine.allocated_bytes()
    models = [Model().eval() for _ in range(3)]
    with torch.no_grad():
        for model in models:
            agree(compile_(model), model, x)
        freed = weakref.ref(models[1].first.weight)
        assert len(graph().weight_stores()) == 3
        del models[1], model
        gc.collect()
        assert freed() is None and len(graph().weight_stores()) == 2
        agree(compile_(models[1]), models[1], x)
        assert compiler.compilation_stats().plans_built == 3
    models.clear()
    gc.collect()
    assert not any(one.plans() for one in RECORDER.alive())
    assert _engine.allocated_bytes() <= before


def test_models_that_come_and_go(compiler: Any, x: Any) -> None:
    with torch.no_grad():
        for _ in range(6):  # after a few calls, as parameters in training
            model = Model().eval()
            compiled = compile_(model)
            for _ in range(2):
                agree(compiled, model, x)
        assert not is_packed()
        for _ in range(2 * generations.LASTING_CALLS):  # but this one stays
            agree(compiled, model, x)
        assert is_packed()
        del model, compiled
        for _ in range(4):
            model = Model().eval()
            compiled = compile_(model)
            for _ in range(generations.TRAINING_CALLS):
                agree(compiled, model, x)
            assert is_packed()


def test_parameters_of_a_call(compiler: Any, x: Any) -> None:
    model = Model().eval()
    compiled = compile_(lambda parameters, x: torch.func.functional_call(model, parameters, (x,)))
    with torch.no_grad():
        for step in range(2 * generations.LASTING_CALLS):
            parameters = {name: value * (1 + step / 100) for name, value in model.named_parameters()}
            want = torch.func.functional_call(model, parameters, (x,))
            torch.testing.assert_close(compiled(parameters, x), want, rtol=1e-5, atol=1e-5)
    assert compiler.compilation_stats().plans <= 2


def test_more_models_than_are_kept(compiler: Any, x: Any) -> None:
    models = [Model().eval() for _ in range(generations.MOST_MODELS + 4)]
    compiled = [compile_(model) for model in models]
    with torch.no_grad():
        for _ in range(3):
            for call, model in zip(compiled, models, strict=True):
                agree(call, model, x)
    assert compiler.compilation_stats().plans <= generations.MOST_MODELS


def test_threads_with_models_of_their_own(compiler: Any, x: Any) -> None:
    models = [Model().eval() for _ in range(4)]
    compiled = [compile_(model) for model in models]
    wrong: list[BaseException] = []

    def call(i: int) -> None:
        try:
            with torch.no_grad():
                for step in range(60):
                    agree(compiled[i], models[i], x)
                    if i == 0 and step % 20 == 19:
                        models[0].first.weight.add_(0.01)
                    if step % 30 == 29:
                        agree(compile_(passing := Model().eval()), passing, x)
        except BaseException as error:
            wrong.append(error)

    with torch.no_grad():
        agree(compiled[0], models[0], x)  # TorchDynamo captures for one thread at a time
    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
