"""``thresher run``: runs a model file."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, fail, write_json

if TYPE_CHECKING:
    import numpy.typing as npt

    from thresher.model import Model, Port

_EPILOG = """
Examples:

- `thresher run encoder.thrmodel` shows inputs and outputs, and how long a call takes with zeros as inputs
- `thresher run encoder.thrmodel --input input_ids=ids.npy --input attention_mask=mask.npy --output out.npz` computes
- `thresher run encoder.thrmodel --size batch=4 --size seq=128` times that size, where the file holds many
- `thresher run encoder.thrmodel --repeat 100 --precision int8 --json` gives times for programs
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="run", cls=Command, epilog=_EPILOG)(colored(_run))


def _run(
    file: Annotated[Path, typer.Argument(help="A file that thresher.export wrote.")],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input from a file of numpy, NAME=FILE.npy. Others are zeros."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results to this .npz file.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How many calls to time; one more goes before them.")] = 10,
    shape: Annotated[int, typer.Option(min=0, help="Which combination of shapes zeros have, from 0.")] = 0,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help="A size of zeros, NAME=NUMBER, where the file holds many. Others are the largest."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="How layers with weights compute; default: the file's.")] = None,
    level: Annotated[str, typer.Option(help="Optimisation level, O0 to O3.")] = "O2",
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads that share one operator's work.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Run a model file, without PyTorch: results, shapes and times."""
    from thresher.model import load

    try:
        model = load(file, precision=precision, optimization_level=level, threads=threads)  # type: ignore[arg-type]
        arrays = _inputs(model, given or [], shape, _sizes(sizes or []))
        results = model(**arrays)
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            results = model(**arrays)
            seconds.append(time.perf_counter() - start)
    except (ValueError, TypeError, OSError, IndexError, NotImplementedError, MemoryError) as error:
        fail(str(error))
    if output is not None:
        _write(output, results)
    stats = model.stats()
    zeros = [port.name for port in model.inputs if port.name not in _names(given or [])]
    data = {
        "model": model.name,
        "engine": stats.engine,
        "isa": stats.isa,
        "precision": stats.precision,
        "threads": stats.threads,
        "load_ms": stats.load_seconds * 1e3,
        "median_ms": statistics.median(seconds) * 1e3,
        "least_ms": min(seconds) * 1e3,
        "calls": repeat,
        "inputs": [_describe(name, array, zeros) for name, array in arrays.items()],
        "outputs": [_describe(name, array, []) for name, array in results.items()],
        "shapes": len(model.shapes),
    }
    if not write_json(json_file, data):
        _print(data)


def _names(given: list[str]) -> set[str]:
    return {entry.partition("=")[0] for entry in given}


def _inputs(model: Model, given: list[str], shape: int, sizes: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    if shape >= len(model.shapes):
        fail(f"--shape: expected at most {len(model.shapes) - 1}, got {shape}; the file holds {len(model.shapes)}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        if not equals or not path or name in arrays:
            fail(f"--input: expected NAME=FILE.npy, each name once, got {entry!r}")
        arrays[name] = read_array(Path(path))
    fitting = [ports for ports, _ in model.shapes if _fits(ports, arrays)]
    ports = model.shapes[shape][0] if not arrays or not fitting else fitting[0]
    if sizes:
        ports = model.inputs_at(sizes)
    return {**{port.name: np.zeros(port.shape, port.dtype) for port in ports}, **arrays}


def _sizes(given: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in given:
        name, _, number = entry.partition("=")
        if not name or not number.isascii() or not number.isdigit() or name in sizes:
            fail(f"--size: expected NAME=NUMBER, each name once, got {entry!r}; write --size batch=4")
        sizes[name] = int(number)
    return sizes


def read_array(path: Path) -> npt.NDArray[Any]:
    """The array in a file of numpy.

    Raises:
        ValueError: It is no such file, or one with several arrays.
        OSError: It cannot be read.
    """
    import numpy as np

    try:
        # Mapped first, so that a header cannot ask for more memory than the file has bytes.
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # what numpy raises for damaged files is not documented
        raise ValueError(f"--input: expected a file that numpy.save wrote, got in {path}: {error}") from error
    if not isinstance(mapped, np.ndarray):
        mapped.close()
        raise ValueError(f"--input: expected a file with one array, got several in {path}; save it with numpy.save")
    return np.array(mapped)


def _fits(ports: tuple[Port, ...], arrays: dict[str, npt.NDArray[Any]]) -> bool:
    return all(arrays[port.name].shape == port.shape for port in ports if port.name in arrays)


def _describe(name: str, array: npt.NDArray[Any], zeros: list[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
    return {**entry, "zeros": True} if name in zeros else entry


def _write(path: Path, results: dict[str, npt.NDArray[Any]]) -> None:
    import numpy as np

    from thresher.profiler.export import OutputError, open_output

    try:
        with open_output(path, force=True) as stream:
            np.savez(stream, **results)  # type: ignore[arg-type]
    except OutputError as error:
        fail(f"--output: {error}")


def _print(data: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=data["model"], title_justify="left")
    for column in ("", "name", "dtype", "shape"):
        table.add_column(column)
    for kind in ("inputs", "outputs"):
        for entry in data[kind]:
            note = " (zeros)" if entry.get("zeros") else ""
            table.add_row(kind[:-1], entry["name"], entry["dtype"], "x".join(map(str, entry["shape"])) + note)
    screen = console()
    screen.print(table)
    screen.print(
        f"{data['precision']} on {data['isa']}, {data['threads']} threads: loaded in {data['load_ms']:.0f} ms; "
        f"a call takes {data['median_ms']:.3f} ms (median of {data['calls']}, least {data['least_ms']:.3f})",
        highlight=False,
        soft_wrap=True,
    )
    if data["shapes"] > 1:
        screen.print(f"The file holds {data['shapes']} combinations of shapes.", highlight=False)
