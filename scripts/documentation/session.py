"""What the nox session docs does."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolchain import environments
from toolchain.environments import DOCS
from toolchain.layout import BUILD, ROOT
from toolchain.process import ToolchainError, note, run, write_json

from . import contents

OUTPUT = BUILD / "docs"
PAGE = OUTPUT / "html" / f"{contents.FIRST}.html"


def build_site(json_file: Path | None) -> None:
    """Makes the site; a link, an anchor or a picture that is not there is an error, and a page that no menu has.

    Args:
        json_file: where to write what was made.

    Raises:
        ToolchainError: a page is wrong.
    """
    python = environments.ensure(DOCS)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    try:
        run(
            [
                *(python, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"),
                *("--builder", "html", "--conf-dir", Path(__file__).parent, "--doctree-dir", OUTPUT / "trees"),
                *(ROOT, OUTPUT / "html"),
            ],
            cwd=ROOT,
            name="sphinx",
        )
    except ToolchainError as error:
        raise ToolchainError(
            f"{error} Each line above names a page, its line and what is wrong there; a page without a place in the "
            "menu gets one in scripts/documentation/contents.py."
        ) from None
    # The browser opens a folder at index.html.
    shutil.copyfile(PAGE, PAGE.with_name("index.html"))
    names = contents.pages(ROOT)
    write_json(json_file, {"format": "thresher-docs", "page": str(PAGE.with_name("index.html")), "pages": names})
    note(f"{len(names)} pages: {PAGE.with_name('index.html')}")
