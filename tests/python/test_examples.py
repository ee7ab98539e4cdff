"""The examples in docstrings run, and what is public in the newer parts has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest
import torch  # noqa: F401  # the examples need it

# Modules all of whose public functions and classes show how they are used.
WITH_EXAMPLES = (
    "thresher.dashboard.reporter",
    "thresher.measure.benchmark",
    "thresher.measure.bottlenecks",
    "thresher.measure.latency",
    "thresher.measure.memory",
    "thresher.measure.profiling",
    "thresher.ops",
    "thresher.ops.extend",
    "thresher.ops.fuse",
    "thresher.ops.layout",
    "thresher.packages",
    "thresher.zoo",
)
# What such functions give; its example is theirs.
RESULTS = {"OperatorPackage", "BenchmarkResult", "BenchmarkRow", "Bottleneck", "MemoryReport"}


@pytest.mark.parametrize("name", ["thresher.passes", *WITH_EXAMPLES])
def test_examples(name: str) -> None:
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        runner.run(test, clear_globs=False)  # TorchDynamo keeps names in there, and takes them out itself
    assert runner.tries > 0 and runner.failures == 0


def lacking(module: Any) -> list[str]:
    """Public functions and classes that a module defines without an example."""
    import thresher

    public = {*getattr(module, "__all__", ()), *thresher.__all__} - RESULTS
    found = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name not in public:
            continue
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
        if (inspect.isfunction(value) or inspect.isclass(value)) and not examples:
            found.append(name)
    return found


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_what_is_public_has_an_example(name: str) -> None:
    assert lacking(importlib.import_module(name)) == []


def test_a_missing_example_is_found() -> None:
    module = importlib.import_module("thresher.measure.latency")
    text, module.Latency.__doc__ = module.Latency.__doc__, "How long calls took."
    try:
        assert lacking(module) == ["Latency"]
    finally:
        module.Latency.__doc__ = text
