"""docs/api.md says what the docstrings say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "api_reference.py"


@pytest.fixture(scope="module")
def page() -> str:
    spec = importlib.util.spec_from_file_location("api_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.page())


def test_the_page_is_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / "api.md").read_text() == page, (
        "expected what the docstrings say; do: python scripts/api_reference.py"
    )


def test_every_public_name_is_there(page: str) -> None:
    import thresher
    from thresher import llm, profiler

    modules = {"cache", "dashboard", "llm", "model", "ops", "packages", "passes"}
    modules |= {"profiler", "signatures", "tuning", "zoo"}
    for name in {*thresher.__all__} - modules - {"__version__"}:
        assert f"### `thresher.{name}`\n" in page
    for name in profiler.__all__:
        assert f"### `thresher.profiler.{name}`\n" in page
    for name in llm.__all__:
        assert f"### `thresher.llm.{name}`\n" in page


def test_what_a_reader_wants_to_know(page: str) -> None:
    text = page[page.index("### `thresher.set_num_threads`") :]
    text = text[: text.index("\n### ")]
    assert "```python\nthresher.set_num_threads(n: int) -> None\n```" in text
    assert "**Args**\n\n- `n`: 1 to 1024.\n" in text and "**Raises**\n\n- `ValueError`: another number.\n" in text
    assert "Profile.key_averages() -> KeyAverages" in page, "methods are shown without self"


def test_a_stale_page_is_refused(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / SCRIPT.name).write_text(SCRIPT.read_text())
    (tmp_path / "python").symlink_to(ROOT / "python")
    (tmp_path / "docs").mkdir()
    command = [sys.executable, str(scripts / SCRIPT.name)]
    assert subprocess.run([*command, "--check"], capture_output=True, text=True, check=False).returncode == 1
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert subprocess.run([*command, "--check"], capture_output=True, check=False).returncode == 0
    assert (tmp_path / "docs" / "api.md").read_text() == (ROOT / "docs" / "api.md").read_text()
