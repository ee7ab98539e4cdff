"""The workflows do nothing that cannot be done on any machine: their steps are nox calls that exist and parse."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytest.importorskip("nox")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
BOOTSTRAP = "python3 -m venv .venv && .venv/bin/pip install nox"
INSTALLER = re.compile(r"sudo bash scripts/install_build_deps\.sh -y( --tests| --containers)?")
NOX = ".venv/bin/nox -s "
# By commit: whoever owns an action can move its tags.
ACTIONS = {
    "actions/attest-build-provenance@e8998f949152b193b063cb0ec769d69d929409be",
    "actions/cache@5a3ec84eff668545956fd18022155c47e93e2684",
    "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683",
    "actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093",
    "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065",
    "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02",
    "pypa/gh-action-pypi-publish@76f52bc884231f62b9a034ebfe128415bbaabdfc",
}
# Who may write what; all else reads.
WRITERS = {("release", "publish"): {"id-token", "attestations"}}

Parsers = Callable[[str], tuple[ArgumentParser, bool] | None]


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    """Returns the option parser of a session of the noxfile, and whether it passes other arguments on."""
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec and spec.loader
    noxfile: Any = importlib.util.module_from_spec(spec)
    sys.modules["noxfile"] = noxfile
    spec.loader.exec_module(noxfile)
    sessions = registered(noxfile)

    def parser(name: str) -> tuple[ArgumentParser, bool] | None:
        if name not in sessions:
            return None
        kept: list[tuple[ArgumentParser, bool]] = []

        def keep(session: object, parser: ArgumentParser, action: object, **options: bool) -> None:
            kept.append((parser, options.get("passes_on", False)))

        before, noxfile.carry_out = noxfile.carry_out, keep
        try:
            sessions[name](SimpleNamespace(posargs=[]))
        finally:
            noxfile.carry_out = before
        return kept[0]

    yield parser
    del sys.modules["noxfile"]
    sys.path.remove(str(ROOT / "scripts"))


def registered(noxfile: ModuleType) -> dict[str, Callable[..., object]]:
    """Returns the functions of the sessions by the names that nox knows them by."""
    from nox._decorators import Func

    functions = [value for value in vars(noxfile).values() if isinstance(value, Func)]
    return {function.name or function.func.__name__: function.func for function in functions}


def combinations(job: dict[str, Any]) -> list[dict[str, str]]:
    """Lists what the expressions of a job's matrix stand for."""
    matrix = job.get("strategy", {}).get("matrix", {})
    return [dict(zip(matrix, map(str, values), strict=True)) for values in itertools.product(*matrix.values())] or [{}]


def faults(name: str, workflow: dict[Any, Any], parsers: Parsers) -> list[str]:
    """Lists what breaks a rule in a workflow."""
    found = []
    if workflow.get("permissions") != {"contents": "read"}:
        found.append(f"permissions: expected contents: read for the whole; got {workflow.get('permissions')}")
    if "concurrency" not in workflow:
        found.append("concurrency is missing")
    for job_name, job in workflow["jobs"].items():
        where = f"{job_name}: "
        if "timeout-minutes" not in job:
            found.append(f"{where}timeout-minutes is missing")
        granted = {key for key, value in job.get("permissions", {}).items() if value != "read"}
        if granted - WRITERS.get((name, job_name), set()):
            found.append(f"{where}may write {', '.join(sorted(granted))}")
        for step in job["steps"]:
            found += [where + fault for fault in step_faults(step, job, parsers)]
    return found


def step_faults(step: dict[str, Any], job: dict[str, Any], parsers: Parsers) -> list[str]:
    if "uses" in step:
        if step["uses"] not in ACTIONS:
            return [f"the action {step['uses']} is not on the list"]
        if (
            step["uses"].startswith("actions/checkout@")
            and step.get("with", {}).get("persist-credentials") is not False
        ):
            return ["checkout leaves its token behind: persist-credentials: false is missing"]
        return []
    line = step["run"].strip()
    if line == BOOTSTRAP or INSTALLER.fullmatch(line):
        return []
    if not line.startswith(NOX) or "\n" in line:
        return [f"neither the bootstrap nor one nox call: {line}"]
    found = []
    for values in combinations(job):
        text = line
        for key, value in values.items():
            text = text.replace("${{ matrix." + key + " }}", value)
        if "${{" in text:
            return [f"an expression that is no value of the matrix is pasted into the shell: {line}"]
        found += call_faults(text, parsers)
    return sorted(set(found))


def call_faults(line: str, parsers: Parsers) -> list[str]:
    parts = shlex.split(line)
    if set(re.sub(r'"\$\w+"', "", line)) & set(";&|<>`$()"):
        return [f"more than a nox call: {line}"]
    session, rest = parts[2], parts[3:]
    if rest[:1] not in ([], ["--"]):
        return [f"expected `--` before the options of a session: {line}"]
    known = parsers(session)
    if known is None:
        return [f"there is no session {session}"]
    parser, passes_on = known
    try:
        options, strange = parser.parse_known_args(rest[1:])
    except SystemExit:
        return [f"its options do not parse: {line}"]
    if strange and not passes_on:
        return [f"session {session} does not know {' '.join(strange)}"]
    if session == "release":
        from release import interpreter
        from release import session as release_session
        from toolchain.process import ToolchainError

        try:
            release_session.selected(options.only)
            interpreter.requested(options.python)
        except ToolchainError as error:
            return [str(error)]
    return []


def load(name: str) -> dict[Any, Any]:
    content = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_lint_finds_what_is_no_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from toolchain import environments, linting
    from toolchain.process import is_offline

    if is_offline() and not environments.is_made(environments.CHECKS):
        pytest.skip("needs the environment `checks`, and may not use the network")
    environments.ensure(environments.CHECKS)
    assert subprocess.run(linting.schema_check(linting.workflow_files()), check=False).returncode == 0
    planted = load("ci")
    planted["jobs"]["build"]["timeout"] = 5
    bad = tmp_path / "bad.yml"
    bad.write_text(yaml.safe_dump({**{k: v for k, v in planted.items() if k is not True}, "on": "push"}))
    done = subprocess.run(linting.schema_check([bad]), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "timeout" in done.stdout


@pytest.mark.parametrize("name", sorted(path.stem for path in WORKFLOWS.iterdir()))
def test_a_workflow_keeps_the_rules(name: str, parsers: Parsers) -> None:
    assert faults(name, load(name), parsers) == []


def test_the_three_workflows_are_there() -> None:
    assert {path.name for path in WORKFLOWS.iterdir()} == {"ci.yml", "nightly.yml", "release.yml"}


def test_the_readme_starts_as_the_workflows_do() -> None:
    assert BOOTSTRAP in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_version_of_python_is_released(parsers: Parsers) -> None:
    from release.interpreter import VERSIONS

    assert load("release")["jobs"]["wheels"]["strategy"]["matrix"]["python"] == list(VERSIONS)


def test_only_checked_files_are_published() -> None:
    jobs = load("release")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"wheels", "cuda"}
    assert not any("run" in step for step in jobs["publish"]["steps"]), "nothing is built where the identity is"
    assert jobs["publish"]["environment"] == "release"


def step(**content: Any) -> Callable[[dict[Any, Any]], None]:
    return lambda workflow: workflow["jobs"]["build"]["steps"].append(content)


def on_job(**content: Any) -> Callable[[dict[Any, Any]], None]:
    return lambda workflow: workflow["jobs"]["build"].update(content)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (step(run="cmake --build build"), "neither the bootstrap nor one nox call"),
        (step(run="pip install thing"), "neither the bootstrap nor one nox call"),
        (step(run=".venv/bin/nox -s build\nmake"), "neither the bootstrap nor one nox call"),
        (step(run=".venv/bin/nox -s build make"), "expected `--`"),
        (step(run=".venv/bin/nox -s build && make"), "more than a nox call"),
        (step(run=".venv/bin/nox -s build -- --host; make"), "more than a nox call"),
        (step(run=".venv/bin/nox -s biuld"), "there is no session biuld"),
        (step(run=".venv/bin/nox -s build -- --platfrm arm"), "does not know --platfrm"),
        (step(run=".venv/bin/nox -s build -- --build-type Fast"), "do not parse"),
        (step(run=".venv/bin/nox -s release -- --check --only sizes"), "got 'sizes'"),
        (step(run=".venv/bin/nox -s release -- --check --python 2.7"), "got '2.7'"),
        (step(run=".venv/bin/nox -s build -- --platform ${{ github.head_ref }}"), "pasted into the shell"),
        (step(uses="somebody/builds@v1"), "not on the list"),
        (step(uses="actions/checkout@main"), "not on the list"),
        (step(uses="actions/checkout@v4"), "not on the list"),
        (step(uses="actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683"), "persist-credentials"),
        (on_job(permissions={"contents": "write"}), "may write contents"),
        (lambda workflow: workflow["jobs"]["build"].pop("timeout-minutes"), "timeout-minutes"),
        (lambda workflow: workflow.pop("permissions"), "permissions"),
        (lambda workflow: workflow.update(permissions="write-all"), "permissions"),
        (lambda workflow: workflow.pop("concurrency"), "concurrency"),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[dict[Any, Any]], None], message: str, parsers: Parsers) -> None:
    workflow = load("ci")
    before = faults("ci", workflow, parsers)
    planted = copy.deepcopy(workflow)
    plant(planted)
    fresh = [fault for fault in faults("ci", planted, parsers) if fault not in before]
    assert len(fresh) == 1 and message in fresh[0], fresh


def test_a_matrix_stands_for_each_of_its_values(parsers: Parsers) -> None:
    workflow = load("ci")
    job = workflow["jobs"]["build"]
    job["strategy"]["matrix"]["platform"] = ["x86", "vax"]
    job["steps"].append({"run": ".venv/bin/nox -s build -- --build-type ${{ matrix.platform }}"})
    found = [fault for fault in faults("ci", workflow, parsers) if "do not parse" in fault]
    assert len(found) == 2, "neither is a build type"
