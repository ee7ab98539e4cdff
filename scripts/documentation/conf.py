"""What Sphinx makes the site of; it runs in the environment `docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from documentation import contents

project = "Thresher"
extensions = ["myst_parser"]
root_doc = contents.FIRST
include_patterns = ["*.md", "docs/**.md", "licenses/*.md"]
myst_heading_anchors = 6
html_theme = "furo"
html_title = "Thresher"
html_copy_source = False
html_show_sphinx = False


def add_menu(_: Any, name: str, source: list[str]) -> None:
    """Puts the menu behind the first page, which readers of the repository see without it."""
    if name != root_doc:
        return
    for title, names in contents.menu(ROOT).items():
        lines = "\n".join(f"/{name}" for name in names)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {title}\n\n{lines}\n```\n"


def setup(app: Any) -> None:
    """Registers the menu."""
    app.connect("source-read", add_menu)
