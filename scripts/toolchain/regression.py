"""The regression gate: several runs of one model now against those of last time, judged by `thresher check`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from . import environments, wheel
from .environments import RUNTIME
from .layout import ROOT
from .native import Flavour
from .process import ToolchainError, note, run
from .tests import OFFLINE

WORKLOAD = ROOT / "bench" / "regression.py"
RUNS = 7


def run_gate(flavour: Flavour, folder: Path) -> None:
    """Measures, compares with FOLDER/last, and keeps the new runs there if they are not slower.

    Args:
        flavour: what to build.
        folder: kept from one time to the next. What is too slow stays in FOLDER/now and never becomes the measure.

    Raises:
        ToolchainError: a step or an operator became slower than its limit and the noise, or a run failed.
    """
    python = environments.install_wheel(RUNTIME, wheel.build_wheel(flavour))
    now = folder / "now"
    shutil.rmtree(now, ignore_errors=True)
    now.mkdir(parents=True)
    for number in range(RUNS):
        profile: list[str | Path] = [python, "-m", "thresher", "profile"]
        profile += ["-o", now / f"{number}.json", WORKLOAD]
        run(profile, cwd=ROOT, environment=OFFLINE)
    judge(python, folder / "last", now)
    shutil.rmtree(folder / "last", ignore_errors=True)
    now.replace(folder / "last")


def judge(python: Path, last: Path, now: Path) -> None:
    """Compares two folders of reports.

    Runs of another machine cannot be compared: that is said, and the new ones are what the next are compared with.

    Raises:
        ToolchainError: too slow, or not comparable for another reason.
    """
    before = sorted(last.glob("*.json"))
    if not before:
        note(f"{last} holds no runs; those of now are what the next are compared with")
        return
    verdict = now / "verdict.check"
    reports = sorted(now.glob("*.json"))
    command = [python, "-m", "thresher", "check", *before, "--against", *reports, f"--json={verdict}"]
    command += ["--accept", "thresher"]
    code = subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode
    if code == 0:
        return
    try:
        found = json.loads(verdict.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    if code == 2 and found.get("differences"):
        note(f"not judged, since the machines differ: {'; '.join(map(str, found['differences']))}")
        return
    raise ToolchainError(
        f"Expected times like those in {last}; `thresher check` ended with code {code}, its table is above. Mend what "
        f"became slower; if it is meant, remove {last}."
    )
