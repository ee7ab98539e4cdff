#!/usr/bin/env python3
"""Compares Thresher with PyTorch, ONNX Runtime and OpenVINO on one model; see --help and docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from bars import svg
from comparison import ENGINES, REFERENCE, Settings, export, measure
from report import environment_lines, profiler_cost, rows_of, table_of

from measure.environment import git_revision
from measure.worker import WorkerError

ROOT = Path(__file__).resolve().parents[1]
EXIT_DONE = 0
EXIT_ERROR = 2
ROUNDS = 20
QUICK_ROUNDS = 4

EPILOG = """\
examples:
  python bench/run.py --python-thresher thresher/bin/python --python-peers peers/bin/python
  python bench/run.py --python-thresher P --python-peers Q --quick --output build/bench
  python bench/run.py --python-thresher P --python-peers Q --threads 1 --batches 1 --sequences 16,32,128 --inductor

exit codes:
  0  everything was measured
  2  an engine failed or the command line is wrong; the message says which"""


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if not all(number >= 1 for number in numbers):
        raise argparse.ArgumentTypeError(f"wanted numbers of at least 1, separated by commas, found '{text}'")
    return numbers


def _lengths(text: str) -> tuple[int, ...]:
    numbers = _numbers(text)
    if max(numbers) > 128:
        raise argparse.ArgumentTypeError(f"the passages have 128 tokens, found '{text}'")
    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Runs all-MiniLM-L6-v2 in float32 on several engines, each in a process of its own, in turns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python-thresher", type=Path, required=True, help="python of an environment with Thresher")
    parser.add_argument(
        "--python-peers", type=Path, required=True, help="python of one with requirements/bench-peers.txt and PyTorch"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="folder of the results (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--rounds", type=int, help="turns of every engine in every case")
    parser.add_argument("--threads", type=_numbers, default=(1, 2), help="numbers of threads (default: 1,2)")
    parser.add_argument("--batches", type=_numbers, default=(1, 8), help="batch sizes (default: 1,8)")
    parser.add_argument("--sequences", type=_lengths, default=(128,), help="sequence lengths (default: 128)")
    parser.add_argument("--inductor", action="store_true", help="also torch.compile with PyTorch's own back end")
    known = [spec.key for spec in ENGINES]
    parser.add_argument(
        "--only", action="append", choices=known, help=f"measure this engine; repeatable; {REFERENCE} always runs"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Returns:
      The exit code: 0 measured, 2 an engine failed.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, found {arguments.rounds}")
    wanted = set(arguments.only or [spec.key for spec in ENGINES if not spec.optional]) | {REFERENCE}
    if arguments.inductor:
        wanted.add("inductor")
    settings = Settings(
        threads=arguments.threads,
        batches=arguments.batches,
        sequences=arguments.sequences,
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        engines=tuple(spec.key for spec in ENGINES if spec.key in wanted),
    )
    output = arguments.output.resolve()
    # Not resolve(): the python of an environment is a link, and following it leaves the environment.
    thresher, peers = arguments.python_thresher.absolute(), arguments.python_peers.absolute()
    try:
        print("bench: writing the model for the engines that read ONNX", file=sys.stderr, flush=True)
        export(peers, output, settings)
        result = measure(settings, thresher, peers, output, git_revision(ROOT))
    except (WorkerError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    result["flops"] = json.loads((output / "model.json").read_text(encoding="utf-8"))["flops"]
    rows = rows_of(result)
    result["summary"] = [asdict(row) for row in rows]
    table = table_of(rows)
    lines = [*environment_lines(result), *profiler_cost(result)]
    page = [table.markdown(), "", *(f"- {line}" for line in lines), ""]
    (output / "bench.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (output / "bench.md").write_text("\n".join(page), encoding="utf-8")
    (output / "bench.svg").write_text(svg(rows, "all-MiniLM-L6-v2, float32"), encoding="utf-8")
    table.print()
    print("\n".join(lines))
    print(f"results: {output}/bench.json, bench.md, bench.svg")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
