"""Planted faults: every patch fits the sources, and some are planted to see the tests that they name fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

# ruff: noqa: E402 - the scripts are found after their folder is on the path
from mutations import mutation as mutations
from mutations.mutation import choose, read
from mutations.session import judge, require_passing
from mutations.tree import Tree
from toolchain.process import ToolchainError

# Quick ones: neither a compiler nor PyTorch is needed. `nox -s mutate` plants all.
QUICK = ["verdict_nan", "doctor_verdict", "image_ignores_its_base"]
HEAD = "Effect: something\nFails: {test}\n\n--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-old\n+new\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A copy of the tree, beside whose Python files the compiled parts are those that are tested."""
    found = Tree(tmp_path_factory.mktemp("mutations") / "tree")
    found.link_engine(Path(sys.executable))
    return found


@pytest.mark.parametrize("name", [mutation.name for mutation in choose([])])
def test_every_patch_fits(tree: Tree, name: str) -> None:
    (mutation,) = choose([name])
    before = [(tree.folder / file).read_bytes() for file in mutation.files]
    with tree.planted(mutation):
        assert all((tree.folder / file).read_bytes() != old for file, old in zip(mutation.files, before, strict=True))
    assert [(tree.folder / file).read_bytes() for file in mutation.files] == before
    for test in mutation.tests:
        if mutation.is_cpp:
            suite, case = test.split(".")
            suite, case = suite.rpartition("/")[2], case.partition("/")[0]  # without a parameter
            found = (path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "cpp").rglob("*.cc"))
            assert any(f"({suite}, {case})" in text for text in found), f"{test} is not there"
        else:
            file, function = test.split("::")
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), f"{test} is not there"


def test_the_quick_ones_are_seen(tree: Tree) -> None:
    chosen = choose(QUICK)
    results = judge(tree, chosen, lambda mutation: tree.passing(Path(sys.executable), mutation.tests))
    assert results == {mutation.name: [] for mutation in chosen}


def test_a_fault_that_no_test_sees_survives(tree: Tree, tmp_path: Path) -> None:
    """A fault in a comment: the judge has to say so."""
    text = (ROOT / "scripts/stage_test/verdict.py").read_text(encoding="utf-8").splitlines()
    name, file = "tests/python/test_stage_verdict.py::test_statistics", "scripts/stage_test/verdict.py"
    change = f"--- a/{file}\n+++ b/{file}\n@@ -1,3 +1,3 @@\n"
    change += f"-{text[0]}\n+{text[0]}  # a fault\n {text[1]}\n {text[2]}\n"
    patch = tmp_path / "silent.patch"
    patch.write_text(f"Effect: none\nFails: {name}\n\n{change}")
    results = judge(tree, [read(patch)], lambda mutation: tree.passing(Path(sys.executable), mutation.tests))
    assert results == {"silent": [name]}


def test_a_test_that_fails_anyway_proves_nothing() -> None:
    require_passing(["a", "b"], ["b", "a"])
    with pytest.raises(ToolchainError, match="expected a to pass while nothing is planted"):
        require_passing(["a", "b"], ["b"])


def test_a_patch_that_does_not_fit_is_an_error(tree: Tree, tmp_path: Path) -> None:
    patch = tmp_path / "old.patch"
    patch.write_text(HEAD.format(test="tests/python/test_draw.py::test_x", file="README.md"))
    with (
        pytest.raises(ToolchainError, match=r"old\.patch does not fit the sources any more"),
        tree.planted(read(patch)),
    ):
        pass


def test_a_test_that_is_not_there_is_an_error(tree: Tree) -> None:
    with pytest.raises(ToolchainError, match="expected tests that pass or fail, got code 4"):
        tree.passing(Path(sys.executable), ["tests/python/test_stage_verdict.py::test_nothing"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Fails: tests/python/test_a.py::test_b\n\n--- a/x\n+++ b/x\n", "a head of one line"),
        ("Effect: something\n\n--- a/x\n+++ b/x\n", "a head of one line"),
        ("Effect: something\nFails: Suite.Name\n\nno patch\n", "and 0 files"),
        (HEAD.format(test="tests/python/test_a.py::test_b", file="src/a.cc"), "Suite.Name of GoogleTest"),
        (HEAD.format(test="Suite.Name", file="python/a.py"), "tests/FILE.py::TEST"),
    ],
)
def test_a_wrong_head_is_refused(tmp_path: Path, text: str, message: str) -> None:
    patch = tmp_path / "wrong.patch"
    patch.write_text(text)
    with pytest.raises(ToolchainError, match=message):
        read(patch)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ToolchainError, match="got no_such_fault; `--list` prints them"):
        choose(["no_such_fault"])
    assert {mutation.name for mutation in choose([], "cpp")} | {m.name for m in choose([], "python")} == {
        path.stem for path in mutations.FOLDER.glob("*.patch")
    }
