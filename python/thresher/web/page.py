"""A page in one file, which may run its own scripts and styles, ask its own server, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from thresher.web.exchange import Exchange

_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


class Page:
    """GET of a page."""

    def __init__(self, file: Path) -> None:
        """Reads the page.

        Args:
          file: HTML with scripts and styles inside.
        """
        text = file.read_text(encoding="utf-8")
        self._body = text.encode()
        hashes: dict[str, list[str]] = {"script": [], "style": []}
        for kind, source in _INLINE.findall(text):
            digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
            hashes[kind].append(f"'sha256-{digest}'")
        policy = (
            f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    async def __call__(self, exchange: Exchange) -> None:
        """Sends it."""
        await exchange.send(200, "text/html; charset=utf-8", self._body, self._headers)
