"""What a page of the profiler holds: the data of a report, packed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def page_data(path: Path) -> Any:
    """The data in a page: of what it embeds, the longest text."""
    page = path.read_text()
    assert page.lower().startswith("<!doctype html>")
    packed = max(re.findall(r"[A-Za-z0-9+/]{200,}=*", page), key=len)
    return json.loads(gzip.decompress(base64.b64decode(packed)))
