"""What the tests of PyTorch's profiler share: models, and a look into the traces that it writes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


class KinetoTrace:
    """The events of a file that `export_chrome_trace` wrote. Times are microseconds."""

    def __init__(self, path: Path) -> None:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as file:
            self.content: dict[str, Any] = json.load(file)
        self.events: list[dict[str, Any]] = self.content["traceEvents"]
        self.device = [event for event in self.events if event.get("cat") in DEVICE_CATEGORIES]
        self.runtime = [event for event in self.events if event.get("cat") == "privateuse1_runtime"]
        self.host = [event for event in self.events if event.get("cat") in ("cpu_op", "user_annotation")]
        self.bars = [event for event in self.events if event.get("cat") == "gpu_user_annotation"]

    def names(self, category: str) -> set[str]:
        return {event["name"] for event in self.events if event.get("cat") == category}

    def launch_of(self, event: dict[str, Any]) -> dict[str, Any]:
        launches = [row for row in self.runtime if row["args"].get("correlation") == event["args"]["correlation"]]
        assert len(launches) == 1, event
        return launches[0]

    def operator_of(self, event: dict[str, Any]) -> dict[str, Any] | None:
        wanted = event["args"].get("External id")
        return next((row for row in self.host if wanted and row["args"].get("External id") == wanted), None)

    def streams(self) -> dict[int, list[dict[str, Any]]]:
        found = defaultdict(list)
        for event in sorted(self.device, key=lambda row: row["ts"]):
            found[event["args"]["stream"]].append(event)
        return found

    def metadata(self, kind: str) -> dict[tuple[Any, Any], Any]:
        """What the process and thread rows are called, by process and thread."""
        events = (event for event in self.events if event["ph"] == "M" and event["name"] == kind)
        return {(event["pid"], event["tid"]): next(iter(event["args"].values())) for event in events}


def require_shim() -> None:
    """The tests of PyTorch's profiler are never left out: where PyTorch is, its shim has to be."""
    import torch

    from thresher.torch_shim import library

    minor, found = library.minor_of(torch.__version__), library.available()
    assert minor in found, (
        f"expected an engine with the shim of PyTorch {minor}, got {', '.join(found) or 'none'}; run the tests with "
        "`nox -s tests`, which builds it"
    )


def run_script(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def read_json(done: subprocess.CompletedProcess[str]) -> Any:
    """Reads the JSON in the last line of what a script printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
