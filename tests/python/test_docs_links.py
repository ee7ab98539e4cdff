"""Every link from a page of this repository to another leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "licenses").glob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors that headings have, as code hosts make them."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()) for heading in found]
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_broken_links_are_found() -> None:
    text = "# A heading: `code`\n[a](README.md) [b](NONE.md) [c](#a-heading-code) [d](#none) [e](https://x) `[f](g)`\n"
    page = ROOT / "PAGE.md"
    assert broken(page, text.replace("](#", "](docs/glossary.md#")) == [
        "NONE.md",
        "docs/glossary.md#a-heading-code",
        "docs/glossary.md#none",
    ]
    assert anchors(text) == {"a-heading-code"}
