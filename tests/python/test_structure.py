"""How the parts of the source may use each other: no Python file in a circle, no C++ folder but as the table says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "thresher"
TABLE = ROOT / "docs" / "architecture.md"


# ---- Python: who imports whom ----


def modules(root: Path) -> dict[str, Path]:
    """The files of a folder by the names they are imported by; the engine's stub stands for the engine."""
    inside = root.parent if (root / "__init__.py").exists() else root
    found = {}
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        parts = path.relative_to(inside).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports anywhere in it, also inside functions and for type checkers, and on which line."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield ast.unparse(node.args[0]).strip("'"), node.lineno


def imports(files: Mapping[str, Path]) -> dict[str, dict[str, int]]:
    """For each file the files of the same folder that it imports, with a line where it does."""
    graph: dict[str, dict[str, int]] = {name: {} for name in files}
    for name, path in files.items():
        for target, line in imported(name, path):
            module = target if target in files else target.rpartition(".")[0]
            if module in files and module != name:
                graph[name].setdefault(module, line)
    return graph


def circle(graph: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A shortest way from a file back to itself; empty where there is none."""
    shortest: list[str] = []
    for start in graph:
        ways, seen = [[start]], {start}
        for way in ways:
            if start in graph[way[-1]] and (not shortest or len(way) < len(shortest)):
                shortest = way
            new = [target for target in graph[way[-1]] if target not in seen]
            seen.update(new)
            ways += [[*way, target] for target in new]
    return shortest


def described(graph: Mapping[str, Mapping[str, int]], way: list[str]) -> str:
    steps = zip(way, [*way[1:], way[0]], strict=True)
    return "".join(f"\n  {name} line {graph[name][target]} imports {target}" for name, target in steps)


@pytest.mark.parametrize("folder", ["python/thresher", "scripts", "bench"])
def test_no_files_import_each_other_in_a_circle(folder: str) -> None:
    files = modules(ROOT / folder)
    graph = imports(files)
    assert sum(map(len, graph.values())) >= len(files) // 2 > 0, "the imports were not found"
    if way := circle(graph):
        pytest.fail(f"expected no circle of imports in {folder}, got:{described(graph, way)}")


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.apart import x\n")
    (package / "apart.py").write_text("x = 1\n")
    (package / "first.py").write_text("def f():\n    from package import apart, second\n")
    (package / "second.py").write_text("if TYPE_CHECKING:\n    from .third import y\n")
    (package / "third.py").write_text('import importlib\n\nimportlib.import_module("package.first")\n')
    graph = imports(modules(package))
    assert circle(graph) == ["package.first", "package.second", "package.third"]
    assert "package.second line 2 imports package.third" in described(graph, circle(graph))
    (package / "third.py").write_text("")
    assert circle(imports(modules(package))) == []


# ---- Python: which package imports which ----

HELPERS = {"fork_lock", "json_text", "whole_file"}
OUTSIDE = {"torch", "numpy"}


def rows_of_python(table: str) -> dict[str, set[str]]:
    """What each package of `python/thresher` may import by the table of docs/architecture.md."""
    rows: dict[str, set[str]] = {}
    for package, uses in re.findall(r"^\| `python/thresher/([\w/]+)` \|[^|]*\|([^|]*)\|$", table, flags=re.MULTILINE):
        names = {name.strip() for name in uses.replace("nothing of ours", "").split(",")} - {""}
        rows[package] = set(rows) | OUTSIDE | {"bindings"} if uses.strip() == "all of the above" else names
    return rows


def package_of(module: str, rows: Iterable[str]) -> str:
    """The row that a module of ours belongs to: the longest that fits."""
    path = module.replace(".", "/").removeprefix("thresher/")
    if path == "_engine":
        return "bindings"
    return max((row for row in rows if path == row or path.startswith(f"{row}/")), key=len, default=path)


def not_in_the_table(rows: Mapping[str, set[str]]) -> list[str]:
    """The imports that the table does not allow; `thresher/__init__.py` hands out names of every package."""
    files = modules(ROOT / "python" / "thresher")
    found = []
    for name, path in files.items():
        own = package_of(name, rows)
        if own in HELPERS or name in ("thresher", "thresher.__main__", "thresher._engine"):
            continue
        if own not in rows:
            found.append(f"{own} has no row")
            continue
        for target, line in imported(name, path):
            module = target if target in files else target.rpartition(".")[0]
            if module in files and module != "thresher":
                used = package_of(module, rows)
            elif target.partition(".")[0] in OUTSIDE:
                used = target.partition(".")[0]
            else:
                continue
            if used not in {own, *rows[own], *HELPERS}:
                found.append(f"{path.relative_to(ROOT)} line {line}: {own} imports {used}")
    return found


def test_packages_use_what_the_table_says() -> None:
    rows = rows_of_python(TABLE.read_text())
    names = set().union(*rows.values())
    assert names <= {*rows, *OUTSIDE, "bindings"}, "the table names what there is not"
    if wrong := not_in_the_table(rows):
        pytest.fail("expected imports as docs/architecture.md allows, got:\n  " + "\n  ".join(wrong))


def test_an_import_that_the_table_lacks_is_found() -> None:
    rows = rows_of_python(TABLE.read_text())
    rows["model"] = rows["model"] - {"tuning"}
    del rows["doctor"]
    found = "\n".join(not_in_the_table(rows))
    assert "model imports tuning" in found
    assert "doctor has no row" in found


# ---- C++: which folder includes which ----


def allowed(table: str) -> dict[str, set[str]]:
    """What each folder of `src/thresher` may include by the table of docs/architecture.md, with what that may."""
    direct: dict[str, set[str]] = {}
    for folder, uses in re.findall(r"^\| `src/thresher/(\w+)` \|[^|]*\|([^|]*)\|$", table, flags=re.MULTILINE):
        names = set(re.findall(r"[\w/.]+", uses.replace("nothing of ours", "").replace("PyTorch", "")))
        direct[folder] = set(direct) if uses.strip() == "all of the above" else names
    everything: dict[str, set[str]] = {}
    for folder, names in direct.items():
        reached, new = set(names), list(names)
        for name in new:
            more = direct.get(name, set()) - reached
            reached |= more
            new += more
        everything[folder] = reached
    return everything


def included(path: Path) -> list[str]:
    return re.findall(r'^#\s*include\s+"thresher/([^"]+)"', path.read_text(), flags=re.MULTILINE)


def forbidden(may: Mapping[str, set[str]]) -> list[str]:
    """The includes that the table does not allow."""
    found = []
    for path in sorted(SOURCE.glob("*/*")):
        if path.suffix not in (".h", ".cc", ".cu"):
            continue
        folder = path.parent.name
        for header in included(path):
            target = header.partition("/")[0]
            if target != folder and not {target, header} & may[folder]:
                found.append(f"{path.relative_to(ROOT)} includes {header}")
    return found


def test_folders_use_what_the_table_says() -> None:
    may = allowed(TABLE.read_text())
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert set(may) == folders
    known = {*folders, *(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.h"))}
    assert not set().union(*may.values()) - known, "the table names what there is not"
    for folder, names in may.items():
        assert folder not in names, f"by the table {folder} may use itself through others: a circle"
    if wrong := forbidden(may):
        pytest.fail("expected includes as docs/architecture.md allows, got:\n  " + "\n  ".join(wrong))


def test_an_include_that_the_table_lacks_is_found() -> None:
    may = allowed(TABLE.read_text())
    may["plan"] = may["plan"] - {"profile"}
    assert "src/thresher/plan/sites.h includes profile/site.h" in forbidden(may)
