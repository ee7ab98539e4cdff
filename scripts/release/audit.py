"""What other projects' tools say of a wheel: auditwheel, twine, check-wheel-contents, and CycloneDX's own schema."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toolchain import cuda, native, sbom, wheel
from toolchain.environments import RELEASE, TOOLS, script
from toolchain.layout import SCRIPTS
from toolchain.process import captured

from .content import WheelFile
from .finding import Problem, Verdict

VALIDATOR = SCRIPTS / "release" / "validate_sbom.py"


def check_tags(wheels: Sequence[WheelFile]) -> Verdict:
    """Lets auditwheel read from the symbols which tag is true, and compares it with the tag in the name.

    A wheel whose name promises an older system than its symbols need breaks there; one that promises a newer one shuts
    systems out.
    """
    problems = []
    said = []
    for built in wheels:
        command: list[str | Path] = [script(TOOLS, "auditwheel"), "show", "--json", built.path]
        shown = json.loads(captured(command, environment=native.tool_environment()))
        problems += judge_tags(built, shown)
        said.append(f"{shown['sym_tag']}: {built.name}")
    return Verdict("\n".join(said), problems)


def judge_tags(built: WheelFile, shown: dict[str, object]) -> list[Problem]:
    """Judges what `auditwheel show --json` says of a wheel."""
    problems = []
    symbols = str(shown["sym_tag"])
    # Equivalent names of one policy stand side by side, such as manylinux_2_17 and manylinux2014.
    tags = built.tags[-1].split(".")
    if symbols not in tags:
        cure = "let auditwheel name it: `nox -s build`"
        problems.append(
            Problem(f"the platform tag {symbols}, which the symbols ask for, in {built.name}", tags[0], cure)
        )
    said = built.information("WHEEL").decode().splitlines()
    inside = {line.partition(": ")[2].split("-")[-1] for line in said if line.startswith("Tag: ")}
    if inside != set(tags):
        found = ", ".join(sorted(inside)) or "none"
        problems.append(Problem(f"the tags of {built.name} inside it, too", found, "build it again"))
    is_cuda = built.name.startswith("thresher_cuda-")
    allowed = cuda.EXCLUDED if is_cuda else wheel.PYTORCH_LIBRARIES
    libraries = shown["external_libs"]
    assert isinstance(libraries, dict)
    strange = sorted(name for name in libraries if not any(fnmatch.fnmatch(name, pattern) for pattern in allowed))
    if strange:
        cure = "link it statically, or let auditwheel bring it along"
        problems.append(Problem(f"{built.name} to need no library of its own", ", ".join(strange), cure))
    return problems


def check_twine(wheels: Sequence[WheelFile]) -> Verdict:
    """Lets twine judge the metadata and the description as a package index does."""
    return _judged([script(RELEASE, "twine"), "check", "--strict"], wheels, "PASSED")


def check_contents(wheels: Sequence[WheelFile]) -> Verdict:
    """Lets check-wheel-contents look for files that do not belong into a wheel."""
    verdicts = []
    for name in ("thresher", "thresher_cuda"):
        of_package = [built for built in wheels if built.name.startswith(f"{name}-")]
        if of_package:
            # The third-party texts below licenses/ are the reason for duplicates, if any.
            verdicts.append(
                _judged(
                    [script(RELEASE, "check-wheel-contents"), "--no-config", f"--toplevel={name}"], of_package, "OK"
                )
            )
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    return Verdict("; ".join(verdict.found for verdict in verdicts), problems)


def _judged(command: Sequence[str | Path], wheels: Sequence[WheelFile], praise: str) -> Verdict:
    """Runs a tool on wheels; every line it prints that is no praise is a problem."""
    parts = [str(part) for part in (*command, *(built.path for built in wheels))]
    done = subprocess.run(parts, capture_output=True, text=True, check=False)
    name = Path(parts[0]).name
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).strip()
    if done.returncode == 0:
        return Verdict(f"{name}: {len(wheels)} {praise}")
    cure = "the tool's message names what to mend"
    return Verdict(name, [Problem(f"{name} to pass", text or f"exit code {done.returncode}", cure)])


def check_sboms(wheels: Sequence[WheelFile]) -> Verdict:
    """Writes the SBOM of each wheel beside it, and compares both with CycloneDX's schema."""
    problems = []
    paths = []
    for built in wheels:
        # The one inside has to be valid by itself: tools read it from installed packages.
        inside = built.path.with_suffix(".inside.cdx.json")
        beside = sbom.write_beside(built.path)
        inside.write_bytes(built.information(sbom.name_of(built.path)))
        try:
            for path, where in ((inside, f"inside {built.name}"), (beside, beside.name)):
                done = subprocess.run(
                    [str(RELEASE.python), str(VALIDATOR), str(path)], capture_output=True, text=True, check=False
                )
                if done.returncode != 0:
                    words = (done.stdout + done.stderr).strip()
                    cure = "mend scripts/toolchain/sbom.py"
                    problems.append(Problem(f"a valid CycloneDX 1.6 document {where}", words, cure))
        finally:
            inside.unlink()
        paths.append(beside)
    counts = [len(sbom.names(json.loads(path.read_text(encoding="utf-8")))) for path in paths]
    said = "\n".join(f"{count} components: {path.name}" for path, count in zip(paths, counts, strict=True))
    return Verdict(said, problems)
