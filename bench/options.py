"""The command line of bench/run.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

from architectures import ARCHITECTURES, SMALL, WHOLE
from comparison import ENGINES, PRECISIONS, REFERENCE, Settings
from llm_works import WORKS
from models import LONGEST, MODELS

QUICK_ROUNDS = 4
LATENCY_ROUNDS = 10
MANY_SIZES = 1000
CONVOLUTIONS = ("layers.txt", "convolutions.txt")
LATENCY_SEQUENCES = (8, 16, 32, 64, 128, 256)

EPILOG = """\
examples:
  python bench/run.py --python-thresher thresher/bin/python --python-peers peers/bin/python
  python bench/run.py --python-thresher P --python-peers Q --quick --output build/bench
  python bench/run.py --python-thresher P --python-peers Q --precision int8 --threads 1 --batches 1
  python bench/run.py --python-thresher P --python-peers Q --model bert-base --quick
  python bench/run.py --python-thresher P --python-peers Q --latency --precision fp32 --sequences 8,32,128
  python bench/run.py --python-thresher P --python-peers Q --accuracy
  python bench/run.py --python-thresher P --python-peers Q --sizes
  python bench/run.py --python-thresher P --python-peers Q --door
  python bench/run.py --python-thresher P --python-peers Q --loading
  python bench/run.py --python-thresher P --python-peers Q --scaling --quick
  python bench/run.py --python-thresher P --python-peers Q --architectures
  python bench/run.py --python-thresher P --python-peers Q --architectures bert,swin --precision fp32 --threads 2
  python bench/run.py --python-thresher P --python-peers Q --architectures bert-base,gpt2-small,llama-0.4b \\
    --precision bf16,fp16
  python bench/run.py --python-thresher P --python-peers Q llm
  python bench/run.py --python-thresher P --python-peers Q llm --model-file model.gguf --work decode,prefill
  python bench/run.py --python-thresher P --python-peers Q conv --threads 1 --batches 1
  python bench/run.py --python-thresher P --python-peers Q conv --commands-file bench/layers.txt --precision bf16
  python bench/run.py --python-thresher P --python-peers Q conv --networks resnet,mobile --precision fp32 --threads 2
  python bench/run.py --python-thresher P --python-peers Q --inductor --zentorch --python-zentorch Z

An engine that is not available here (no such library, processor without the instructions) is a row that says why.

exit codes:
  0  everything was measured
  1  with --accuracy: Thresher loses more than its precision is allowed to; with --door: threads capture more than one,
     or leave shapes slower; with --loading: it takes too much memory; with --architectures: a row failed, is slower
     than eager, or its error is not explained by rounding
  2  an engine failed or the command line is wrong; the message says which"""


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if not all(number >= 1 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected numbers of at least 1, separated by commas, got '{text}'")
    return numbers


def _some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A type of argparse: names from a list, separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got '{unknown[0]}'")
        return names

    return read


def parser() -> argparse.ArgumentParser:
    """All options."""
    made = argparse.ArgumentParser(
        prog="run.py",
        description="Runs an encoder on several engines, each in a process of its own, in turns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--python-thresher", type=Path, required=True, help="python of an environment with Thresher")
    made.add_argument(
        "--python-peers", type=Path, required=True, help="python of one with requirements/bench-peers.txt and PyTorch"
    )
    made.add_argument("--python-zentorch", type=Path, help="python of one with requirements/bench-zentorch.txt")
    made.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="folder of the results (default: %(default)s)"
    )
    what = made.add_mutually_exclusive_group()
    what.add_argument(
        "subject",
        nargs="?",
        choices=["conv", "llm"],
        help="conv: convolutions, each and in networks, beside the best of PyTorch, ONNX Runtime and OpenVINO; llm: "
        "language models beside llama.cpp, ik_llama.cpp, OpenVINO GenAI, CTranslate2 and PyTorch, against the roofs of "
        "the machine, and against what is wanted of them",
    )
    what.add_argument(
        "--latency",
        action="store_true",
        help="batch 1 at several sequence lengths (default: 8 to 256), as table and picture",
    )
    what.add_argument("--accuracy", action="store_true", help="correlation with ratings of real texts instead of times")
    what.add_argument(
        "--sizes",
        type=int,
        nargs="?",
        const=MANY_SIZES,
        metavar="COUNT",
        help=f"so many batches and sequences (default: {MANY_SIZES}): plans, memory, time against plans of their own",
    )
    what.add_argument(
        "--door",
        action="store_true",
        help="what a call costs beside its plan, how long the first one takes, what threads capture that come at once",
    )
    what.add_argument(
        "--loading",
        action="store_true",
        help="how long loading a model file takes, how much memory, and what the first calls take",
    )
    what.add_argument(
        "--scaling",
        action="store_true",
        help="times on 1, 2, 4 and so on threads up to all cores, and beside a process that keeps a core busy",
    )
    what.add_argument(
        "--architectures",
        type=_some_of(ARCHITECTURES),
        nargs="?",
        const=SMALL,
        metavar="NAMES",
        help="models with random weights against eager, float64 and, in 16 bits, Thresher's own fp32; all small ones, "
        f"or some of {', '.join(SMALL)}, and of the size of published ones {', '.join(WHOLE)}; --precision is then the "
        "type of the models' values (default: fp32,bf16)",
    )
    made.add_argument(
        "--model-file",
        type=Path,
        action="append",
        metavar="FILE",
        help="with llm: this model, a GGUF file or a Hugging Face folder; repeatable (default: SmolLM2-135M and 0.4 "
        "billion random weights in bf16 and Q8_0)",
    )
    made.add_argument(
        "--work", type=_some_of(WORKS), metavar="NAMES", help=f"with llm: some of {', '.join(WORKS)} (default: all)"
    )
    made.add_argument(
        "--commands-file",
        type=Path,
        metavar="FILE",
        help=f"with conv: the convolutions of this file alone (default: {' and '.join(CONVOLUTIONS)}, and networks)",
    )
    made.add_argument(
        "--networks",
        type=lambda text: tuple(text.split(",")),
        nargs="?",
        const=(),
        metavar="NAMES",
        help="with conv: networks alone, all or those whose names begin so, for example resnet,mobile",
    )
    made.add_argument("--model", choices=MODELS, default="minilm", help="default: %(default)s")
    made.add_argument(
        "--precision",
        type=_some_of(PRECISIONS),
        help="engines of these precisions only, all there are: fp32,bf16,fp16,int8",
    )
    made.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    made.add_argument("--rounds", type=int, help="turns of every engine in every case")
    made.add_argument(
        "--threads", type=_numbers, help="numbers of threads (default: 1,2; 1 with --latency, --accuracy)"
    )
    made.add_argument("--batches", type=_numbers, help="batch sizes (default: 1,8; 1 with --latency)")
    made.add_argument("--sequences", type=_numbers, help="sequence lengths (default: 128)")
    made.add_argument("--inductor", action="store_true", help="also torch.compile with PyTorch's own back end")
    made.add_argument("--zentorch", action="store_true", help="also AMD's plug-in for PyTorch")
    known = [spec.key for spec in ENGINES]
    made.add_argument(
        "--only", action="append", choices=known, help=f"measure this engine; repeatable; {REFERENCE} always runs"
    )
    return made


def engines_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Keys of the engines that the options choose, the reference always among them."""
    asked = {"", *(name for name in ("inductor", "zentorch") if getattr(options, name))}
    if options.precision or options.accuracy:
        asked.add("precision")
    precisions = options.precision or PRECISIONS
    chosen = [spec for spec in ENGINES if spec.precision in precisions]
    if options.only:
        chosen = [spec for spec in chosen if spec.key in options.only]
    else:
        chosen = [spec for spec in chosen if spec.asked_by in asked]
        if options.latency or options.accuracy:
            # Its answers are the same, and its line would cover the other one's.
            chosen = [spec for spec in chosen if spec.key != "thresher-profiled"]
    keys = {spec.key for spec in chosen} | {REFERENCE}
    return tuple(spec.key for spec in ENGINES if spec.key in keys)


def settings_of(options: argparse.Namespace) -> Settings:
    """What the options ask to be measured."""
    special = options.latency or options.accuracy
    model = MODELS[options.model]
    rounds = min(model.rounds, LATENCY_ROUNDS) if options.latency else model.rounds
    return Settings(
        threads=options.threads or ((1,) if special else (1, 2)),
        batches=options.batches or ((1,) if special else (1, 8)),
        sequences=options.sequences or (LATENCY_SEQUENCES if options.latency else (128,)),
        rounds=options.rounds or (min(rounds, QUICK_ROUNDS) if options.quick else rounds),
        engines=engines_of(options),
        model=options.model,
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line; ends the program with code 2 where it makes no sense."""
    made = parser()
    options = made.parse_args(argv)
    if options.rounds is not None and options.rounds < 1:
        made.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.accuracy and not MODELS[options.model].trained:
        made.error(f"--accuracy needs trained weights, and {options.model} has random ones; use --model minilm")
    if options.architectures and "int8" in (options.precision or ()):
        made.error("--architectures takes the types of values fp32, bf16 and fp16, got int8")
    if options.subject != "conv" and (options.commands_file or options.networks is not None):
        made.error("--commands-file and --networks belong to conv: bench/run.py ... conv --networks")
    if options.commands_file and (options.networks is not None or not options.commands_file.exists()):
        made.error(f"--commands-file: expected a file of commands without --networks, got {options.commands_file}")
    if options.subject != "llm" and (options.model_file or options.work):
        made.error("--model-file and --work belong to llm: bench/run.py ... llm --work decode")
    for file in options.model_file or ():
        if not file.exists():
            made.error(f"--model-file: expected a GGUF file or a model's folder, got nothing at {file}")
    if options.subject != "llm" and max(options.sequences or (1,)) > LONGEST:
        made.error(f"--sequences: the models have {LONGEST} positions, got {max(options.sequences)}")
    if options.latency and options.sequences and len(set(options.sequences)) < 2:
        made.error(f"--latency draws lines and needs two sequence lengths, got {options.sequences[0]}")
    return options
