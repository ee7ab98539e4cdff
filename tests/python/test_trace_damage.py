"""Damaged files of every kind become a report or a TraceError, never anything else."""

from __future__ import annotations

import gzip
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from json_schema import violations
from trace_samples import chrome_file, complete, write_encoder

from thresher.profiler.analysis import build_report
from thresher.profiler.trace import TraceError, read_trace

SCHEMA = json.loads((resources.files("thresher.profiler.analysis") / "schema.json").read_text())


def whole(kind: str, folder: Path) -> bytes:
    if kind == "native":
        return write_encoder(folder / "whole", 6, block=30).read_bytes()
    events = [
        complete(
            "cpu_op", "aten::mm", n * 10.5, 9.25, **{"External id": n, "Input Dims": [[2, 3]], "Input type": ["float"]}
        )
        for n in range(20)
    ]
    events += [
        complete("kernel", "linear fp32", n * 10.5, 3, pid=0, correlation=n, flops=5e3, bytes=100) for n in range(9)
    ]
    text = chrome_file(folder / "whole", events, thresher={"peaks": {"by_threads": []}, "num_threads": 2}).read_bytes()
    return gzip.compress(text) if kind == "compressed" else text


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """The same with up to three changed, missing, new or overwritten places."""
    found = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        where = int(random.integers(0, len(found)))
        match int(random.integers(0, 4)):
            case 0:
                found[where] = int(random.integers(0, 256))
            case 1:
                del found[where : where + int(random.integers(1, 200))]
            case 2:
                found[where:where] = random.integers(0, 256, int(random.integers(1, 50)), np.uint8).tobytes()
            case _:
                found[where : where + 8] = b"99999999"
    return bytes(found)


# How many of 60 can be read in spite of the damage, at least. Of compressed files nearly none can.
@pytest.mark.parametrize(("kind", "readable"), [("native", 5), ("chrome", 5), ("compressed", 0)])
def test_damage(kind: str, readable: int, tmp_path: Path) -> None:
    data = whole(kind, tmp_path)
    assert is_read(tmp_path / "whole again", data), "undamaged"
    read = [is_read(tmp_path / f"{seed}", damaged(data, np.random.default_rng(seed))) for seed in range(60)]
    assert readable <= sum(read) < 60


_VALUES = (b"null", b"-1", b"1e999", b"NaN", b'""', b"[]", b"{}", b"true", b"9" * 25, b"-0.0", b'"\\ud800"', b'"x"')


def test_values_that_make_no_sense(tmp_path: Path) -> None:
    original = whole("chrome", tmp_path)
    places = [match.span() for match in re.finditer(rb'-?\d+\.?\d*|"[^"]*"', original)]
    read = 0
    for seed in range(100):
        random, data = np.random.default_rng(seed), original
        for begin, end in sorted((places[index] for index in random.integers(0, len(places), 3)), reverse=True):
            data = data[:begin] + _VALUES[int(random.integers(0, len(_VALUES)))] + data[end:]
        read += is_read(tmp_path / f"odd-{seed}", data)
    assert 10 <= read < 100


def is_read(file: Path, data: bytes) -> bool:
    """Whether these bytes become a report, which then has to be right; all else must be a TraceError."""
    file.write_bytes(data)
    try:
        trace = read_trace(file)
    except TraceError as error:
        assert "expected" in str(error)
        return False
    report = build_report(trace)
    total = report["overview"]["total"]
    assert sum(total["by_category"].values()) == total["wall_ns"]
    assert violations(report, SCHEMA) == []
    json.dumps(report, allow_nan=False)
    return True


def test_compressed_data_is_not_kept_without_bounds(tmp_path: Path) -> None:
    """Members beside the events, of 48 MiB together, in a file of 50 KB."""
    path = tmp_path / "members.json.gz"
    with gzip.open(path, "wt") as file:
        file.write("{")
        for number in range(6):
            file.write(f'"m{number}": "{"x" * (8 << 20)}", ')
        file.write('"traceEvents": []}')
    assert path.stat().st_size < 100_000
    with pytest.raises(TraceError, match=r"expected at most \d+ characters beside 'traceEvents'"):
        read_trace(path)
