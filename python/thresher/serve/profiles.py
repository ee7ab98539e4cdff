"""POST /start_profile and /stop_profile: where the time of a running server goes."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from thresher.profiler import control
from thresher.web.errors import ApiError
from thresher.web.exchange import Exchange

_KEPT = 4
_TYPES = {
    "report.txt": "text/plain; charset=utf-8",
    "report.json": "application/json",
    "page.html": "text/html; charset=utf-8",
    "trace.json.gz": "application/gzip",
    "run.thrtrace": "application/octet-stream",
}
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class Profiles:
    """Profiles of the engine; the last ones are kept until the process ends."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._kept: OrderedDict[int, Path] = OrderedDict()
        self._number = 0
        self._busy = asyncio.Lock()

    async def start(self, exchange: Exchange) -> None:
        """Records from now on."""
        async with self._busy:
            if control.is_enabled():
                raise ApiError(409, "expected a profiler that is off, got one that records; POST /stop_profile first")
            control.reset()
            try:
                control.start(trace=True)
            except ValueError as error:
                raise ApiError(409, str(error)) from None
        await exchange.send_json({"recording": True})

    async def stop(self, exchange: Exchange) -> None:
        """Ends the record, and says where its report, page and trace are."""
        async with self._busy:
            if not control.is_enabled():
                raise ApiError(409, "expected a profiler that records, got one that is off; POST /start_profile first")
            control.stop()
            self._number += 1
            folder = self._place() / str(self._number)
            await asyncio.to_thread(_write, folder)
            self._kept[self._number] = folder
            while len(self._kept) > _KEPT:
                _, old = self._kept.popitem(last=False)
                for file in old.iterdir():
                    file.unlink()
        await exchange.send_json(self._card(self._number))

    async def all(self, exchange: Exchange) -> None:
        """Which profiles there are, the last one first."""
        data = [self._card(number) for number in reversed(self._kept)]
        await exchange.send_json({"recording": control.is_enabled(), "data": data})

    async def one(self, exchange: Exchange) -> None:
        """A file of one of them."""
        number, name = exchange.path_values["number"], exchange.path_values["file"]
        folder = self._kept.get(int(number)) if _NUMBER.fullmatch(number) else None
        if folder is None or name not in _TYPES:
            raise ApiError(404, f"expected a profile that is kept and a file of it, got {number[:20]}/{name[:40]}")
        body = await asyncio.to_thread((folder / name).read_bytes)
        await exchange.send(200, _TYPES[name], body, {"x-content-type-options": "nosniff"})

    def _place(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="thresher-profiles-")
        return Path(self._folder.name)

    def _card(self, number: int) -> dict[str, Any]:
        return {"number": number, **{name.partition(".")[0]: f"/profiles/{number}/{name}" for name in reversed(_TYPES)}}


def _write(folder: Path) -> None:
    folder.mkdir()
    report = control.collect()
    (folder / "report.txt").write_text(str(control.render(report, "text")), encoding="utf-8")
    (folder / "report.json").write_text(str(control.render(report, "json")), encoding="utf-8")
    for name in ("run.thrtrace", "trace.json.gz", "page.html"):
        control.export_trace(folder / name)
