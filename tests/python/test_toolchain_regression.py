"""The regression gate: what is slower fails and never becomes the measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "tests" / "golden" / "op_report.json").read_text(encoding="utf-8"))


@pytest.fixture
def regression(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from toolchain import regression as module

    return module


def scaled(value: Any, factor: float) -> Any:
    """A report whose times are some factor of the original's."""
    if isinstance(value, list):
        return [scaled(entry, factor) for entry in value]
    if not isinstance(value, dict):
        return value
    return {k: v * factor if k.endswith("_ms") and v is not None else scaled(v, factor) for k, v in value.items()}


def reports(folder: Path, factor: float, **machine: Any) -> Path:
    folder.mkdir(parents=True)
    for number in range(5):
        content = {**scaled(REPORT, factor * (1 + number / 1000)), **machine}
        (folder / f"{number}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_as_fast_as_last_time_passes(regression: ModuleType, tmp_path: Path) -> None:
    regression.judge(Path(sys.executable), reports(tmp_path / "last", 1), reports(tmp_path / "now", 1.01))


def test_slower_than_last_time_fails(regression: ModuleType, tmp_path: Path) -> None:
    from toolchain.process import ToolchainError

    last, now = reports(tmp_path / "last", 1), reports(tmp_path / "now", 1.5)
    with pytest.raises(ToolchainError, match=r"ended with code 1.*Mend what became slower"):
        regression.judge(Path(sys.executable), last, now)


def test_a_damaged_report_fails(regression: ModuleType, tmp_path: Path) -> None:
    from toolchain.process import ToolchainError

    last, now = reports(tmp_path / "last", 1), reports(tmp_path / "now", 1)
    (now / "0.json").write_text("{")
    with pytest.raises(ToolchainError, match="ended with code 2"):
        regression.judge(Path(sys.executable), last, now)


def test_another_machine_is_not_judged_and_that_is_said(
    regression: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last, now = reports(tmp_path / "last", 1), reports(tmp_path / "now", 9, cpu="another")
    regression.judge(Path(sys.executable), last, now)
    assert "not judged, since the machines differ" in capfd.readouterr().out


def test_the_first_time_there_is_nothing_to_compare_with(
    regression: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    regression.judge(Path(sys.executable), tmp_path / "last", reports(tmp_path / "now", 1))
    assert "holds no runs" in capfd.readouterr().out


@pytest.mark.parametrize("slow", [False, True])
def test_slow_runs_never_become_the_measure(
    regression: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    from toolchain.process import ToolchainError

    def run(command: list[Any], **_: object) -> None:
        Path(command[-2]).write_text(json.dumps(scaled(REPORT, 1.5 if slow else 1)), encoding="utf-8")

    monkeypatch.setattr(regression, "run", run)
    monkeypatch.setattr(regression.wheel, "build_wheel", lambda flavour: Path("wheel"))
    monkeypatch.setattr(regression.environments, "install_wheel", lambda *_: Path(sys.executable))
    last = reports(tmp_path / "last", 1)
    before = {path.name: path.read_text() for path in last.iterdir()}
    if slow:
        with pytest.raises(ToolchainError):
            regression.run_gate(None, tmp_path)
        assert {path.name: path.read_text() for path in last.iterdir()} == before
        assert len(list((tmp_path / "now").glob("*.json"))) == regression.RUNS
    else:
        regression.run_gate(None, tmp_path)
        assert len(list(last.glob("*.json"))) == regression.RUNS and not (tmp_path / "now").exists()
