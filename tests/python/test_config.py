"""Settings are checked when they are made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"optimization_level": "O4"}, r"O0, O1, O2, O3.*'O4'"),
        ({"optimization_level": 2}, "expected one of"),
        ({"fallback": "errors"}, "did you mean 'error'"),
        ({"plan_cache_size": 0}, "at least 1"),
        ({"plan_sizes": "two"}, "many, one"),
        ({"plan_cache_size": True}, "at least 1"),
        ({"fusion": 1}, "True or False"),
        ({"threads": 0}, "threads: expected an integer from 1 to 1024, got 0"),
        ({"threads": 2.0}, "threads: expected an integer"),
        ({"extra_passes": ("dead_cod",)}, "did you mean 'dead_code'"),
        ({"extra_passes": "dead_code"}, "tuple"),
        ({"dump_dir": 3}, "path"),
        ({"dump_dir": __file__}, "expected a folder"),
    ],
)
def test_unusable_values(compiler: Any, changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(compiler.ConfigError, match=wanted):
        compiler.CompilerConfig(**changes)
    with pytest.raises(ValueError, match=wanted):
        compiler.CompilerConfig().replace(**changes)


def test_frozen_and_comparable(compiler: Any) -> None:
    config = compiler.CompilerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.fusion = False
    assert config == compiler.CompilerConfig() and hash(config) == hash(compiler.CompilerConfig())
    assert config.replace(fusion=False) != config


def test_unknown_names(compiler: Any) -> None:
    with pytest.raises(compiler.ConfigError, match="did you mean 'fallback'"):
        compiler.CompilerConfig().replace(falback="error")


def test_options_of_torch_compile(compiler: Any) -> None:
    from thresher.compiler.config import config_from_options

    assert config_from_options(None) == compiler.CompilerConfig()
    assert config_from_options({"fusion": False}).fusion is False
    config = compiler.CompilerConfig(plan_cache_size=3)
    assert config_from_options({"config": config, "fallback": "error"}) == config.replace(fallback="error")
    with pytest.raises(compiler.ConfigError, match="got dict"):
        config_from_options({"config": {}})
    with pytest.raises(Exception, match="did you mean 'fallback'"):
        torch.compile(lambda x: x + 1, backend=compiler.thresher_backend, options={"fallbck": "x"})(torch.ones(2))
    with pytest.raises(Exception, match="expected None or one of default"):
        torch.compile(lambda x: x + 1, backend=compiler.thresher_backend, mode="fast")(torch.ones(2))


def test_pytorchs_guards_can_be_left_out(compiler: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    options = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe, "precision": "fp32"}
    compiled = torch.compile(model, backend="thresher", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        # What the engine itself watches is still seen: parameters.
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))


def test_pass_switches(compiler: Any) -> None:
    from thresher import _engine
    from thresher.compiler.config import PASS_SWITCHES

    known = set(_engine.passes("O3"))
    for names in PASS_SWITCHES.values():
        assert set(names) <= known
    assert compiler.CompilerConfig().pass_names() is None
    passes = compiler.CompilerConfig(fusion=False, extra_passes=("dead_code",)).pass_names()
    assert passes[-1] == "dead_code" and not set(PASS_SWITCHES["fusion"]) & set(passes)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimization_level": "O0"},
        {"optimization_level": "O3"},
        {"fusion": False},
        {"constant_folding": False, "dead_code": False},
        {"memory_planning": False},
    ],
    ids=str,
)
def test_settings_do_not_change_answers(compiler: Any, settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)).eval()
    x = torch.randn(5, 8)
    with torch.no_grad():
        got = compiler.compile(model, config=compiler.CompilerConfig(**settings))(x)
        torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-5)


def test_dump_of_the_graph_after_every_pass(compiler: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()
    folder = tmp_path / "dumps"
    with torch.no_grad():
        compiler.compile(model, config=compiler.CompilerConfig(dump_dir=folder))(torch.randn(5, 8))
    texts = {path.name: path.read_text() for path in folder.glob("*/*.txt")}
    assert any("input" in name for name in texts) and any("epilogue_fusion" in name for name in texts)
    first, last = texts[min(texts)], texts[max(texts)]
    assert "gelu(" in first.replace(" ", "") or "gelu" in first
    assert first != last and last.count("linear") == 2


def test_compile_arguments(compiler: Any) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(compiler.UnavailableError, match="available: cpu"):
        compiler.compile(model, target="cuda")
    with pytest.raises(compiler.ConfigError, match="fp32, bf16, fp16, int8, int8_weight, int4_weight"):
        compiler.compile(model, precision="fp64")
    with pytest.raises(compiler.ConfigError, match="O0, O1, O2, O3"):
        compiler.compile(model, optimization_level="O9")
    with pytest.raises(compiler.ConfigError, match=r"torch\.nn\.Module"):
        compiler.compile("lambda x: x")
    with pytest.raises(compiler.ConfigError, match="CompilerConfig"):
        compiler.compile(model, config={"fusion": False})
    for error in (compiler.ConfigError, compiler.UnavailableError, compiler.UnsupportedOperatorError):
        assert issubclass(error, compiler.ThresherError)


def test_lazy_names_of_the_package(compiler: Any) -> None:
    import thresher

    assert thresher.compile is compiler.compile and thresher.CompilerConfig is compiler.CompilerConfig
    assert thresher.compilation_stats().graphs == 0
