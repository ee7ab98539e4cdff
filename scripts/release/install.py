"""Wheels in empty environments of their own version of Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolchain import environments, wheelhouse
from toolchain.environments import MODEL, PROOF, RUNTIME
from toolchain.layout import BUILD, PYTHON_TAG, SCRIPTS, scratch_folder
from toolchain.platforms import of_this_machine
from toolchain.process import run

from .content import WheelFile, minor_of
from .finding import Problem, Verdict
from .interpreter import VERSIONS, Interpreter
from .rebuild import create

CHECK = SCRIPTS / "check_wheel.py"
ENTRY_POINTS = SCRIPTS / "release" / "entry_points.py"


def prove(wheel: Path, interpreter: Interpreter) -> None:
    """Installs a wheel twice, without and with what it asks for, imports it and loads its entry points.

    Raises:
        ToolchainError: it does not install, import or work.
    """
    with scratch_folder() as scratch:
        folder = Path(scratch) / "venv"
        create(folder, interpreter)
        python = folder / "bin" / "python"
        pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        run([*pip, "--no-deps", wheel])
        run([python, "-I", CHECK], cwd=folder, hint="The import must work even where its dependencies are missing.")
        # Those of the Python that runs this are kept, for machines without a network.
        kept = wheelhouse.install_arguments("runtime") if interpreter.tag == PYTHON_TAG else []
        wanted: list[str | Path] = ["--require-hashes", "-r", environments.lock_file(PROOF.name)]
        environments.run_pip(python, "install", ["--quiet", *kept, *wanted])
        run([python, "-m", "pip", "check"], hint="What the wheel asks for and the lock `proof` do not fit.")
        run([python, "-I", CHECK], cwd=folder)
        run([python, "-I", ENTRY_POINTS], cwd=folder)
        run([folder / "bin" / "thresher", "doctor"], cwd=folder)
    if interpreter.tag == PYTHON_TAG and environments.is_made(MODEL):
        run([environments.install_wheel(RUNTIME, wheel), "-I", ENTRY_POINTS], cwd=BUILD)


def check(
    wheels: Sequence[WheelFile], found: Sequence[Interpreter], missing: Sequence[str], *, strict: bool
) -> Verdict:
    """Proves the wheel of each version of Python.

    Args:
        wheels: what to prove; those of other architectures are named as not here.
        found: the interpreters on this machine.
        missing: the versions without one.
        strict: whether a missing version is a fault, since it was asked for by name.
    """
    machine = of_this_machine().machine
    problems = []
    said = []
    absent = [f"an interpreter for {version}" for version in missing if not strict]
    for version in missing if strict else ():
        cure = f"put python{version} on the path, or leave {version} out of --python"
        problems.append(Problem(f"a CPython {version}, as --python says", "none on PATH or in pyenv's folder", cure))
    for interpreter in found:
        of_version = [wheel for wheel in wheels if wheel.tags[0] == interpreter.tag]
        own = [wheel for wheel in of_version if wheel.tags[-1].endswith(machine)]
        if not own:
            if strict:
                cure = f"nox -s release -- --check --python {interpreter.version}, without --no-rebuild"
                problems.append(Problem(f"a wheel for Python {interpreter.version} in dist/", "none", cure))
            else:
                absent.append(f"a wheel for {interpreter.version}")
            continue
        for wheel in own:
            prove(wheel.path, interpreter)
            said.append(
                f"{interpreter.version}: installs, imports, entry points load, doctor is content ({wheel.name})"
            )
    foreign = [wheel.name for wheel in wheels if not wheel.tags[-1].endswith(machine)]
    absent += [f"a machine for {name}" for name in foreign]
    unknown = [w.name for w in wheels if (m := minor_of(w.tags[0])) and m not in VERSIONS]
    problems += [Problem(f"a version of Python out of {', '.join(VERSIONS)}", name, "see VERSIONS") for name in unknown]
    return Verdict("\n".join(said) or "nothing was installed", problems, absent)
