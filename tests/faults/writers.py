"""Everything that Thresher writes, each as a class: write a version of it, read the version that is there.

Run as a program it is the executioner of test_killed_writers.py:

    python writers.py NAME FOLDER KILLS SEED

forks a child that writes one version after the other, kills it at some moment, looks at what is there, and again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NOTHING = -1
# Large enough that a kill often comes in the middle of writing.
ELEMENTS = 1 << 17


class Writer:
    """One file that is replaced by new versions of itself."""

    name = "file"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / self.name

    def prepare(self) -> None:
        """What is done once, before any child is forked."""

    def write(self, version: int) -> None:
        raise NotImplementedError

    def read(self) -> int:
        """The version that is there, after all checks that a user of the file makes; NOTHING where there is none."""
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.iterdir() if "partial" in path.name)


class ModelFile(Writer):
    name = "model.thrmodel"

    def write(self, version: int) -> None:
        import numpy as np

        from thresher import _engine

        graph = _engine.Graph()
        graph.set_outputs([graph.constant("large", np.full(ELEMENTS, version, np.float32), weight=True)])
        _engine.write_model(str(self.path), "model", [(graph, ["output"])])

    def read(self) -> int:
        import thresher

        if not self.path.exists():
            return NOTHING
        values = thresher.load(self.path)()["output"]
        assert (values == values[0]).all() and len(values) == ELEMENTS
        return int(values[0])


class _Recorded(Writer):
    """What a trace of a few thousand marks becomes."""

    def prepare(self) -> None:
        from thresher import profiler
        from thresher.profiler.trace import read_trace

        self.recorded = tempfile.TemporaryDirectory()
        native = Path(self.recorded.name) / "recorded.thrtrace"
        profiler.start(trace=native)
        for _ in range(3000):
            with profiler.record_function("work"):
                pass
        profiler.stop()
        self.trace = read_trace(native)


class ChromeTrace(_Recorded):
    name = "trace.json"

    def write(self, version: int) -> None:
        from thresher.profiler.export import write_trace

        self.trace.meta["version"] = version
        write_trace(self.trace, self.path, force=True)

    def read(self) -> int:
        import gzip

        if not self.path.exists():
            return NOTHING
        data = self.path.read_bytes()
        found = json.loads(gzip.decompress(data) if self.name.endswith(".gz") else data)
        assert sum(event.get("name") == "work" for event in found["traceEvents"]) == 3000
        return int(found["thresher"]["version"])


class CompressedTrace(ChromeTrace):
    name = "trace.json.gz"


class Page(_Recorded):
    name = "report.html"

    def prepare(self) -> None:
        super().prepare()
        from thresher.profiler.analysis import build_report

        self.report = build_report(self.trace)

    def write(self, version: int) -> None:
        from thresher.profiler.export import write_text
        from thresher.profiler.html import render

        self.report["title"] = f"version-{version}-"
        write_text(self.path, render(self.report), force=True)

    def read(self) -> int:
        if not self.path.exists():
            return NOTHING
        text = self.path.read_text()
        assert text.rstrip().endswith("</html>")
        return int(text.partition("version-")[2].partition("-")[0])


class OperatorReport(Writer):
    name = "report.json"

    def write(self, version: int) -> None:
        from thresher.cli.common import write

        write(self.path, json.dumps({"version": version, "rows": ["x" * 50] * 5000}))

    def read(self) -> int:
        return int(json.loads(self.path.read_text())["version"]) if self.path.exists() else NOTHING


class Results(Writer):
    """What `thresher run --output` writes."""

    name = "results.npz"

    def write(self, version: int) -> None:
        import numpy as np

        from thresher.cli.run import _write

        _write(self.path, {"output": np.full(ELEMENTS, version, np.int64)})

    def read(self) -> int:
        import numpy as np

        if not self.path.exists():
            return NOTHING
        values = np.load(self.path)["output"]
        assert (values == values[0]).all() and len(values) == ELEMENTS
        return int(values[0])


class SavedTrace(Writer):
    """A native trace that is saved from memory; each into a new file, as it must be."""

    name = "saved.thrtrace"

    def write(self, version: int) -> None:
        from thresher import _engine, profiler

        if not _engine.trace_status()["running"]:  # a child's own: its parent's stays behind
            profiler.start(trace=True)
            for _ in range(5000):
                with profiler.record_function("work"):
                    pass
        profiler.save_trace(self.folder / f"saved-{version}-{os.getpid()}.thrtrace")

    def read(self) -> int:
        from thresher.profiler.trace import read_trace

        found = sorted(self.folder.glob("saved-*.thrtrace"))
        for path in found:
            data = path.read_bytes()
            assert b"TAIL" in data[-300:], f"{path} is not complete"
            assert len(read_trace(path).names) > 0
            path.unlink()
        return len(found)


class CacheEntry(Writer):
    """Cached results, here of two kinds that users have: peaks and the tuning table."""

    kind = "peaks"

    def __init__(self, folder: Path) -> None:
        from thresher import cache

        super().__init__(folder)
        cache.set_dir(folder / "cache")
        self.path = folder / "cache" / self.kind / "entry"

    def write(self, version: int) -> None:
        from thresher import cache

        assert cache.store(self.kind, {"num_threads": [1, 2]}, {"version": version, "rows": ["x" * 50] * 3000})

    def read(self) -> int:
        import warnings

        from thresher import cache

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a damaged file is reported by one
            found = cache.load(self.kind, {"num_threads": [1, 2]})
        return NOTHING if found is None else int(found["version"])

    def leftovers(self) -> list[str]:
        return super().leftovers() if self.path.parent.exists() else []


class TuningTable(CacheEntry):
    kind = "tuning"

    def write(self, version: int) -> None:
        from thresher.tuning import table
        from thresher.tuning.product import Choice, Product, TunedProduct

        times = (float(version), float(version), float(version))
        assert table.store(
            TunedProduct("avx2", Product("fp32", m, 8, 8, 2), Choice(), times, times, 1, 1, "2026-01-01T00:00:00+00:00")
            for m in range(1, 200)
        )

    def read(self) -> int:
        from thresher.tuning import table

        found = {int(entry.default_us[0]) for entry in table.load(2).values()}
        assert len(found) <= 1
        return found.pop() if found else NOTHING


WRITERS = {
    writer.__name__: writer
    for writer in (
        ModelFile,
        ChromeTrace,
        CompressedTrace,
        Page,
        OperatorReport,
        Results,
        SavedTrace,
        CacheEntry,
        TuningTable,
    )
}


def _stop_unfinished(writer: Writer, child: int, choose: random.Random) -> None:
    """Stops the child where its file is unfinished, at whatever moment of that.

    A file that was seen unfinished may be whole before a kill arrives, on a fast or a busy machine nearly always. So
    the child is stopped first, then looked at, and sent on until it lies right.
    """
    limit = time.monotonic() + 5
    while True:
        time.sleep(choose.random() * 0.003)
        os.kill(child, signal.SIGSTOP)
        _, state = os.waitpid(child, os.WUNTRACED)
        assert os.WIFSTOPPED(state), "the writer failed"
        if writer.leftovers() or time.monotonic() > limit:
            return
        os.kill(child, signal.SIGCONT)


def execute(writer: Writer, kills: int, seed: int) -> dict[str, Any]:
    """Kills a writing child again and again.

    Returns:
        How many kills left an unfinished file ("hits"), and how many of these there ever were at once ("most").
    """
    choose = random.Random(seed)
    writer.prepare()
    writer.write(0)
    last, hits, most = writer.read(), 0, 0
    versions = 1
    for kill in range(kills):
        child = os.fork()
        if child == 0:
            try:
                for version in range(versions, 1 << 30):
                    writer.write(version)
            finally:
                os._exit(99)  # it is killed, unless a write fails
        if kill % 2:
            _stop_unfinished(writer, child, choose)
        else:
            time.sleep(choose.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        _, state = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(state) == -signal.SIGKILL, "the writer failed"
        left = writer.leftovers()
        hits += bool(left)
        most = max(most, len(left))
        found = writer.read()
        if not isinstance(writer, SavedTrace):
            assert found >= last, f"version {found} after {last}"
            last = found
        versions = max(versions, found) + 1
        # The next run, without anybody tidying up.
        writer.write(versions)
        if not isinstance(writer, SavedTrace):
            assert writer.read() == versions
            assert writer.leftovers() == [], "the next writer removes what is left"
        versions += 1
    return {"hits": hits, "most": most}


if __name__ == "__main__":
    name, folder, kills, seed = sys.argv[1:]
    print(json.dumps(execute(WRITERS[name](Path(folder)), int(kills), int(seed))))
