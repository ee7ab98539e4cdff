"""Comparing runs: what differs between two, and whether new ones are slower than old ones.

`diff_reports(load_report(a), load_report(b))` lists the differences; `check_reports(base, new)` gives a verdict.
"""

from __future__ import annotations

from thresher.profiler.compare.circumstances import CIRCUMSTANCES, differences
from thresher.profiler.compare.diff import diff_reports
from thresher.profiler.compare.load import load_report
from thresher.profiler.compare.verdict import Limits, check_reports

__all__ = ["CIRCUMSTANCES", "Limits", "check_reports", "diff_reports", "differences", "load_report"]
