"""Reports and operator reports, as `thresher diff` and `thresher check` read and compare them."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz_targets import as_file

from thresher.profiler import render
from thresher.profiler.compare import check_reports, diff_reports, load_report
from thresher.profiler.compare.load import OP_REPORT_FORMAT, format_of
from thresher.profiler.report import OpReport


def run(data: bytes) -> None:
    with as_file(data, "report.json") as path:
        try:
            report = load_report(path)
        except ValueError:
            return
        json.dumps(diff_reports(report, report))
        for others in ([report], [report, report]):
            json.dumps(check_reports([report], others, force=True))
        if format_of(path) == OP_REPORT_FORMAT:
            show(path)


def show(path: Path) -> None:
    report = OpReport.from_json(path.read_text(encoding="utf-8"))
    for name in ("text", "json", "csv"):
        render(report, name)
