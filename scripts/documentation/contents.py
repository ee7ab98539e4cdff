"""The menu of the site: every page of the repository once, in the order of reading."""

from __future__ import annotations

from pathlib import Path

FIRST = "README"
SECTIONS = {
    "Set up": ("docs/install", "docs/command_line", "docs/environment"),
    "Run models": (
        *("docs/torch_compile", "docs/llm", "docs/serving", "docs/export", "docs/weights", "docs/ops"),
        *("docs/operators", "docs/kernels", "docs/zoo", "docs/threads", "docs/cuda"),
    ),
    "See where the time goes": (
        *("docs/measuring", "docs/dashboard", "docs/profiling", "docs/profiling/commands", "docs/profiling/reading"),
        *("docs/profiling/the_page", "docs/profiling/pytorch", "docs/profiling/report_data", "docs/profiling/pti"),
        *("docs/tuning", "docs/peaks", "docs/cache"),
    ),
    "What was measured": (
        *("docs/benchmarks", "docs/results", "docs/performance", "docs/performance/convolutions"),
        *("docs/performance/attention", "docs/stage_test", "docs/robustness"),
    ),
    "Look up": ("docs/api", "docs/glossary", "CHANGELOG", "SECURITY", "licenses/README"),
    "Take part": (
        *("CONTRIBUTING", "docs/architecture", "docs/passes", "docs/building", "docs/dependencies"),
        *("docs/containers", "docs/testing", "docs/fuzzing", "docs/releasing", "docs/decisions/README"),
    ),
}
DECISIONS = "docs/decisions"


def pages(root: Path) -> list[str]:
    """Returns the pages that a repository has, without their suffix.

    Args:
        root: of the repository.
    """
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "licenses").glob("*.md")]
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in found)


def menu(root: Path) -> dict[str, list[str]]:
    """Returns the pages of each section; the decisions follow their own first page.

    Args:
        root: of the repository.
    """
    found = {title: list(names) for title, names in SECTIONS.items()}
    found["Take part"] += [name for name in pages(root) if name.startswith(f"{DECISIONS}/0")]
    return found
