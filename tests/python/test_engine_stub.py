"""The type stub of the engine module says what the module has."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import thresher
from thresher import _engine


def _names(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_stub_has_every_name() -> None:
    stub = ast.parse((Path(thresher.__file__).resolve().parent / "_engine.pyi").read_text())
    assert _names(stub.body) == _public(_engine)
    classes = [node for node in stub.body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == {name for name, _ in inspect.getmembers(_engine, inspect.isclass)}
    for node in classes:
        named = {name for name in _names(node.body) if not name.startswith("__")}
        assert named == _public(getattr(_engine, node.name)), node.name
