"""The examples in docstrings run, and what is public in the newer parts has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest
import torch  # noqa: F401  # the examples need it

# Packages all of whose public functions and classes show how they are used, and names of `thresher` that do.
PACKAGES = ("thresher.dashboard", "thresher.ops", "thresher.packages", "thresher.zoo")
NAMES = (
    "Latency",
    "MemoryProfiler",
    "PerformanceProfiler",
    "benchmark",
    "conv",
    "fuse_ops",
    "optimize_layout",
    "profile",
)
# What such functions give or take; its example is theirs.
RESULTS = {"Builder", "Entry", "OperatorPackage", "Reporter", "Value"}
# Where these names are defined.
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
    "thresher.signatures.operator",
    "thresher.zoo",
)


# Those of the zoo load its models, which test_zoo.py does, too.
SLOW = ("thresher.zoo",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else [])
        for name in ("thresher.passes", *WITH_EXAMPLES)
    ],
)
def test_examples(name: str) -> None:
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        runner.run(test, clear_globs=False)  # TorchDynamo keeps names in there, and takes them out itself
    assert runner.tries > 0 and runner.failures == 0


def shown() -> list[tuple[str, Any]]:
    """What is to have an example, by its name."""
    import thresher

    found = [(f"thresher.{name}", getattr(thresher, name)) for name in NAMES]
    for package in map(importlib.import_module, PACKAGES):
        found += [(f"{package.__name__}.{name}", getattr(package, name)) for name in package.__all__]
    return [
        (name, value)
        for name, value in found
        if value.__name__ not in RESULTS and not (inspect.isclass(value) and issubclass(value, Exception))
    ]


def lacking() -> list[str]:
    """What has no example, or one that nobody runs."""
    parser = doctest.DocTestParser()
    return [
        name
        for name, value in shown()
        if not parser.get_examples(inspect.getdoc(value) or "") or value.__module__ not in WITH_EXAMPLES
    ]


def test_what_is_public_has_an_example() -> None:
    assert len(shown()) > 25 and lacking() == []


def test_a_missing_example_is_found() -> None:
    module = importlib.import_module("thresher.measure.latency")
    text, module.Latency.__doc__ = module.Latency.__doc__, "How long calls took."
    try:
        assert lacking() == ["thresher.Latency"]
    finally:
        module.Latency.__doc__ = text
