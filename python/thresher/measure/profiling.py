"""thresher.profile: calls of a model under the profiler, as a folder of files."""

from __future__ import annotations

import csv
import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from thresher import _engine, profiler, startup
from thresher.compiler import CompilerConfig
from thresher.compiler import compile as thresher_compile
from thresher.measure.folder import name_of, new_folder
from thresher.measure.inputs import call_with
from thresher.profiler.analysis import build_report
from thresher.profiler.export import write_text
from thresher.profiler.html import render
from thresher.profiler.trace import read_trace

TRACE, REPORT, PAGE = "trace.thrtrace", "report.json", "report.html"
OPERATORS, LAYERS = "operators.txt", "layers.csv"


def profile(
    model: Callable[..., Any],
    inputs: Any,
    output_dir: str | os.PathLike[str] = "profiles",
    *,
    num_iterations: int = 20,
    warmup_iterations: int = 3,
    config: CompilerConfig | None = None,
) -> Path:
    """Profiles calls of a model and writes what was found: time, memory, operators, layers, a page for a browser.

    >>> import tempfile, torch, thresher
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval()
    >>> folder = thresher.profile(model, torch.randn(8, 64), tempfile.mkdtemp())
    >>> sorted(path.name for path in folder.iterdir())
    ['layers.csv', 'operators.txt', 'report.html', 'report.json', 'trace.thrtrace']
    >>> "linear" in [row["name"] for row in thresher.PerformanceProfiler(folder).operators()]
    True

    Args:
      model: a torch.nn.Module, which is compiled for the engine, or what ``thresher.compile`` or ``thresher.load``
        gave, or a function that calls such.
      inputs: what it is called with: a tensor, a tuple or list of positional arguments, or a mapping of names.
      output_dir: where a new folder is made; it is called after the model, with a number where that exists.
      num_iterations: calls that are recorded.
      warmup_iterations: calls before, in which the model is compiled.
      config: how a torch.nn.Module is compiled.

    Returns:
      The folder, with trace.thrtrace (every record), report.json (docs/profiling/report_data.md), report.html,
      operators.txt and layers.csv. ``PerformanceProfiler`` reads it.

    Raises:
      ValueError: an argument that cannot be used, or a trace is running already.
      OutputError: something cannot be written; what was written stays.
    """
    startup.initialize()
    for name, value, least in (("num_iterations", num_iterations, 1), ("warmup_iterations", warmup_iterations, 0)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}; the default is 20 or 3")
    if _engine.trace_status()["running"]:
        raise ValueError(
            "profile: expected no running trace, got one; call thresher.profiler.stop() first, or use "
            "thresher.profiler.record_function to mark a part of it"
        )
    run = _compiled(model, config)
    args, kwargs = call_with(inputs)
    folder = new_folder(output_dir, name_of(model))
    with torch.no_grad():
        for _ in range(warmup_iterations):
            run(*args, **kwargs)
        with profiler.profile(trace=folder / TRACE) as recorded:
            for _ in range(num_iterations):
                run(*args, **kwargs)
    report = build_report(read_trace(folder / TRACE), title=name_of(model))
    if not any(row["section"] == "forward" for row in report["operators"]):
        warnings.warn(
            f"profile: the engine ran no operator of {name_of(model)}: PyTorch ran all of it, or it is no compiled "
            "model; thresher.compilation_stats().unsupported lists what the engine lacks",
            stacklevel=2,
        )
    write_text(folder / REPORT, json.dumps(report) + "\n")
    write_text(folder / PAGE, render(report))
    write_text(folder / OPERATORS, recorded.op_report())
    write_text(folder / LAYERS, _layers(report))
    return folder


def _compiled(model: Callable[..., Any], config: CompilerConfig | None) -> Callable[..., Any]:
    from thresher.model import Model

    if isinstance(model, Model) or not isinstance(model, torch.nn.Module):
        if not callable(model) or isinstance(model, type):
            raise ValueError(f"model: expected something to call, got {model!r}; pass a model or a function")
        if config is not None:
            raise ValueError("config: expected None for what is compiled already, got one; compile it with that")
        return model
    if hasattr(model, "_orig_mod"):  # torch.compile and thresher.compile
        return model
    return thresher_compile(model, config=config)


def _layers(report: dict[str, Any]) -> str:
    text = io.StringIO()
    columns = ("name", "count", "total_ns", "self_ns", "share", "source")
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(report["modules_flat"])
    return text.getvalue()
