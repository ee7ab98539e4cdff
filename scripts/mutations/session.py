"""`nox -s mutate`: every planted fault has to be seen by the tests that it names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolchain import environments, native, wheel
from toolchain.environments import TESTS
from toolchain.layout import BUILD
from toolchain.native import Flavour
from toolchain.process import ToolchainError, note, write_json

from .mutation import Mutation, choose
from .tree import Tree

FOLDER = BUILD / "mutations"
PROGRAM = "thresher_tests"


def run_mutations(names: list[str], *, only: str | None, list_only: bool, json_file: Path | None) -> None:
    """Plants faults one at a time, builds what they change and runs the tests that they name.

    Args:
        names: of mutations; none: all.
        only: "cpp" or "python" for those alone.
        list_only: whether to print them and do nothing.
        json_file: where to write what became of each.

    Raises:
        ToolchainError: a fault survived, a patch does not apply, or a named test fails without a fault.
    """
    chosen = choose(names, only)
    if list_only:
        for mutation in chosen:
            print(f"{mutation.name:28} {mutation.effect}")
        return
    tree = Tree(FOLDER)
    flavour = Flavour()
    # Where the clone's own objects are, so that the compiler's cache knows them.
    objects = tree.folder / "build" / flavour.objects.name
    if any(not mutation.is_cpp for mutation in chosen):
        tree.link_engine(environments.install_wheel(TESTS, wheel.build_wheel(flavour)))
    if any(mutation.is_cpp for mutation in chosen):
        native.configure_alone(flavour, objects, tree.folder, THRESHER_BUILD_TESTS=True)

    def passing(tests: Sequence[str], *, cpp: bool) -> list[str]:
        if not cpp:
            return tree.passing(TESTS.python, tests)
        native.build_in(objects, PROGRAM, environment=native.object_sharing(flavour, tree.folder))
        return tree.passing_cpp(objects / PROGRAM, tests)

    for cpp in (False, True):
        if tests := sorted({test for mutation in chosen if mutation.is_cpp == cpp for test in mutation.tests}):
            require_passing(tests, passing(tests, cpp=cpp))
    results = judge(tree, chosen, lambda mutation: passing(mutation.tests, cpp=mutation.is_cpp))
    write_json(json_file, [{"name": name, "survived": tests} for name, tests in results.items()])
    if survivors := {name: tests for name, tests in results.items() if tests}:
        lines = [f"  {name}: {', '.join(tests)} passed" for name, tests in survivors.items()]
        raise ToolchainError(
            "\n".join(["These planted faults were not seen by the tests that name them:", *lines])
            + "\nMake the tests see them (tests/mutations/NAME.patch says what a user would get)."
        )
    note(f"{len(results)} faults were planted, and each was seen by every test that it names")


def require_passing(tests: Sequence[str], passing: Sequence[str]) -> None:
    """Stops where a test fails while nothing is planted, so that its failures prove nothing.

    Raises:
        ToolchainError: names them.
    """
    if failed := sorted(set(tests) - set(passing)):
        raise ToolchainError(
            f"expected {', '.join(failed)} to pass while nothing is planted, got a failure; mend that first: "
            "`nox -s tests` shows it."
        )


def judge(tree: Tree, chosen: Sequence[Mutation], passing: Callable[[Mutation], list[str]]) -> dict[str, list[str]]:
    """Plants each fault and asks which of its tests pass nevertheless.

    Args:
        tree: where.
        chosen: what.
        passing: builds and runs the tests of a mutation; returns those that pass.

    Returns:
        Names of tests that should have failed, by mutation.

    Raises:
        ToolchainError: a patch does not apply.
    """
    results: dict[str, list[str]] = {}
    for mutation in chosen:
        start = time.monotonic()
        with tree.planted(mutation):
            results[mutation.name] = passing(mutation)
        seen = "SURVIVED" if results[mutation.name] else "seen"
        note(f"{mutation.name}: {seen} ({time.monotonic() - start:.0f} s)")
    return results
