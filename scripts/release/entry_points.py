"""Loads every entry point of an installed Thresher. Run with `python -I` in the environment that has it.

Where PyTorch is not installed, what imports it is looked up in the source instead.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sys
from pathlib import Path


def defines(module: str, name: str) -> bool:
    """Says whether a module has a top-level definition of that name, without importing it."""
    package, _, last = module.rpartition(".")
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    sources = [folder / f"{last}.py" for folder in folders]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.is_file()]
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for text in texts for node in ast.parse(text).body)


found = importlib.metadata.distribution("thresher").entry_points
if not found:
    sys.exit("Expected entry points; the installed thresher has none.")
for point in found:
    module, _, attribute = point.value.partition(":")
    try:
        how = "loads" if callable(point.load()) else sys.exit(f"{point.name} = {point.value}: expected a function.")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        if not defines(module, attribute):
            sys.exit(f"{point.group}: {point.name} = {point.value}: there is no such function.")
        how = "is defined (needs PyTorch)"
    print(f"{point.group} {point.name} {how}")
