"""Where PyTorch is missing, what needs it is skipped with a reason, and nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

MODULES = {
    "test_imports.py": "import torch\ndef test_any() -> None: ...\n",
    "test_mixed.py": "def test_with() -> None:\n    import torch\ndef test_without() -> None: ...\n",
    "test_product.py": "import product\ndef test_call() -> None:\n    product.call()\n",
    "test_broken.py": "import product.broken\ndef test_any() -> None: ...\n",
    "test_other.py": "import no_such_package\ndef test_any() -> None: ...\n",
    "test_toolchain_x.py": "import no_such_package\ndef test_any() -> None: ...\n",
}


@pytest.fixture
def outcomes(tmp_path: Path) -> dict[str, str]:
    """Runs pytest over MODULES without PyTorch; the outcome and the reason of each test or module."""
    tests = tmp_path / "tests" / "python"
    tests.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("conftest.py"), tests)
    for name, text in MODULES.items():
        (tests / name).write_text(text)
    product = tmp_path / "site" / "product"
    product.mkdir(parents=True)
    (product / "__init__.py").write_text("def call() -> None:\n    import torch\n")
    (product / "broken.py").write_text("import torch\n")
    report = tmp_path / "report.xml"
    arguments = [str(tests), f"--junitxml={report}", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    code = (
        f"import sys; sys.modules['torch'] = None; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        f"import pytest; sys.exit(pytest.main({arguments!r}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False, timeout=120)
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        result = next(iter(case), None)
        outcome = "passed" if result is None else f"{result.tag}: {result.get('message')} {result.text}"
        found[name.removeprefix("tests.python.")] = outcome
    return found


def test_only_tests_that_import_pytorch_themselves_are_skipped(outcomes: dict[str, str]) -> None:
    needs_torch = "needs PyTorch, which is not installed"
    for name in ("test_imports", "test_mixed.test_with"):
        assert outcomes[name].startswith("skipped") and needs_torch in outcomes[name]
    assert outcomes["test_mixed.test_without"] == "passed"
    assert outcomes["test_product.test_call"].startswith("failure"), (
        "a product that imports PyTorch by mistake is found"
    )
    for name in ("test_broken", "test_other"):
        assert outcomes[name].startswith("error")
    assert "tests the repository" in outcomes["test_toolchain_x"]
