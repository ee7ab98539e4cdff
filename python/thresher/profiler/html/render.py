"""Puts the page together: markup, style, scripts and data in one file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from thresher.profiler.html.limits import shrink

MAX_BYTES = 5_000_000
_FOLDER = Path(__file__).parent
# In the order in which they are read: later files use what earlier ones define.
_STYLES = ("base.css", "components.css", "pages.css", "print.css")
_SCRIPTS = (
    *("dom.js", "format.js", "data.js", "state.js", "charts.js", "table.js", "listing.js"),
    *("overview.js", "steps.js", "operators.js", "timeline_model.js", "timeline_canvas.js", "timeline.js"),
    *("memory.js", "flame.js", "modules.js", "roofline.js", "difference.js", "main.js"),
)
_LARGEST_EXACT = 2**53 - 1


def render(report: Mapping[str, Any], diff: Mapping[str, Any] | None = None) -> str:
    """The report as one HTML file, which opens without a network and is at most 5 MB.

    Args:
      report: the report data (`thresher report --json`).
      diff: the difference of this run and another (`thresher diff --json`), or None. It gets a page of its own.
    """
    title = str(report.get("title") or "Profile")
    scale = 1.0
    while True:
        shown, compared = shrink(report, diff, scale)
        page = _assemble(title, _embed({"report": shown, "diff": compared}))
        if len(page) <= MAX_BYTES or scale < 0.01:
            return page
        scale *= 0.7 * MAX_BYTES / len(page)


@cache
def _source(kind: str) -> str:
    if kind == "style":
        return "".join((_FOLDER / "css" / name).read_text("utf-8") for name in _STYLES)
    parts = "".join((_FOLDER / "js" / name).read_text("utf-8") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _assemble(title: str, data: str) -> str:
    style, script = _source("style"), _source("script")
    parts = {
        # What a page from a stranger's names must never do, it cannot: only this script runs, and nothing is fetched.
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        # A lone surrogate cannot be written to a file.
        "title": html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        "style": style,
        "data": data,
        "script": script,
    }
    template = (_FOLDER / "page.html").read_text("utf-8")
    return re.sub(r"<!--(\w+)-->|\{\{(\w+)\}\}", lambda match: parts[match[1] or match[2]], template)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def _embed(data: Any) -> str:
    """The data as base64 of gzip: a tenth of the JSON, and no character of it means anything in HTML."""
    text = json.dumps(_plain(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def _plain(value: Any) -> Any:
    """What JSON and JavaScript can hold: no NaN, no integers beyond 2**53 (these become text), no NumPy types."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -_LARGEST_EXACT <= value <= _LARGEST_EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
