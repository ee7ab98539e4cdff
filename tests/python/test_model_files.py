"""Models written to files and run from them, with and without PyTorch."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import limit_file_size, run_python

torch = pytest.importorskip("torch")

import thresher  # noqa: E402

# A process in which importing PyTorch fails.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def sentences(batch: int, length: int, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 30000, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length // 2 :] = 0
    return ids, mask


@pytest.fixture(scope="module")
def minilm_file(minilm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "minilm.thrmodel"
    shapes = [sentences(2, 16, 0), sentences(1, 9, 0)]
    assert thresher.export(minilm, shapes, path) == path
    return path


class Mlp(torch.nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.fixture
def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp().eval()


def agree(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.from_numpy(np.asarray(found)), wanted.detach(), rtol=1e-4, atol=1e-5)


# ---- a real model, in a process without PyTorch ----


@pytest.mark.parametrize("batch, length", [(2, 16), (1, 9)])
def test_minilm_without_pytorch_gives_what_eager_gives(
    minilm: Any, minilm_file: Path, tmp_path: Path, batch: int, length: int
) -> None:
    ids, mask = sentences(batch, length, 3)
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=mask)
    done = run_python(
        WITHOUT_TORCH + "import numpy, thresher\n"
        f"model = thresher.load({str(minilm_file)!r})\n"
        f"given = numpy.load({str(tmp_path / 'inputs.npz')!r})\n"
        "outputs = model(given['input_ids'], attention_mask=given['attention_mask'])\n"
        f"numpy.savez({str(tmp_path / 'outputs.npz')!r}, **outputs)\n"
        "assert not [name for name in sys.modules if name.startswith(('torch.', 'transformers'))]\n"
    )
    assert done.returncode == 0, done.stderr
    outputs = np.load(tmp_path / "outputs.npz")
    assert outputs.files == ["last_hidden_state", "pooler_output"]
    with torch.no_grad():
        eager = minilm(ids, attention_mask=mask)
    for name in outputs.files:
        agree(outputs[name], eager[name])


def test_the_file_holds_each_weight_once_and_says_what_it_is(minilm: Any, minilm_file: Path) -> None:
    weights = sum(parameter.nbytes for parameter in minilm.parameters())
    assert weights < minilm_file.stat().st_size < weights * 1.01
    model = thresher.load(minilm_file)
    assert [str(port) for port in model.inputs] == ["input_ids: int64[2, 16]", "attention_mask: int64[2, 16]"]
    assert [str(port) for port in model.outputs] == [
        "last_hidden_state: float32[2, 16, 384]",
        "pooler_output: float32[2, 384]",
    ]
    assert [inputs[0].shape for inputs, _ in model.shapes] == [(2, 16), (1, 9)]
    assert "1 more shape" in repr(model) and model.name == "minilm"
    stats = model.stats()
    assert (stats.engine, stats.precision) == (thresher.__version__, "model")
    assert 0 < stats.packed_bytes < weights  # once for both shapes; tables are not packed
    assert len(stats.working_bytes) == 2 and stats.load_seconds > 0
    origins = {origin for _, _, origin in model.plan().constants()}
    assert "caller" in origins
    assert any("bert" in str(step["source"]) for step in model.plan().steps())


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.thorough), "int8"])
def test_a_precision_chosen_when_loading_is_that_of_compile(
    compiler: Any, minilm: Any, minilm_file: Path, precision: str
) -> None:
    ids, mask = sentences(2, 16, 4)
    compiled = compiler.compile(minilm, precision=precision, precision_exclude=("pooler",))
    with torch.no_grad():
        wanted = compiled(ids, mask)
    model = thresher.load(minilm_file, precision=precision, precision_exclude=("pooler",))
    agree(model(ids, mask)["last_hidden_state"], wanted.last_hidden_state)
    decisions = model.stats().precision_decisions
    assert {d["precision"] for d in decisions if d["module"] == "pooler.dense"} == {"fp32"}
    assert {d["precision"] for d in decisions if d["module"] != "pooler.dense"} == {precision}


def test_calls_are_in_the_profile(minilm_file: Path) -> None:
    model = thresher.load(minilm_file)
    ids, mask = sentences(1, 9, 5)
    thresher.profiler.reset()
    thresher.profiler.start()
    try:
        model(ids, mask)
        model(ids, mask)
    finally:
        thresher.profiler.stop()
    (phase,) = json.loads(thresher.profiler.op_report(format="json"))["phases"]
    assert phase["calls"] == 2
    thresher.profiler.reset()


# ---- what a model may take and give ----


def test_names_and_results_of_all_sorts(tmp_path: Path) -> None:
    Pair = namedtuple("Pair", "low high")

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("offset", torch.arange(6.0), persistent=False)
            self.table = torch.randn(3, 6)  # neither parameter nor buffer

        def forward(self, x: Any, unused: Any, steps: int, *, scale: Any) -> dict[str, Any]:
            y = x * scale + self.offset + self.table
            y.add_(steps)  # in place, on a tensor of its own
            return {
                "same": x,
                "turned": y.transpose(0, 1),
                "pair": Pair(y - 1, (y + 1).sum(-1)),
                "nothing": None,
                "again": [y.transpose(0, 1), self.offset],
            }

    model = Mixed()
    x, unused, scale = torch.randn(3, 6), torch.randn(2, 2), torch.tensor(0.5)
    path = thresher.export(model, (x, unused, 3), tmp_path / "mixed.thrmodel", kwargs={"scale": scale})
    loaded = thresher.load(path)
    assert [port.name for port in loaded.inputs] == ["x", "unused", "scale"]
    assert loaded.inputs[2].shape == ()
    other = torch.randn(6, 3).t()  # not row-major
    wanted = model(other, unused, 3, scale=scale)
    found = loaded(other.numpy(), unused.numpy(), scale=np.float32(0.5))
    assert list(found) == ["same", "turned", "pair.low", "pair.high", "again.0", "again.1"]
    flat = [wanted["same"], wanted["turned"], *wanted["pair"], *wanted["again"]]
    for array, tensor in zip(found.values(), flat, strict=True):
        assert array.shape == tuple(tensor.shape)
        agree(array, tensor)


def test_results_without_names(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1, x > 0

    outputs = thresher.load(thresher.export(Two(), (torch.zeros(2),), tmp_path / "two"))(np.zeros(2, np.float32))
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "output_0": [1.0, 1.0],
        "output_1": [False, False],
    }
    one = thresher.load(thresher.export(torch.nn.ReLU(), (torch.zeros(2),), tmp_path / "one"))
    assert [port.name for port in one.outputs] == ["output"]


def test_several_shapes_by_name(mlp: Mlp, tmp_path: Path) -> None:
    shapes = [{"x": torch.zeros(n, 16)} for n in (1, 4)]
    model = thresher.load(thresher.export(mlp, (), tmp_path / "mlp", kwargs=shapes))
    for n in (4, 1):
        x = torch.randn(n, 16)
        agree(model(x=x.numpy())["output"], mlp(x))
    with pytest.raises(
        ValueError, match=r"expected inputs \(x: f32\[1, 16\]\) or \(x: f32\[4, 16\]\), got \(f32\[2, 16\]\)"
    ):
        model(np.zeros((2, 16), np.float32))


def test_threads_share_a_model(mlp: Mlp, tmp_path: Path) -> None:
    model = thresher.load(thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp"))
    xs = [torch.randn(3, 16) for _ in range(4)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = model(xs[i].numpy())["output"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        agree(found[i], mlp(x))


def test_inputs_that_do_not_fit_are_named(mlp: Mlp, tmp_path: Path) -> None:
    model = thresher.load(thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp"))
    x = np.zeros((3, 16), np.float32)
    for args, kwargs, found in [
        ((), {}, "no x"),
        ((x, x), {}, "2 without a name"),
        ((x,), {"x": x}, "x twice"),
        ((), {"y": x}, "'y'"),
    ]:
        with pytest.raises(TypeError, match=f"expected the inputs x, got {found}"):
            model(*args, **kwargs)
    with pytest.raises(ValueError, match=r"expected inputs \(x: f32\[3, 16\]\), got \(i64\[3, 16\]\)"):
        model(x.astype(np.int64))
    with pytest.raises(TypeError, match="got float64; convert it first"):
        model(x.astype(np.float64))


def test_an_index_out_of_range_fails_that_call_only(tmp_path: Path) -> None:
    table = torch.nn.Embedding(10, 4)
    model = thresher.load(thresher.export(table, (torch.zeros(3, dtype=torch.long),), tmp_path / "table"))
    with pytest.raises(IndexError):
        model(np.array([0, 10, 1]))
    agree(model(np.array([0, 9, 1]))["output"], table(torch.tensor([0, 9, 1])))


# ---- what is refused ----


def test_all_operators_that_the_engine_lacks_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    class Strange(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cumprod(x, 0) + torch.linalg.matrix_exp(x)

    with pytest.raises(thresher.UnsupportedOperatorError) as caught:
        thresher.export(Strange(), (torch.eye(3),), tmp_path / "strange.thrmodel")
    message = str(caught.value)
    assert message.startswith("the engine lacks 2 operators of this model:")
    assert "aten.cumprod.default(x: float32[3, 3]) -> float32[3, 3]" in message
    assert "linalg_matrix_exp" in message and "test_model_files.py:" in message
    assert len(caught.value.operators) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_changes_its_buffers_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(thresher.ExportError, match=r"its buffer 1\.running_mean.*call model\.eval\(\) first"):
        thresher.export(model, (torch.zeros(2, 4),), tmp_path / "norm")


def test_what_cannot_be_captured_says_so(mlp: Mlp, tmp_path: Path) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    class Number(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1, 7

    x = torch.zeros(3, 16)
    for model, args, found in [
        (Branch(), (x,), "torch.export cannot capture this model"),
        (Number(), (x,), "output_1: expected tensors as results, got 7"),
        (torch.relu, (x,), "expected a torch.nn.Module"),
        (mlp, (torch.zeros(0, 16),), "expected tensors with elements"),
        (mlp, x, "write \\(x,\\) for one argument"),
        (mlp, [x], "write \\(x,\\) for one argument"),
        (mlp, [(x,), (x,)], r"\(x: f32\[3, 16\]\) twice"),
    ]:
        with pytest.raises(thresher.ExportError, match=found):
            thresher.export(model, args, tmp_path / "none")
    with pytest.raises(thresher.ConfigError, match="precision: expected one of"):
        thresher.export(mlp, (x,), tmp_path / "none", precision="int7")
    with pytest.raises(thresher.ExportError, match="nothing was written; name a file that can be written"):
        thresher.export(mlp, (x,), tmp_path / "no" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_nothing_else(mlp: Mlp, tmp_path: Path) -> None:
    path = thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp.thrmodel")
    before = path.read_bytes()
    done = run_python(
        "import numpy\n"
        "from thresher import _engine\n"
        "graph = _engine.Graph()\n"
        "graph.set_outputs([graph.constant('large', numpy.ones(4096, numpy.float32), weight=True)])\n"
        f"{limit_file_size(4096)}"
        f"try: _engine.write_model({str(path)!r}, 'mlp', [(graph, ['output'])])\n"
        "except ValueError as error: print(error)\n"
    )
    assert "File too large; nothing was written; make room" in done.stdout, done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["mlp.thrmodel"]
    assert path.read_bytes() == before


def test_damaged_files_are_refused_at_every_section_and_byte(mlp: Mlp, tmp_path: Path) -> None:
    path = thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp.thrmodel")
    good = path.read_bytes()
    sections = struct.unpack_from("<I", good, 12)[0]
    assert sections == 4
    for i in range(sections):
        offset, size = struct.unpack_from("<QQ", good, 64 + 40 * i + 8)
        for end in (offset - 1, offset, offset + size // 2):
            path.write_bytes(good[:end])
            with pytest.raises(ValueError, match=r"the file is (incomplete|damaged): copy or export it again"):
                thresher.load(path)
        for at in range(offset, offset + size, max(1, size // 5)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            with pytest.raises(ValueError, match=rf"model file {path}: .*expected contents of digest"):
                thresher.load(path)
    path.write_bytes(b"PK" + good[2:])
    with pytest.raises(ValueError, match=r"name a file that thresher.export wrote"):
        thresher.load(path)
    path.write_bytes(good[:8] + struct.pack("<I", 7) + good[12:])
    with pytest.raises(NotImplementedError, match=r"expected format version 2, got 7"):
        thresher.load(path)
    with pytest.raises(FileNotFoundError, match=r"thresher.export writes one"):
        thresher.load(tmp_path / "none")
    path.write_bytes(good)
    thresher.load(path)


def test_settings_of_load_are_checked(mlp: Mlp, tmp_path: Path) -> None:
    path = thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp", precision="bf16")
    assert thresher.load(path).stats().precision == "bf16"
    assert thresher.load(path, precision="fp32").stats().precision == "fp32"
    assert thresher.load(path, threads=1).stats().threads == 1
    for settings, message in [
        ({"precision": "int7"}, "expected one of model, fp32, bf16"),
        ({"optimization_level": "O9"}, "O9"),
        ({"optimization_level": "O0"}, "multiplies weights as they are stored"),
        ({"threads": -1}, "threads: expected an integer from 1 to 1024, got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            thresher.load(path, **settings)


def test_export_without_pytorch_says_what_is_missing() -> None:
    done = run_python(
        WITHOUT_TORCH + "import thresher\ntry: thresher.export\nexcept ImportError as error: print(error)\n"
        "assert thresher.load and thresher.Model"
    )
    assert "thresher.export wants PyTorch" in done.stdout, done.stderr


# ---- the command ----


def run_command(*arguments: str) -> Any:
    return run_python(
        WITHOUT_TORCH + f"sys.argv = ['thresher', 'run', *{arguments!r}]\nfrom thresher.cli import main\nmain()"
    )


def test_thresher_run(mlp: Mlp, tmp_path: Path) -> None:
    path = str(thresher.export(mlp, [(torch.zeros(n, 16),) for n in (3, 5)], tmp_path / "mlp.thrmodel"))
    x = torch.randn(5, 16)
    np.save(tmp_path / "x.npy", x.numpy())
    done = run_command(
        path, "--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out.npz"), "--repeat", "2"
    )
    assert done.returncode == 0, done.stderr
    assert "5x16" in done.stdout and "zeros" not in done.stdout and "median of 2" in done.stdout
    agree(np.load(tmp_path / "out.npz")["output"], mlp(x))
    done = run_command(path, "--json", "--shape", "1")
    data = json.loads(done.stdout)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [5, 16], "zeros": True}]
    assert data["outputs"] == [{"name": "output", "dtype": "float32", "shape": [5, 16]}]
    assert data["median_ms"] > 0 and data["shapes"] == 2


def test_thresher_run_names_what_is_wrong(mlp: Mlp, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from thresher.cli.app import app

    path = str(thresher.export(mlp, (torch.zeros(3, 16),), tmp_path / "mlp.thrmodel"))
    np.save(tmp_path / "y.npy", np.zeros((2, 2), np.float32))
    for arguments, message in [
        ([str(tmp_path / "none")], "expected a model file, got no "),
        ([path, "--input", "x"], "expected NAME=FILE.npy"),
        ([path, "--input", f"y={tmp_path / 'y.npy'}"], "got 'y'"),
        ([path, "--input", f"x={tmp_path / 'y.npy'}"], "got (f32[2, 2])"),
        ([path, "--shape", "4"], "expected at most 0"),
        ([path, "--output", str(tmp_path / "y.npy" / "out.npz")], "expected a folder, got the file"),
    ]:
        done = CliRunner().invoke(app, ["run", *arguments])
        assert done.exit_code == 1 and message in done.stderr, done.stderr
        assert isinstance(done.exception, SystemExit)


# ---- many sizes ----


class Encoder(torch.nn.Module):
    """Attention within each row, a mean over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, ids: Any, scale: Any) -> dict[str, Any]:
        states = self.layer(self.table(ids)) * scale[:, None, None]
        return {"states": states, "mean": states.mean(1)}


@pytest.fixture(scope="module")
def sized_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(2)
    model = Encoder().eval()
    batch, length = torch.export.Dim("batch", max=16), torch.export.Dim("length", max=96)
    shapes = {"ids": {0: batch, 1: length}, "scale": {0: batch}}
    path = tmp_path_factory.mktemp("models") / "sized.thrmodel"
    thresher.export(model, (torch.zeros(3, 5, dtype=torch.long), torch.ones(3)), path, dynamic_shapes=shapes)
    return model, path


@pytest.mark.parametrize("precision", ["model", "int4_weight"])
def test_one_file_serves_every_size(sized_file: tuple[Any, Path], precision: str) -> None:
    model, path = sized_file
    loaded = thresher.load(path, precision=precision)
    plain = thresher.load(path)
    assert loaded.sizes[0] == {"batch": (2, 16), "length": (2, 96)} and "length up to 96" in repr(loaded)
    for batch, length in [(16, 96), (1, 1), (2, 2), (1, 96), (16, 1), (5, 7), (2, 3), (7, 7), (3, 95), (16, 96)]:
        ids, scale = torch.randint(0, 50, (batch, length)), torch.rand(batch)
        found = loaded(ids.numpy(), scale=scale.numpy())
        wanted = model(ids, scale)
        assert found["states"].shape == (batch, length, 32)
        if precision == "model":
            agree(found["states"], wanted["states"])
            agree(found["mean"], wanted["mean"])
        else:
            exact = plain(ids.numpy(), scale.numpy())["states"]
            assert np.abs(found["states"] - exact).mean() < 0.3 * np.abs(exact).mean()
    with pytest.raises(ValueError, match="batch 2 to 16, length 2 to 96"):
        loaded(np.zeros((17, 4), np.int64), np.zeros(17, np.float32))
    with pytest.raises(ValueError, match="expected inputs"):
        loaded(np.zeros((4, 4), np.int64), np.zeros(5, np.float32))


def test_threads_call_a_file_at_many_sizes(sized_file: tuple[Any, Path]) -> None:
    model, path = sized_file
    loaded = thresher.load(path, precision="fp32")
    sizes = [(batch, length) for batch in (1, 2, 9) for length in (1, 4, 33)]
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for batch, length in sizes[seed:] + sizes[:seed]:
            ids = torch.randint(0, 50, (batch, length), generator=generator)
            found = loaded(ids.numpy(), np.ones(batch, np.float32))["states"]
            if not np.allclose(found, model(ids, torch.ones(batch))["states"].detach().numpy(), atol=1e-4):
                failures.append(f"{batch} x {length}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_sizes_on_the_command_line(sized_file: tuple[Any, Path]) -> None:
    command = [sys.executable, "-m", "thresher", "run", str(sized_file[1]), "--json", "--repeat", "1"]
    for sizes, shape in [(["batch=4", "length=9"], [4, 9]), (["batch=1"], [1, 96]), ([], [16, 96])]:
        done = subprocess.run(
            [*command, *(f"--size={size}" for size in sizes)], capture_output=True, text=True, check=True, timeout=100
        )
        assert json.loads(done.stdout)["inputs"][0]["shape"] == shape
    for size in ("batch=17", "width=3", "batch", "batch=-1"):
        done = subprocess.run([*command, f"--size={size}"], capture_output=True, text=True, timeout=100)
        assert done.returncode != 0 and re.search("expected|expected", done.stderr), done.stderr
        assert "Traceback" not in done.stderr


def test_sizes_that_cannot_change(mlp: Mlp, tmp_path: Path) -> None:
    dim = torch.export.Dim
    x = torch.zeros(4, 16)
    for shapes, message in [
        ({"x": {0: dim("batch")}}, "expected a largest size of at least 8 for batch, got none"),
        ({"x": {0: dim("batch", max=6)}}, "at least 8 for batch, got 6"),
        ({"x": {1: dim("width", max=64)}}, "torch.export cannot capture"),
        ({"y": {0: dim("batch", max=64)}}, "for an argument of forward that is a tensor"),
        ({"x": {0: "batch"}}, "torch.export.Dim"),
        ({"x": None}, "expected a dimension that changes"),
    ]:
        with pytest.raises(thresher.ExportError, match=message):
            thresher.export(mlp, (x,), tmp_path / "mlp", dynamic_shapes=shapes)
    with pytest.raises(thresher.ExportError, match="one combination of arguments, got 2"):
        thresher.export(mlp, [(x,), (x,)], tmp_path / "mlp", dynamic_shapes={"x": {0: dim("batch", max=64)}})

    class Halves(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(x.shape[0] // 2, 2, -1).sum(1)

    with pytest.raises(thresher.ExportError):
        thresher.export(Halves(), (x,), tmp_path / "halves", dynamic_shapes=[{0: dim("batch", max=64)}])
    assert not list(tmp_path.iterdir())
