"""The menu of the site that `nox -s docs` makes."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from documentation import contents  # noqa: E402


def test_every_page_is_in_the_menu_once() -> None:
    listed = [name for names in contents.menu(ROOT).values() for name in names]
    assert sorted([*listed, contents.FIRST]) == contents.pages(ROOT)


def test_a_page_without_a_place_is_seen(tmp_path: Path) -> None:
    for name in ("README.md", "docs/new.md", "docs/decisions/0001-one.md", "build/other.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# A page\n")
    assert contents.pages(tmp_path) == ["README", "docs/decisions/0001-one", "docs/new"]
    listed = [name for names in contents.menu(tmp_path).values() for name in names]
    assert "docs/decisions/0001-one" in listed and "docs/new" not in listed
