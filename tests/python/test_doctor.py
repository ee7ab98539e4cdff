"""Each check of the doctor, in health and in sickness."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from thresher.doctor import Finding, Level, checks, run_checks, topology, verdict

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("thresher._engine") is None, reason="the engine is not built"
)


class FakeEngine:
    """An engine in a state of our choice."""

    def __init__(self, **state: Any) -> None:
        self._state: dict[str, Any] = {
            "isa": "avx2",
            "isas": ["sse2", "avx2"],
            "isa_refusal": "",
            "num_threads": 2,
            "usable_cores": 2,
            "check_env": [],
            "env_vars": [{"name": "THRESHER_LOG", "value": "debug"}],
            **state,
        }

    def __getattr__(self, name: str) -> Any:
        return lambda: self._state[name]

    def initialize(self) -> None:
        if message := self._state.get("initialize"):
            raise ValueError(message)


def test_verdict_is_the_worst() -> None:
    ok, warn, fail = (Finding("x", level, "") for level in Level)
    assert verdict([]) is Level.OK
    assert verdict([ok, warn]) is Level.WARN
    assert verdict([warn, fail, ok]) is Level.FAIL


def test_every_problem_has_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THRESHER_PROFILE_OUTPUT", str(tmp_path / "file" / "report.json"))
    monkeypatch.setattr(metadata, "version", lambda name: _raise(metadata.PackageNotFoundError(name)))
    monkeypatch.setattr(checks, "OLDEST_PYTHON", (99, 0))
    findings = [
        checks.check_python(),
        checks.check_numpy(),
        checks.check_torch(),
        checks.check_report_file(),
        checks.check_instructions(FakeEngine(isa="sse2")),
        checks.check_threads(FakeEngine(num_threads=64)),
        checks.check_variables(FakeEngine(check_env=["THRESHER_X: no such variable"])),
        checks.check_variables(FakeEngine(initialize="THRESHER_ISA: expected this, got that")),
    ]
    for finding in findings:
        assert finding.level is not Level.OK, finding
        assert finding.cure, finding


def _raise(error: Exception) -> Any:
    raise error


def test_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_python().level is Level.OK
    monkeypatch.setattr(checks, "OLDEST_PYTHON", (99, 1))
    finding = checks.check_python()
    assert finding.level is Level.FAIL
    assert "99.1" in finding.cure


@needs_engine
def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("THRESHER_CACHE", raising=False)
    monkeypatch.setenv("THRESHER_CACHE_DIR", str(tmp_path / "new" / "cache"))
    assert checks.check_cache() == Finding("cache", Level.OK, str(tmp_path / "new" / "cache"))
    assert not (tmp_path / "new").exists(), "looking changes nothing"
    (tmp_path / "new").write_text("")
    finding = checks.check_cache()
    assert finding.level is Level.WARN
    assert "THRESHER_CACHE_DIR" in finding.cure
    monkeypatch.setenv("THRESHER_CACHE", "maybe")
    assert checks.check_cache().level is Level.WARN
    monkeypatch.setenv("THRESHER_CACHE", "0")
    assert checks.check_cache().level is Level.OK


def test_engine_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thresher._engine", None)
    engine, finding = checks.load_engine()
    assert engine is None
    assert finding.level is Level.FAIL
    assert "reinstall" in finding.cure
    assert verdict(run_checks()) is Level.FAIL


def test_variables() -> None:
    assert checks.check_variables(FakeEngine()).found == "THRESHER_LOG=debug"
    wrong = checks.check_variables(FakeEngine(initialize="THRESHER_ISA: expected this, got that"))
    assert (wrong.level, wrong.found) == (Level.FAIL, "THRESHER_ISA: expected this, got that")


def test_instruction_set() -> None:
    assert checks.check_instructions(FakeEngine()).level is Level.OK
    forced = checks.check_instructions(FakeEngine(isa="avx2", isas=["sse2", "avx2", "avx512"]))
    assert forced.level is Level.WARN
    assert "avx512" in forced.cure
    assert checks.check_instructions(FakeEngine(isa="sse2", isas=["sse2"])).level is Level.WARN
    refused = checks.check_instructions(FakeEngine(isa_refusal="the system refused AMX"))
    assert refused.level is Level.WARN
    assert "the system refused AMX" in refused.found
    assert refused.cure


def test_threads() -> None:
    assert checks.check_threads(FakeEngine()).level is Level.OK
    finding = checks.check_threads(FakeEngine(num_threads=8))
    assert finding.level is Level.WARN
    assert "at most 2" in finding.cure


@pytest.mark.parametrize(
    ("version", "level"), [("2.13.0+cpu", Level.OK), ("2.130.0", Level.WARN), ("2.12.1", Level.WARN)]
)
def test_torch_version(monkeypatch: pytest.MonkeyPatch, version: str, level: Level) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert checks.check_torch().level is level


def test_doctor_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, thresher.doctor as d; d.run_checks(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_check_that_breaks_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_numpy() -> Finding:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(checks, "check_numpy", check_numpy)
    finding = next(finding for finding in run_checks() if finding.name == "numpy")
    assert finding.level is Level.FAIL
    assert "unforeseen" in finding.found


@needs_engine
def test_this_machine_is_well() -> None:
    findings = {finding.name: finding for finding in run_checks()}
    assert not [finding for finding in findings.values() if finding.level is Level.FAIL]
    assert findings["engine"].level is Level.OK
    assert findings["computing"].level in (Level.OK, Level.WARN)


@needs_engine
def test_documentation_lists_every_variable() -> None:
    from thresher import _engine

    text = (Path(__file__).parents[2] / "docs" / "environment.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("| `THRESHER_")]
    assert table == [
        f"| `{row['name']}` | {row['wanted']} | {row['default'] or '-'} | {row['doc']} |" for row in _engine.env_vars()
    ]


def test_every_variable_the_toolchain_reads_is_known_to_the_engine():
    scripts = Path(__file__).parents[2] / "scripts"
    read = set()
    for path in scripts.rglob("*.py"):
        read |= set(re.findall(r'"(THRESHER_[A-Z_]*[A-Z])"', path.read_text()))
    table = (scripts.parent / "src" / "thresher" / "base" / "env.cc").read_text()
    assert {"THRESHER_BUILD_DIR", "THRESHER_CONAN_HOME"} <= read
    assert [name for name in sorted(read) if f'"{name}"' not in table] == []


@needs_engine
def test_cores_are_described_as_the_system_tells_of_them(tmp_path: Path) -> None:
    """A server of two nodes with two CPUs to a core, as its files tell."""
    engine: Any = importlib.import_module("thresher._engine")
    system = tmp_path / "sys/devices/system"
    (system / "cpu").mkdir(parents=True)
    (system / "cpu/online").write_text("0-7\n")
    (system / "node").mkdir()
    (system / "node/online").write_text("0-1\n")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (system / f"node/node{node}").mkdir()
        (system / f"node/node{node}/cpulist").write_text(cpus)
    for cpu in range(8):
        folder = system / f"cpu/cpu{cpu}"
        for part in ("topology", "cache/index0"):
            (folder / part).mkdir(parents=True)
        (folder / "topology/core_cpus_list").write_text(f"{cpu % 4},{cpu % 4 + 4}")
        (folder / "cache/index0/level").write_text("3")
        (folder / "cache/index0/shared_cpu_list").write_text("0-1,4-5" if cpu % 4 < 2 else "2-3,6-7")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("250000 100000")
    found = engine.topology(str(tmp_path))
    assert [core["cpus"] for core in found["cores"]] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert checks.described(found) == (
        "4 cores, with 8 CPUs in all, on 2 nodes (0, 1), in 2 groups that share a cache, a quota of 2.5; "
        "3 threads by default"
    )


@needs_engine
def test_cores_of_this_machine() -> None:
    finding = next(finding for finding in run_checks() if finding.name == "cores")
    assert finding.level is Level.OK
    assert re.match(r"\d+ cores?.*; \d+ threads? by default", finding.found)
    document = topology()
    assert document is not None and document["usable_cores"] >= 1
