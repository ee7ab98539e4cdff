#!/usr/bin/env python3
"""Writes docs/api.md, the reference of the Python package, from its docstrings. Imports nothing of it.

python scripts/api_reference.py            # writes the page
python scripts/api_reference.py --check    # exit code 1 if it is not what the docstrings say
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "python"
PAGE = ROOT / "docs" / "api.md"

# What has a section; of each module, what its __all__ names and is neither a module nor in an earlier section.
MODULES = (
    *("thresher", "thresher.ops", "thresher.packages", "thresher.profiler", "thresher.passes", "thresher.cache"),
    *("thresher.tuning", "thresher.zoo", "thresher.dashboard", "thresher.llm", "thresher.serve", "thresher.signatures"),
)
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):")
ITEM = re.compile(r"(\*{0,2}[\w.]+(?:, [\w.]+)*): (.*)")

Definition = ast.FunctionDef | ast.ClassDef


def tree(module: str) -> ast.Module:
    """Parses a module of ours."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    """Whether a dotted name is one of our modules."""
    path = SOURCE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def public(module: str) -> list[str]:
    """The names in a module's __all__; without one, what it defines and does not hide."""
    body = tree(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return [node.name for node in body if isinstance(node, Definition) and not node.name.startswith("_")]


def find(module: str, name: str) -> Definition | None:
    """The definition behind a name, wherever the module has it from; None where it is a value or another's."""
    defined: Definition | None = None
    for node in ast.walk(tree(module)):
        if isinstance(node, Definition) and node.name == name:
            defined = node  # the last one: those before it are overloads
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("thresher"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and is_module(node.module):
                    return find(node.module, alias.name)
    return defined


def signature(node: ast.FunctionDef, name: str, *, method: bool) -> str:
    """How a function is called: names, types and defaults, in lines of at most 100 columns."""
    arguments = node.args
    if method and arguments.args:
        arguments.args = arguments.args[1:]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({ast.unparse(arguments)}){returns}"
    if len(line) <= 100:
        return line
    text = ast.unparse(arguments)
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def prose(docstring: str | None) -> Iterator[str]:
    """A docstring in Google's style as Markdown."""
    inside, items, example = "", False, False
    for line in [*inspect.cleandoc(docstring or "").splitlines(), ""]:
        if line.startswith(">>> ") and not example:
            example = True
            yield "```python"
        if example:
            if line:
                yield line
                continue
            example = False
            yield "```"
        if found := SECTION.fullmatch(line):
            inside = found[1]
            items = inside in ("Args", "Attributes", "Raises")
            yield f"**{inside}**"
            yield ""
        elif not inside or not line.startswith(" "):
            inside = ""
            yield line
        elif items and (found := ITEM.fullmatch(line.strip())) and _depth(line) <= 4:
            yield f"- `{found[1]}`: {found[2]}"
        else:
            yield f"  {line.strip()}" if items else line.strip()


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def entry(node: Definition, name: str, level: int) -> Iterator[str]:
    """The text about a class or function."""
    yield f"{'#' * level} `{name}`"
    yield ""
    if isinstance(node, ast.FunctionDef):
        yield f"```python\n{signature(node, name, method=False)}\n```"
        yield ""
        yield from prose(ast.get_docstring(node))
        yield ""
        return
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    if bases:
        yield f"A `{bases}`."
        yield ""
    yield from prose(ast.get_docstring(node))
    yield ""
    methods: dict[str, ast.FunctionDef] = {}
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__call__"):
            methods[member.name] = member
    for member in methods.values():
        decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
        if "property" in decorators:
            head = f"{member.name}: {ast.unparse(member.returns)}" if member.returns else member.name
        else:
            own = node.name if member.name == "__call__" else f"{node.name}.{member.name}"
            head = signature(member, own, method="staticmethod" not in decorators)
        yield f"```python\n{head}\n```"
        yield ""
        yield from prose(ast.get_docstring(member))
        yield ""


def page() -> str:
    """The whole page."""
    lines = [
        "# API reference",
        "",
        "Written by `python scripts/api_reference.py` from the docstrings. What is not here is not public.",
        "",
    ]
    listed: set[str] = set()
    for module in MODULES:
        body: list[str] = []
        for name in public(module):
            node = None if is_module(f"{module}.{name}") and name != "compile" else find(module, name)
            if node is None or f"{node.name} {ast.dump(node)[:400]}" in listed:
                continue
            listed.add(f"{node.name} {ast.dump(node)[:400]}")
            body += entry(node, f"{module}.{name}", 3)
        lines += [f"## {module}", "", *prose(ast.get_docstring(tree(module))), "", *body]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes docs/api.md from the docstrings of python/thresher.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is not up to date")
    options = parser.parse_args()
    text = page()
    if options.check:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(
            f"{PAGE}: expected what the docstrings say, got something else; do: python {sys.argv[0]}", file=sys.stderr
        )
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
