"""``thresher serve``: a language model over HTTP."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from thresher.cli.common import fail
from thresher.cli.llm import Cache, Length, Model, Precision, TensorParallel, Threads, join_ranks

if TYPE_CHECKING:
    from thresher.llm import RankGroup
    from thresher.serve.served_model import ServedModel

_EPILOG = """
Examples:

- `thresher serve SmolLM2-135M-Instruct` answers at http://127.0.0.1:8000 as OpenAI's API does
- `thresher serve model.gguf --embedding all-MiniLM-L6-v2` also turns texts into vectors and ranks documents
- `thresher serve model.gguf --processes 2` has two engines, each on half of the cores
- `mpirun -n 2 thresher serve model.gguf --tensor-parallel` has two engines that share each layer
- `thresher serve model.gguf --host 0.0.0.0 --api-key-file keys.txt` lets others in who have a key
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="serve", epilog=_EPILOG)(_serve)


def _serve(
    model: Model,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    embedding: Annotated[
        Path | None, typer.Option("--embedding", metavar="MODEL", help="An encoder's folder, for /v1/embeddings.")
    ] = None,
    embedding_name: Annotated[
        str | None, typer.Option("--embedding-name", help="Of the encoder for clients; default: its folder's.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the model for clients; default: its file's.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option("--api-key", metavar="KEY", help="Clients have to send it; may be repeated.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="The same, a key a line.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", metavar="URL", help="A web page that may send requests; may be repeated."),
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option("--requests-per-minute", metavar="N", min=1, help="Of one key, or of one address.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="In PEM; answers by HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Of the certificate.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Each with the model, on a share of the cores.")
    ] = 1,
    max_batch: Annotated[int, typer.Option("--max-batch", metavar="N", min=1, help="Answers at a time.")] = 16,
    max_waiting: Annotated[
        int | None,
        typer.Option("--max-waiting", metavar="N", min=1, help="In the queue, then 429. Default: half of --max-batch."),
    ] = None,
    max_length: Length = None,
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", metavar="N", min=1, help="Of a request.")] = 16
    << 20,
    precision: Precision = "model",
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help="Matrices: model (as stored), fp32, q8_0, q5_1, q5_0, q4_1 or q4_0; q4_0:128: so many share a scale.",
        ),
    ] = "model",
    kv_cache: Cache = None,
    kv_cache_bytes: Annotated[
        int | None, typer.Option("--kv-cache-bytes", metavar="N", min=1, help="Memory for keys and values.")
    ] = None,
    speculation: Annotated[
        str | None, typer.Option("--speculation", metavar="NAME", help="ngram: guess tokens and check several at once.")
    ] = None,
    threads: Threads = 0,
    tensor_parallel: TensorParallel = False,
    allow_grammars: Annotated[
        bool, typer.Option("--allow-grammars", help="Clients may send grammars; some make the engine hang.")
    ] = False,
    stall_seconds: Annotated[
        float, typer.Option("--stall-seconds", min=0.1, help="A step that takes longer makes /health say 503.")
    ] = 10.0,
    shutdown_seconds: Annotated[
        float, typer.Option("--shutdown-seconds", min=0.0, help="What open requests get to end in.")
    ] = 30.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line for each request.")] = False,
) -> None:
    """Serve a language model over HTTP, as OpenAI's API has it."""
    try:
        from thresher.serve.app import guarded
        from thresher.serve.served_model import ServedModel
        from thresher.web.guard import is_loopback_address
        from thresher.web.running import AddressError, Server, bind, url_of
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[serve]'")
    if tensor_parallel and processes > 1:
        fail("expected --tensor-parallel or --processes, got both; mpirun -n says how many ranks share the model")
    ranks = join_ranks(tensor_parallel)
    keys = [*(api_key or ()), *_keys_of(api_key_file)]
    if (tls_certificate is None) != (tls_key is None):
        fail("expected --tls-certificate and --tls-key together, got one of them")
    served = ServedModel(
        path=str(model.absolute()),
        name=name or model.stem,
        options={
            "precision": precision,
            "weights": weights,
            "kv_cache": kv_cache,
            "kv_cache_bytes": kv_cache_bytes,
            "max_batch": max_batch,
            "max_waiting": max_waiting or max(1, max_batch // 2),  # so that nobody waits as long as an answer takes
            "max_length": max_length,
            "speculation": speculation,
            "num_threads": threads,
        },
        embedding=None if embedding is None else str(embedding.absolute()),
        grammars=allow_grammars,
        embedding_name=embedding_name or ("" if embedding is None else embedding.absolute().name),
        stall_s=stall_seconds,
    )
    if served.name == served.embedding_name:
        fail(f"expected a name of its own for each model, got {served.name} twice; give --embedding-name")
    try:
        bound = bind(host, port)
    except AddressError as error:
        fail(str(error))
    loopback = is_loopback_address(host)
    if not loopback and not keys:
        typer.echo(f"thresher: warning: whoever reaches {host} may use the model; give --api-key-file", err=True)
    url = url_of(bound, tls=tls_key is not None)
    several = f", by {processes} processes" if processes > 1 else ""
    if ranks is not None:
        several = f", by {ranks.size} ranks"
    one = processes == 1
    with _service(served, max_body_bytes, ranks) if one else _router(served, processes, max_body_bytes) as front:
        app = guarded(
            front.app,
            api_keys=keys,
            allow_origins=allow_origin or (),
            loopback=loopback,
            requests_per_minute=requests_per_minute,
        )
        try:
            server = Server(
                app,
                drain=front.drain,
                abort=front.abort,
                shutdown_s=shutdown_seconds,
                ready=lambda: typer.echo(f"{served.name} at {url}/v1{several}"),
                tls_certificate=tls_certificate,
                tls_key=tls_key,
                access_log=access_log,
            )
        except OSError as error:
            fail(f"expected a certificate and its key, got {error}")
        server.run(sockets=[bound])


class _Front(NamedTuple):
    """What answers requests, and how it is told of the end."""

    app: Any
    drain: Callable[[], None]
    abort: Callable[[], None]


@contextmanager
def _service(served: ServedModel, max_body_bytes: int, ranks: RankGroup | None) -> Iterator[_Front]:
    """The model in this process, or its rank 0 here and the others beside it."""
    from thresher.cli.common import engine
    from thresher.llm import RankError
    from thresher.serve.app import create_routes

    engine()
    try:
        service = served.load(ranks)
    except RankError as error:
        fail(str(error))
    except (OSError, ValueError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[serve]'")
    with service.llm:
        yield _Front(create_routes(service, max_body_bytes), service.drain, service.abort)


@contextmanager
def _router(served: ServedModel, processes: int, max_body_bytes: int) -> Iterator[_Front]:
    """The model in processes of their own, each on a share of the cores."""
    from thresher.cli.common import engine
    from thresher.serve.router import Router
    from thresher.serve.workers import WorkerError, Workers

    engine()
    with tempfile.TemporaryDirectory(prefix="thresher-") as folder:  # nobody else may read it
        try:
            workers = Workers.of(served, processes, Path(folder), max_body_bytes=max_body_bytes)
            workers.start()
        except (ValueError, WorkerError) as error:
            fail(str(error))
        try:
            router = Router(workers, max_body_bytes=max_body_bytes)
            yield _Front(router, router.drain, workers.stop)
        finally:
            workers.stop()
            workers.join()


def _keys_of(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        keys = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        fail(f"expected a file of keys, got {error}")
    if not keys:
        fail(f"expected a key a line in {file}, got none")
    return keys
