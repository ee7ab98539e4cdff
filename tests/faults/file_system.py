"""What is done to the file systems that the fixture `disk` makes."""

from __future__ import annotations

import subprocess
from pathlib import Path


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> None:
    """Fills a file system up to `leave` bytes."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        size = file.tell()
        file.truncate(max(size - leave, 0))
