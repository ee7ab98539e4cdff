"""Written traces in TensorBoard, with the plug-in that PyTorch had for it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import thresher  # noqa: E402
import thresher.torch_profiler  # noqa: E402

PYTHON = os.environ.get("TENSORBOARD_PYTHON")
STEPS = 4

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        PYTHON is None,
        reason="pip install torch-tb-profiler==0.4.3 tensorboard==2.21.0 into an environment of its own (they bring "
        "pandas and gRPC), and name its Python in TENSORBOARD_PYTHON",
    ),
]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """TensorBoard's address, with a trace of the engine's own and one of torch.profiler's."""
    folder = tmp_path_factory.mktemp("runs")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).eval()
    run = thresher.compile(model)
    x = torch.randn(512, 64)
    with torch.no_grad():
        run(x)
        thresher.profiler.start(trace=True)
        for _ in range(STEPS):
            run(x)
            thresher.profiler.step()  # a step lasts from one call of this to the next
        thresher.profiler.stop()
        (folder / "own").mkdir()
        thresher.profiler.export_trace(folder / "own" / "host.1.pt.trace.json.gz")
        from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
            schedule=schedule(wait=0, warmup=1, active=STEPS),
            on_trace_ready=tensorboard_trace_handler(str(folder / "torch")),
        ) as profiler:
            for _ in range(1 + STEPS):
                run(x)
                profiler.step()
    assert PYTHON is not None
    command = [PYTHON, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--load_fast", "false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://localhost:(\d+)", line):
                yield f"http://localhost:{found[1]}/data/plugin/pytorch_profiler"
                return
        raise AssertionError("".join(said))
    finally:
        process.terminate()
        process.communicate(timeout=20)


def ask(board: str, path: str, **query: str) -> Any:
    end = time.monotonic() + 60
    while True:
        with suppress(urllib.error.HTTPError):  # the run is not read yet
            with urllib.request.urlopen(f"{board}/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:  # noqa: S310
                body = answer.read()
            found = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            if path != "runs" or (not found["loading"] and len(found["runs"]) == 2):
                return found
        assert time.monotonic() < end, path
        time.sleep(0.5)


@pytest.mark.parametrize("run", ["own", "torch"])
def test_a_trace_is_read(board: str, run: str) -> None:
    assert sorted(ask(board, "runs")["runs"]) == ["own", "torch"]
    assert ask(board, "views", run=run) == ["Overview", "Operator", "Kernel", "Trace"]
    (worker,) = ask(board, "workers", run=run, view="Overview")
    (span,) = ask(board, "spans", run=run, worker=worker) or ("",)
    where = {"run": run, "worker": worker, "span": span}
    steps = ask(board, "overview", **where)["steps"]
    kernel = [column["name"] for column in steps["columns"] if "name" in column].index("Kernel")
    in_kernels = {row[0]: row[2 * kernel - 1] for row in steps["rows"]}  # behind each number stands its tooltip
    assert list(in_kernels) == (["0", "1", "2"] if run == "own" else ["1", "2", "3", "4"])
    table = ask(board, "kernel/table", group_by="Kernel", **where)["data"]
    names = [column["name"] for column in table["columns"]]
    (row,) = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    assert row["Name"].startswith("linear fp32") and row["Calls"] == 2 * STEPS
    assert min(in_kernels.values()) > 0 and sum(in_kernels.values()) <= row["Total Duration (us)"] + STEPS
    events = ask(board, "trace", **where)["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) == 2 * STEPS
    table = ask(board, "operation/table", group_by="Operation", **where)["data"]
    calls = {row["name"]: row["calls"] for row in table}
    assert calls.get("thresher::graph_0") == (STEPS if run == "torch" else None), "it knows torch.profiler's operators"
