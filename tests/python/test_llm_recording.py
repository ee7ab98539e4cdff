"""Loads that are recorded, and the program without Python that repeats them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from small_decoder import write_decoder
from typer.testing import CliRunner

from thresher import _engine, cache, whole_file
from thresher.llm import packed_weights, recording
from thresher.llm.recording import Load, record

PROGRAM = "bin/model_stress_test"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Of the C++ package."""
    if "CPP_PACKAGE" not in os.environ:
        pytest.skip("CPP_PACKAGE names no archive of `nox -s build -- --package`")
    place = tmp_path_factory.mktemp("package") / "model_stress_test"
    with tarfile.open(os.environ["CPP_PACKAGE"]) as archive:
        (entry,) = [each for each in archive.getmembers() if each.name.endswith(PROGRAM)]
        stream = archive.extractfile(entry)
        assert stream is not None
        with place.open("wb") as file:
            shutil.copyfileobj(stream, file)
    place.chmod(0o755)
    return place


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 0)
    cache.set_dir(tmp_path / "cache")
    yield
    cache.set_dir(None)


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return write_decoder(tmp_path / "model", "Qwen2", seed=3, initializer_range=0.3)


def run(program, *arguments):
    done = subprocess.run([program, "--json", *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def changed(folder, begin, change):
    """Changes the first line that begins so."""
    path = Path(folder) / "recording"
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(begin))
    lines[place] = change(lines[place])
    path.write_text("\n".join(lines) + "\n")


def a_graph(folder):
    """One of the files that a recording names."""
    (found,) = Path(folder).glob("head.7.*.graph")
    return found


@pytest.mark.parametrize(
    "options", [{"precision": "int8"}, {"weights": "q8_0"}, {"weights": "q4_0", "kv_cache": "f32"}]
)
def test_a_load_is_answered_as_it_was_recorded(program, model, tmp_path, options):
    load = Load(requests=9, prompt_tokens=70, output_tokens=12, rate=200, seed=5)
    record(model, tmp_path / "load", load, max_batch=3, max_step_tokens=40, **options)
    code, found, error = run(program, tmp_path / "load")
    assert (code, error) == (0, "")
    assert found["exact"] and found["requests"] == 9 and found["failed"] == 0
    assert found["answer_tokens"] == 9 * 12
    assert found["packed_bytes"] == found["packed_bytes_of_the_cache"] > 0, "nothing is packed again"
    assert found["first_token_ms"]["p50"] <= found["first_token_ms"]["p99"] <= found["answer_ms"]["p99"]
    code, found, _ = run(program, "--rate", 300, "--duration", 0.1, "--threads", 1, tmp_path / "load")
    assert code == 0 and found["requests"] == 30 and found["threads"] == 1


def renamed(folder, part, old, new):
    """An input of the graphs of a part, and the recording as whole as it was."""

    def line_of(line):
        *words, _, name = line.split(" ")
        text = (folder / name).read_text()
        assert f'"{old}"' in text
        (folder / name).write_text(text.replace(f'"{old}"', f'"{new}"'))
        (digest,) = _engine.digests([np.frombuffer((folder / name).read_bytes(), np.uint8)])
        return " ".join([*words, digest, name])

    for size in recording._SIZES:
        changed(folder, f"graph {part} {size} ", line_of)


def test_an_answer_that_differs_fails_alone(program, model, tmp_path):
    record(model, tmp_path / "load", Load(requests=4, prompt_tokens=9, output_tokens=5), weights="q8_0")
    changed(tmp_path / "load", "request", lambda line: line.rsplit(" ", 1)[0] + " 159")
    code, found, error = run(program, tmp_path / "load")
    assert code == 1
    assert (found["requests"], found["failed"]) == (4, 1)
    assert "expected 159 as token 4 of the answer, got" in error


def test_a_request_that_cannot_fit_fails_alone(program, model, tmp_path):
    record(model, tmp_path / "load", Load(requests=3, prompt_tokens=9, output_tokens=5), weights="q8_0")
    long = " ".join(["request 0 100 2", *["7"] * 102])
    changed(tmp_path / "load", "request", lambda _: long)
    code, found, error = run(program, tmp_path / "load")
    assert (code, found["requests"], found["failed"]) == (1, 3, 1)
    assert "expected at most 32 tokens, got 102" in error


def test_sums_in_floats_are_not_compared(program, model, tmp_path):
    record(model, tmp_path / "load", Load(requests=3, prompt_tokens=9, output_tokens=5), precision="fp32")
    code, found, _ = run(program, tmp_path / "load")
    assert code == 0 and not found["exact"] and found["answer_tokens"] == 15


def test_without_a_cache_weights_are_packed(program, model, tmp_path):
    with cache.disabled():
        record(model, tmp_path / "load", Load(requests=2, prompt_tokens=9, output_tokens=5), weights="q4_0")
    code, found, _ = run(program, tmp_path / "load")
    assert code == 0 and found["packed_bytes"] > found["packed_bytes_of_the_cache"] == 0


@pytest.mark.parametrize(
    "spoil, text",
    [
        (lambda folder, _: (folder / "recording").unlink(), "name a folder that `thresher llm record` wrote"),
        (lambda folder, _: changed(folder, "request", lambda line: "request 0 5 5 1 2"), "expected more tokens"),
        (lambda folder, _: changed(folder, "step_tokens", lambda line: "steps 5"), "expected a line of another kind"),
        (lambda folder, _: changed(folder, "graph body 1 ", lambda line: "exact 1"), "the graph body at one row"),
        (lambda folder, _: changed(folder, "part ", lambda line: line + "0000000"), "expected a place within"),
        (lambda folder, _: changed(folder, "end", lambda _: ""), "expected a line of another kind, got ''"),
        (lambda folder, _: changed(folder, "end", lambda _: "exact 1"), "it was cut short"),
        (lambda folder, _: a_graph(folder).write_text("graph 1\nreturn %9\n"), ".graph: expected contents of digest"),
        (lambda folder, _: a_graph(folder).unlink(), ".graph: expected a file that can be read"),
        (lambda folder, _: renamed(folder, "head", "lengths", "sizes"), "got 'sizes' among them"),
        (lambda folder, _: renamed(folder, "head", "kv.1", "kv.9"), "got 'kv.9' among them"),
        (lambda _, model: (model / "model.safetensors").write_bytes(b"other"), "expected contents of digest"),
        (lambda _, model: (model / "model.safetensors").unlink(), "expected a file that can be read"),
    ],
)
def test_what_does_not_fit_is_named(program, model, tmp_path, spoil, text):
    record(model, tmp_path / "load", Load(requests=2, prompt_tokens=9, output_tokens=5), weights="q8_0")
    spoil(tmp_path / "load", model)
    code, found, error = run(program, tmp_path / "load")
    assert (code, found) == (2, None)
    assert text in error


@pytest.mark.parametrize("after", range(6))
def test_a_recording_that_is_not_ended_leaves_the_old_one(model, tmp_path, monkeypatch, after):
    """As when the process is killed between any two files."""
    folder = tmp_path / "load"
    small = Load(requests=2, prompt_tokens=9, output_tokens=5)
    record(model, folder, small, weights="q8_0")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    written = []

    class KilledError(Exception):
        pass

    def writing(path, **options):
        if len(written) == after:
            raise KilledError
        written.append(path)
        return whole_file.writing(path, **options)

    monkeypatch.setattr(recording, "writing", writing)
    with pytest.raises(KilledError):
        record(model, folder, dataclasses.replace(small, prompt_tokens=90), weights="q4_0")
    assert {name: (folder / name).read_bytes() for name in before} == before
    monkeypatch.undo()
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 0)
    record(model, folder, dataclasses.replace(small, prompt_tokens=90), weights="q4_0")
    text = (folder / "recording").read_text()
    assert all(path.name in text for path in folder.iterdir() if path.name != "recording"), "what it replaced is gone"
    assert not any(path.name.endswith(whole_file.SUFFIX) for path in folder.iterdir())


@pytest.mark.parametrize("arguments", [[], ["--rate", "x", "load"], ["--rate"], ["--other", "load"], ["a", "b"]])
def test_a_wrong_command_line_shows_how(program, arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: model_stress_test")


def test_command(model, tmp_path):
    from thresher.cli.app import app

    folder = str(tmp_path / "load")
    done = CliRunner().invoke(
        app, ["llm", "record", str(model), folder, "--requests", "3", "--output", "4", "--prompt", "8"]
    )
    assert done.exit_code == 0, done.output
    assert "3 requests and their answers" in done.output
    assert (tmp_path / "load" / "recording").read_text().count("\nrequest ") == 3
    assert CliRunner().invoke(app, ["llm", "record", str(tmp_path / "none"), folder]).exit_code != 0
