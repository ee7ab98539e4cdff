"""``thresher llm``: language models in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, fail, write_json

if TYPE_CHECKING:
    from thresher.llm import LLM, RankGroup, SamplingParams

_RUN_EPILOG = """
Examples:

- `thresher llm run SmolLM2-135M-Instruct "What is the capital of France?"` answers and ends
- `thresher llm run model "Write a haiku" --draft-model small` lets a smaller model guess: the same answer, sooner
- `thresher llm run model "Once upon a time" --raw --max-tokens 100` continues the text as it stands
- `mpirun -n 2 thresher llm run model "Hello" --tensor-parallel` has two processes compute half of each layer
"""
_CHAT_EPILOG = """
Examples:

- `thresher llm chat SmolLM2-135M-Instruct` asks for lines until the input ends (Ctrl-D)
"""
_BENCH_EPILOG = """
Examples:

- `thresher llm bench model` measures one request at a time
- `thresher llm bench model --batch 1 --batch 8 --prompt 512 --output 64 --json=bench.json` several at a time
"""
_QUANTIZE_EPILOG = """
Examples:

- `thresher llm quantize-report model` compares every encoding with fp32 on 4096 tokens of English
- `thresher llm quantize-report model --text news.txt --encoding q8_0 --json` one of them, on a text of yours
- `thresher llm quantize-report model --encoding q4_0 --encoding q4_0:128` what it costs that 128 weights share a scale
"""

_RECORD_EPILOG = """
Examples:

- `thresher llm record model load --requests 64 --rate 4` records 64 requests that come at random, 4 a second
- `model_stress_test --rate 8 --duration 60 load` gives them to the model again, without Python
"""

_SAMPLE_TOKENS = 4096  # of a text that nobody gave

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A Hugging Face folder or a GGUF file.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Of products: model, fp32, bf16, fp16, int8, int8_weight or int4_weight.")
]
Cache = Annotated[str | None, typer.Option("--kv-cache", help="Of keys and values: f32, bf16, f16, q8_0 or q4_0.")]
Length = Annotated[
    int | None, typer.Option("--max-length", metavar="N", min=2, help="Tokens of a prompt with its answer.")
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:N.")]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        help="Matrices as they are stored (model), fp32, or q8_0, q5_1, q5_0, q4_1 or q4_0; with q4_0:128 that many "
        "numbers share a scale.",
    ),
]
Speculation = Annotated[
    str | None, typer.Option("--speculation", help="ngram: guess what follows from what stands there already.")
]
DraftModel = Annotated[
    Path | None, typer.Option("--draft-model", metavar="MODEL", help="A smaller model with the same tokens guesses.")
]
TensorParallel = Annotated[
    bool, typer.Option("--tensor-parallel", help="One rank of several, started by mpirun: each computes a share.")
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=0, help="0: as many as the engine has.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", metavar="N", min=1, help="Of the answer.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0: always the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", help="Only the most likely tokens up to this probability.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same answer.")]
System = Annotated[str | None, typer.Option("--system", help="A message that stands before the chat.")]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    group = typer.Typer(name="llm", help="Language models: answer, chat, measure.", no_args_is_help=True)
    group.command(name="run", epilog=_RUN_EPILOG)(_run)
    group.command(name="chat", epilog=_CHAT_EPILOG)(_chat)
    group.command(name="bench", cls=Command, epilog=_BENCH_EPILOG)(colored(_bench))
    group.command(name="quantize-report", cls=Command, epilog=_QUANTIZE_EPILOG)(colored(_quantize_report))
    group.command(name="record", epilog=_RECORD_EPILOG)(_record)
    app.add_typer(group)


def _run(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A question, or with --raw a text to continue.")],
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it stands, without a chat.")] = False,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    system: System = None,
    precision: Precision = "model",
    weights: Weights = "model",
    kv_cache: Cache = None,
    max_length: Length = None,
    speculation: Speculation = None,
    draft_model: DraftModel = None,
    threads: Threads = 0,
    device: Device = "cpu",
    tensor_parallel: TensorParallel = False,
) -> None:
    """Answer one prompt."""
    ranks = join_ranks(tensor_parallel)
    params = _params(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    how = {"precision": precision, "weights": weights, "kv_cache": kv_cache}
    guesses = {"speculation": speculation, "draft_model": draft_model}
    options = {"max_length": max_length, "num_threads": threads, "device": device, "ranks": ranks, **how, **guesses}
    with _load(model, options) as llm:
        if raw or llm.tokenizer is None or llm.tokenizer.template is None:
            _print_stream(llm, llm.encode(prompt), params)
        else:
            _print_stream(llm, _prompt(llm, [*_first(system), {"role": "user", "content": prompt}]), params)


def _chat(
    model: Model,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = None,
    system: System = None,
    precision: Precision = "model",
    weights: Weights = "model",
    kv_cache: Cache = None,
    max_length: Length = None,
    speculation: Speculation = None,
    draft_model: DraftModel = None,
    threads: Threads = 0,
    device: Device = "cpu",
) -> None:
    """Chat, one line at a time, until the input ends."""
    params = _params(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    how = {"precision": precision, "weights": weights, "kv_cache": kv_cache}
    guesses = {"speculation": speculation, "draft_model": draft_model}
    with _load(model, {"max_length": max_length, "num_threads": threads, "device": device, **how, **guesses}) as llm:
        messages: list[dict[str, str]] = _first(system)
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            if not line:
                continue
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": _print_stream(llm, _prompt(llm, messages), params)})


def _bench(
    model: Model,
    batch: Annotated[list[int] | None, typer.Option("--batch", metavar="N", min=1, help="Requests at a time.")] = None,
    prompt: Annotated[int, typer.Option("--prompt", metavar="N", min=1, help="Tokens of each prompt.")] = 128,
    output: Annotated[int, typer.Option("--output", metavar="N", min=2, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="How often; medians are shown.")] = 3,
    beside: Annotated[
        int | None,
        typer.Option("--beside", metavar="N", min=1, help="Also: gaps in an answer while a prompt of N tokens comes."),
    ] = None,
    json_file: JsonFile = None,
    precision: Precision = "model",
    weights: Weights = "model",
    kv_cache: Cache = None,
    max_length: Length = None,
    speculation: Speculation = None,
    draft_model: DraftModel = None,
    threads: Threads = 0,
    device: Device = "cpu",
    tensor_parallel: TensorParallel = False,
) -> None:
    """Measure how fast a model answers."""
    import time

    from thresher.llm.bench import bench, bench_gap, peak_memory_bytes

    ranks = join_ranks(tensor_parallel)
    batches = batch or [1]
    length, least = max_length, 1
    if length is None and max(batches) == 1:  # of several, the first go on until the last is under way
        length = prompt + output
    if beside is not None:  # room for the prompt, and for an answer that goes on as long as it takes
        length, least = max(length or 0, beside + 1024), 2
    begin = time.monotonic()
    how = {"precision": precision, "weights": weights, "kv_cache": kv_cache}
    guesses = {"speculation": speculation, "draft_model": draft_model}
    sizes = {"max_length": length, "max_batch": max(*batches, least)}
    where = {"num_threads": threads, "device": device, "ranks": ranks}
    with _load(model, {**where, **sizes, **how, **guesses}) as llm:
        load_s = time.monotonic() - begin
        try:
            results = [
                bench(llm, batch=size, prompt_tokens=prompt, output_tokens=output, rounds=rounds) for size in batches
            ]
            gap = None if beside is None else bench_gap(llm, prompt_tokens=beside).to_dict()
        except ValueError as error:
            fail(str(error))
        data: dict[str, Any] = {
            "model": str(model),
            "precision": precision,
            "load_s": load_s,
            "weight_bytes": llm.runner.weight_bytes,
            "cache_bytes": llm.runner.cache_bytes,
            "peak_memory_bytes": peak_memory_bytes(),
            "results": [result.to_dict() for result in results],
            "beside": gap,
        }
    if not write_json(json_file, data):
        _print_bench(data)


def _quantize_report(
    model: Model,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="What is predicted; default: news of gensim, or Python's manual."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", min=2, help="At most so many of it; default: 4096, with --text all."),
    ] = None,
    encoding: Annotated[
        list[str] | None,
        typer.Option(
            "--encoding",
            metavar="NAME",
            help="One of them, or one with a group (q4_0:128); may be repeated. Default: all.",
        ),
    ] = None,
    window: Annotated[int, typer.Option("--window", metavar="N", min=2, help="Tokens predicted together.")] = 512,
    json_file: JsonFile = None,
    threads: Threads = 0,
) -> None:
    """Compare encodings of a model's weights with fp32: perplexity, and how often the same token is the likeliest."""
    from rich.table import Table

    from thresher.cli.common import engine

    engine()
    try:
        from thresher.llm.quantize_report import ENCODINGS, quantize_report
        from thresher.llm.sample_text import SampleText, sample_text

        sample = sample_text() if text is None else SampleText(text.read_text(encoding="utf-8"), str(text))
        results = quantize_report(
            model,
            sample.text,
            encoding or tuple(ENCODINGS),
            most_tokens=_SAMPLE_TOKENS if tokens is None and text is None else tokens,
            window=window,
            num_threads=threads,
            progress=lambda name: typer.echo(f"{name} ...", err=True),
        )
    except (OSError, ValueError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[llm]'")
    data = {"model": str(model), "text": sample.source, "results": [result.to_dict() for result in results]}
    if write_json(json_file, data):
        return
    table = Table(title=f"{model}, {results[0].tokens} tokens of {sample.source}", title_justify="left")
    table.add_column("encoding")
    for column in ("weights MB", "KV kB/token", "perplexity", "to fp32", "same token"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.weight_bytes / 1e6:.0f}",
            f"{result.cache_token_bytes / 1e3:.1f}",
            f"{result.perplexity:.2f}",
            f"{100 * (result.perplexity / results[0].perplexity - 1):+.2f} %",
            f"{100 * result.agreement:.1f} %",
        )
    console().print(table)


def _record(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Is made; a recording in it is replaced.")],
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=1, help="How many.")] = 16,
    prompt: Annotated[int, typer.Option("--prompt", metavar="N", min=1, help="Tokens of the longest prompt.")] = 128,
    output: Annotated[int, typer.Option("--output", metavar="N", min=1, help="Tokens of each answer.")] = 32,
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=0.0, help="Requests a second; 0: at once.")] = 0.0,
    seed: Seed = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Computed together at most.")] = 8,
    precision: Precision = "model",
    weights: Weights = "model",
    kv_cache: Cache = None,
    threads: Threads = 0,
) -> None:
    """Record a load for model_stress_test, a program without Python that repeats it and compares the answers."""
    from thresher.cli.common import engine

    engine()
    try:
        from thresher.llm.recording import Load, record

        load = Load(requests, prompt, output, rate, seed or 0)
        how: dict[str, Any] = {"precision": precision, "weights": weights, "kv_cache": kv_cache}
        record(model, folder, load, max_batch=batch, num_threads=threads, **how)
    except (OSError, ValueError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[llm]'")
    typer.echo(f"{folder}: {requests} requests and their answers")


def _print_bench(data: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"{data['model']}, precision {data['precision']}", title_justify="left")
    for column in (
        "batch",
        "prompt",
        "output",
        "TTFT ms",
        "prefill tok/s",
        "ms a token",
        "decode tok/s",
        "GB/s",
        "roof",
    ):
        table.add_column(column, justify="right")
    for row in data["results"]:
        share, read = row["roof_share"], row["read_gb_per_s"]
        table.add_row(
            str(row["batch"]),
            str(row["prompt_tokens"]),
            str(row["output_tokens"]),
            f"{row['ttft_ms']:.1f}",
            f"{row['prefill_tokens_per_s']:.0f}",
            f"{row['token_ms']:.2f}",
            f"{row['decode_tokens_per_s']:.1f}",
            "" if read is None else f"{read:.1f}",
            "" if share is None else f"{100 * share:.0f} %",
        )
    shown = console()
    shown.print(table)
    shown.print(
        f"loaded in {data['load_s']:.1f} s; weights {data['weight_bytes'] / 1e6:.0f} MB, cache "
        f"{data['cache_bytes'] / 1e6:.0f} MB, peak memory of the process {data['peak_memory_bytes'] / 1e6:.0f} MB",
        highlight=False,
        soft_wrap=True,
    )
    gap = data["beside"]
    if gap is not None:
        shown.print(
            f"between two tokens of an answer, 99 of 100 times: {gap['alone_p99_ms']:.1f} ms; while a prompt of "
            f"{gap['prompt_tokens']} tokens is computed beside it ({gap['prefill_s']:.1f} s): "
            f"{gap['beside_p99_ms']:.1f} ms",
            highlight=False,
            soft_wrap=True,
        )


def _params(**options: Any) -> SamplingParams:
    from thresher.llm import SamplingParams

    try:
        return SamplingParams(**options)
    except ValueError as error:
        fail(str(error))


def join_ranks(wanted: bool) -> RankGroup | None:
    """The ranks that share a model, where they are wanted; whoever is not rank 0 follows it here to the end."""
    if not wanted:
        return None
    from thresher.llm import RankError, follow
    from thresher.llm.rank_group import started_ranks

    try:
        ranks = started_ranks()
        if ranks.rank == 0:
            return ranks
        follow(ranks)
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[mpi]'")
    except RankError:
        raise typer.Exit(1) from None  # the others say why
    except (OSError, ValueError, RuntimeError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    raise typer.Exit


def _load(model: Path, options: dict[str, Any]) -> LLM:
    from thresher.cli.common import engine

    engine()
    try:
        from thresher.llm import LLM, RankError

        try:
            return LLM(model, **{"max_batch": 1, **options})
        except RankError as error:
            fail(str(error))
    except (OSError, ValueError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[llm]'")


def _first(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _prompt(llm: LLM, messages: list[dict[str, str]]) -> list[int]:
    assert llm.tokenizer is not None
    try:
        return llm.tokenizer.chat_prompt(messages)
    except ValueError as error:
        fail(str(error))


def _print_stream(llm: LLM, prompt: list[int], params: SamplingParams) -> str:
    """Prints an answer as it comes; gives its text."""
    text = ""
    try:
        stream = llm.stream(prompt, params)
    except ValueError as error:
        fail(str(error))
    try:
        for delta in stream:
            text += delta.text
            typer.echo(delta.text, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        stream.cancel()
    typer.echo()
    return text
