"""Tuned blockings: measured, kept, and used by plans."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import run_command_with_torch, without_settings

pytest.importorskip("thresher._engine")

import thresher
from thresher import _engine, cache, tuning
from thresher.tuning import Choice, Product, TunedProduct, table

ODD = Choice(panel_kib=3, most_rows=7, split="panels")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, no choices in this process, and measurements that take a moment only."""
    monkeypatch.setattr(_engine, "tune_product", functools.partial(_engine.tune_product, quick=True))
    monkeypatch.delenv("THRESHER_CACHE", raising=False)
    monkeypatch.delenv("THRESHER_TUNING_SPEC", raising=False)
    cache.set_dir(tmp_path / "cache")
    tuning.forget()
    yield tmp_path / "cache"
    cache.set_dir(None)
    tuning.forget()


def product(m: int = 24, n: int = 80, k: int = 48, precision: str = "fp32") -> Product:
    return Product(precision, m, n, k, _engine.num_threads())


def verdict(of: Product, choice: Choice = ODD) -> TunedProduct:
    return TunedProduct(_engine.isa(), of, choice, (2.0, 3.0, 4.0), (1.0, 1.5, 2.0), 9, 21, "2026-01-01T00:00:00+00:00")


def never(*_: object, **__: object) -> Any:
    raise AssertionError("it was measured again")


# ---- measuring and keeping ----


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8", "int8_weight", "int4_weight"])
def test_the_engine_measures_every_precision(precision: str) -> None:
    done: list[float] = []
    found = _engine.tune_product(precision, 20, 70, 300, num_threads=1, progress=done.append)
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 1)
    assert (found["isa"], found["precision"]) == (_engine.isa(), precision)
    assert (found["m"], found["n"], found["k"], found["num_threads"]) == (20, 70, 300, 1)
    for name in ("default_us", "tuned_us", "ratio"):
        lower, median, upper = found[name]
        assert 0 < lower <= median <= upper, name
    if Choice(**found["choice"]) == Choice():
        assert found["tuned_us"] == found["default_us"]
    else:
        assert found["ratio"][1] < 0.98


def test_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [product(), product(m=3), product(), product(precision="int8")]
    first = tuning.tune_products(wanted)
    assert [entry.product for entry in first.products] == [wanted[0], wanted[1], wanted[3]]
    assert first.stored
    assert not any(entry.from_cache for entry in first.products)
    assert first.engine_version == thresher.__version__

    monkeypatch.setattr(_engine, "tune_product", never)
    tuning.forget()
    second = tuning.tune_products(wanted)
    assert [replace(entry, from_cache=False) for entry in second.products] == list(first.products)
    assert all(entry.from_cache for entry in second.products)
    with pytest.raises(AssertionError, match="again"):
        tuning.tune_products(wanted, refresh=True)
    with cache.disabled(), pytest.raises(AssertionError, match="again"):
        tuning.tune_products(wanted)
    other_threads = replace(wanted[0], num_threads=_engine.num_threads() + 1)
    with pytest.raises(AssertionError, match="again"):
        tuning.tune_products([other_threads])


def test_what_was_done_before_an_interruption_is_kept() -> None:
    def stop(done: float, total: int) -> None:
        assert total == 2
        if done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.tune_products([product(), product(m=5)], progress=stop)
    assert list(table.load(_engine.num_threads())) == [product()]
    assert [entry["m"] for entry in _engine.tuned()] == [24]


def test_report_as_text_and_data() -> None:
    table.store([verdict(product()), verdict(product(m=2), Choice())])
    report = tuning.tune_products([product(), product(m=2)])
    assert len(report.changed) == 1
    lines = str(report).splitlines()
    assert lines[1].split("  ")[0] == "24x48x80"
    assert "50.0 %" in lines[1]
    assert "panel 3 KiB, 7 rows, split by panels" in lines[1]
    assert lines[2].endswith("-  default")
    assert "Microseconds; 0 measured" in lines[3] and "2 known before; 1 of 2" in lines[3]
    data = json.loads(json.dumps(report.to_dict()))
    assert [TunedProduct.from_dict(entry) for entry in data["products"]] == list(report.products)
    assert data["products"][0]["gain"] == 0.5


@pytest.mark.parametrize("stored", [{}, [], {"products": 1}, {"products": [{}]}, {"products": [{"isa": "x"}]}])
def test_a_kept_result_of_another_shape_is_measured_again(stored: Any) -> None:
    cache.store(table.KIND, {"num_threads": _engine.num_threads()}, stored)
    tuning.apply()
    assert _engine.tuned() == []
    assert not tuning.tune_products([product()]).products[0].from_cache


def test_kept_choices_that_the_engine_refuses_are_not_used() -> None:
    table.store([verdict(product(), Choice(panel_kib=10_000))])
    tuning.apply()
    assert _engine.tuned() == []


def test_the_engine_refuses_wrong_products() -> None:
    good = {**vars(product()), "isa": _engine.isa(), "choice": vars(Choice())}
    _engine.set_tuned([good])
    for name, value, wanted in (
        ("isa", "mmx", "instruction set"),
        ("precision", "fp8", "precision"),
        ("m", 0, "at least 1"),
        ("m", "3", "another type"),
        ("choice", {**vars(Choice()), "split": "columns"}, "split"),
        ("choice", {**vars(Choice()), "panel_kib": 65}, "panel_kib: expected 0 or 1 to 64, got 65"),
        ("choice", {}, '"split"'),
    ):
        with pytest.raises(ValueError, match=wanted):
            _engine.set_tuned([{**good, name: value}])
    with pytest.raises(ValueError, match="dict"):
        _engine.set_tuned([1])  # type: ignore[list-item]
    assert _engine.tuned() == [good]
    with pytest.raises(ValueError, match="precision"):
        _engine.tune_product("fp8", 1, 1, 1)
    with pytest.raises(ValueError, match="sizes from 1"):
        _engine.tune_product("fp32", 0, 1, 1)


# ---- plans ----


@pytest.fixture
def layer(compiler: Any) -> tuple[Any, Any]:
    """A layer with 48 inputs and 80 outputs, and its configuration."""
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(torch.nn.Linear(48, 80), torch.nn.GELU()).eval(), compiler.CompilerConfig()


def run(layer: Any, config: Any, m: int) -> Any:
    """The numbers after a run with m rows, whose result must be PyTorch's."""
    import torch

    thresher.clear_cache()
    x = torch.linspace(-1, 1, m * 48).reshape(m, 48)
    with torch.no_grad():
        torch.testing.assert_close(thresher.compile(layer, config=config)(x), layer(x), rtol=1e-4, atol=1e-5)
    return thresher.compilation_stats()


def test_plans_use_kept_choices(layer: Any) -> None:
    model, config = layer
    table.store([verdict(product())])
    found = run(model, config, 24)
    assert (found.products, found.tuned_products) == (1, 1)
    assert "1 of 1 matrix product blocked as measured" in found.summary()
    assert _engine.tuned()[0]["choice"] == vars(ODD)
    assert run(model, config, 48).tuned_products == 1, "twice as many rows are near enough"
    found = run(model, config, 49)
    assert (found.products, found.tuned_products) == (1, 0)
    assert "measured" not in found.summary()
    assert run(model, config.replace(use_tuning=False), 24).tuned_products == 0


def test_the_cache_can_be_off(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = layer
    table.store([verdict(product())])
    monkeypatch.setenv("THRESHER_CACHE", "0")
    assert run(model, config, 24).tuned_products == 0
    monkeypatch.setenv("THRESHER_CACHE", "1")
    assert run(model, config, 24).tuned_products == 1
    cache.set_dir("/nonexistent/elsewhere")
    assert run(model, config, 24).tuned_products == 0


def test_a_spec_goes_before_the_cache(layer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, config = layer
    table.store([verdict(product())])
    monkeypatch.setenv("THRESHER_TUNING_SPEC", "")
    assert run(model, config, 24).tuned_products == 0
    spec = tmp_path / "tuning.json"
    short = {**vars(product(m=10)), "isa": _engine.isa(), "choice": {"most_rows": 5}}
    spec.write_text(json.dumps({"format": table.FORMAT, "products": [short]}))
    monkeypatch.setenv("THRESHER_TUNING_SPEC", str(spec))
    assert run(model, config, 24).tuned_products == 0
    assert run(model, config, 10).tuned_products == 1
    assert [entry["choice"] for entry in _engine.tuned()] == [vars(Choice(most_rows=5))]
    monkeypatch.delenv("THRESHER_TUNING_SPEC")
    assert run(model, config, 24).tuned_products == 1


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("{}", "thresher-tuning-1"),
        ('{"format": "thresher-tuning-1", "products": [{}]}', "without a choice"),
        ('{"format": "thresher-tuning-1", "products": [{"choice": {}}]}', '"isa"'),
    ],
)
def test_a_wrong_spec_is_an_error(
    layer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, found: str
) -> None:
    spec = tmp_path / "spec.json"
    if content is not None:
        spec.write_text(content)
    monkeypatch.setenv("THRESHER_TUNING_SPEC", str(spec))
    for _ in range(2):  # not only at the first call
        with pytest.raises(ValueError, match=f"THRESHER_TUNING_SPEC=.*spec.json.*{found}"):
            run(*layer, 24)


def test_tune_a_model(layer: Any) -> None:
    import torch

    model, config = layer
    steps: list[float] = []
    report = thresher.tune(model, torch.ones(24, 48), progress=lambda done, _: steps.append(done))
    assert [entry.product for entry in report.products] == [product()]
    assert steps[-1] == 1
    assert run(model, config, 24).tuned_products == 1
    again = thresher.tune(torch.compile(model, backend="thresher"), kwargs={"input": torch.ones(24, 48)})
    assert again.products[0].from_cache
    other = thresher.tune(model, torch.ones(5, 48), precision="fp32", config=config, num_threads=1)
    assert other.products[0].product == replace(product(m=5), num_threads=1)
    with pytest.raises(thresher.ThresherError, match="got no such product"):
        thresher.tune(torch.nn.ReLU(), torch.ones(3))


# ---- command line ----

SCRIPT = """
import sys
import torch, thresher

model = thresher.compile(torch.nn.Linear(24, 40).eval())
with torch.no_grad():
    model(torch.ones(int(sys.argv[1]), 24))
    thresher.clear_cache()
print("ran with", sys.argv[1:])
sys.exit(3)
"""


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = without_settings()
    return subprocess.run(
        [sys.executable, "-m", "thresher", "tune", *map(str, arguments)],
        env={**clean, "COLUMNS": "160", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_command_with_shapes(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    environment = {"THRESHER_CACHE_DIR": str(folder)}
    arguments = ("--shape", "3x24x40", "--shape", "2X24X40", "--precision", "int8", "--threads", "1")
    done = command("--json", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    shapes = [[entry[name] for name in ("precision", "m", "k", "n", "num_threads")] for entry in data["products"]]
    assert shapes == [["int8", 3, 24, 40, 1], ["int8", 2, 24, 40, 1]]
    assert data["stored"]
    shown = command("-o", tmp_path / "spec.json", *arguments, **environment)
    assert shown.returncode == 0, shown.stderr
    assert "3x24x40" in shown.stdout
    assert "0 measured" in shown.stdout
    assert json.loads((tmp_path / "spec.json").read_text())["format"] == "thresher-tuning-1"


def test_command_with_a_script(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = ("tune", "--json", "--threads", "1", script, "6", "--shape")
    done = run_command_with_torch(*arguments, THRESHER_CACHE_DIR=str(folder))
    assert done.returncode == 3, done.stderr
    first, rest = done.stdout.split("\n", 1)
    assert first == "ran with ['6', '--shape']"
    [entry] = json.loads(rest)["products"]
    assert (entry["m"], entry["k"], entry["n"], entry["num_threads"]) == (6, 24, 40, 1)


def test_command_refuses(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    empty = tmp_path / "empty.py"
    empty.write_text("")
    for arguments, wanted in (
        ((), "got none"),
        (("--shape", "1x1x1", empty), "got several"),
        (("--shape", "1x2"), "such as 128x384x1536, got '1x2'"),
        (("--shape", "0x2x3"), "sizes from 1"),
        (("--shape", "1x2x3", "--precision", "fp8"), "precision"),
        ((tmp_path / "none.py",), "got nothing at"),
        ((empty,), "got no matrix product"),
    ):
        done = command(*arguments)
        assert done.returncode == 1, arguments
        assert wanted in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys; from thresher.tuning import tune_products; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
