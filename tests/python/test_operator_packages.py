"""Operators of packages outside the repository: rows, kernels, errors, rules, and packages that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python

import thresher
from thresher import _engine

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "operator_package"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
TOOLS = next((ROOT / "build" / "venv").glob("tools-*/bin"), None)
TOOL_PATH = f"{TOOLS}{os.pathsep}{os.environ['PATH']}" if TOOLS else os.environ["PATH"]
CMAKE = shutil.which("cmake", path=TOOL_PATH)

pytestmark = pytest.mark.skipif(not COMPILER, reason="no C++ compiler")


def compiled(source: Path, target: Path) -> Path:
    """A library of operators, made with what the CMake target thresher::operators says."""
    include = ROOT / "src"
    release = f'-DTHRESHER_OPERATOR_RELEASE="{_engine.version()}"'
    command = [str(COMPILER), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", release]
    done = subprocess.run([*command, f"-I{include}", str(source), "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of tests/package/operators.cc, which is loaded."""
    path = compiled(ROOT / "tests" / "package" / "operators.cc", tmp_path_factory.mktemp("trial") / "trial.so")
    found = thresher.packages.load(path)
    assert (found.name, found.version, found.path, found.problem) == ("trial", "3", str(path), None)
    assert found.operators[:2] == ("trial.blend", "trial.row_sums")
    assert thresher.packages.load(path) == found
    return path


def installed_in(folder: Path, library: Path) -> str:
    """A folder for PYTHONPATH that holds what installing the example leaves; the library is the given one."""
    package = folder / "thresher_scans"
    folder.mkdir(exist_ok=True)
    shutil.copytree(EXAMPLE / "src" / "thresher_scans", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(library, package / "scans.so")
    about = folder / "thresher_scans-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thresher-scans\nVersion: 1.0\n")
    lines = (EXAMPLE / "pyproject.toml").read_text().splitlines()
    points = []
    for group in ("thresher.operators", "thresher.rules"):
        at = lines.index(f'[project.entry-points."{group}"]')
        points += [f"[{group}]", lines[at + 1].replace('"', "")]
    (about / "entry_points.txt").write_text("\n".join(points))
    return f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(EXAMPLE / "native" / "scans.cc", tmp_path_factory.mktemp("scans") / "scans.so")


@pytest.fixture(scope="module")
def site(scans: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return installed_in(tmp_path_factory.mktemp("site"), scans)


# ---- in graphs ----


def run(op: str, arrays: list[np.ndarray[Any, Any]], attrs: dict[str, Any], threads: int = 1) -> list[Any]:
    graph = _engine.Graph()
    names = {"float32": "f32", "float16": "f16", "int64": "i64"}
    inputs = [graph.input(f"x{i}", names[str(a.dtype)], list(a.shape)) for i, a in enumerate(arrays)]
    graph.set_outputs(graph.add(op, inputs, attrs))
    plan = _engine.Plan.build(graph, _engine.WeightStore(), num_threads=threads)
    kinds = {name: kind for kind, name in names.items()} | {"bool": "bool"}
    results = [np.empty(shape, kinds[dtype]) for dtype, shape in plan.outputs]
    plan.run(arrays, results)
    return results


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(5,), (300, 700), ()])
def test_attributes_optional_operands_and_several_results(trial: Path, shape: tuple[int, ...], threads: int) -> None:
    random = np.random.default_rng(0)
    x, y = (np.asarray(random.standard_normal(shape) * 2, np.float32) for _ in range(2))
    made, above = run("trial.blend", [x], {"shift": 3}, threads)
    assert np.array_equal(made, x * 2 + 3) and np.array_equal(above, x > 1)
    made, _ = run("trial.blend", [x, y], {"shift": 3, "factor": 0.5, "flag": True}, threads)
    assert np.array_equal(made, x * np.float32(0.5) + 3 + y)
    made, _ = run("trial.blend", [x], {"shift": 3, "flag": False}, threads)
    assert np.array_equal(made, x)


def test_floats_of_16_bits_are_widened_and_rounded(trial: Path) -> None:
    x = np.arange(12, dtype=np.float16).reshape(3, 4) / 7
    made, _ = run("trial.blend", [x], {"shift": 1, "factor": 1.001})
    assert made.dtype == np.float16
    assert np.array_equal(made, (x.astype(np.float32) * np.float32(1.001) + 1).astype(np.float16))


def test_strides_are_read_where_the_row_says_so_and_scratch_memory_is_given(trial: Path) -> None:
    graph = _engine.Graph()
    turned = graph.add("permute", [graph.input("x", "f32", [40, 30])], {"dims": [1, 0]})
    graph.set_outputs([*graph.add("trial.row_sums", turned), *graph.add("trial.picky", turned)])
    plan = _engine.Plan.build(graph, _engine.WeightStore(), level="O0")
    x = np.arange(1200, dtype=np.float32).reshape(40, 30) % 7
    sums, copied = np.empty(30, np.float32), np.empty((30, 40), np.float32)
    plan.run([x], [sums, copied])
    assert np.array_equal(sums, x.sum(0)) and np.array_equal(copied, x.T)
    names = [step["name"] for step in plan.steps()]
    assert names == ["trial.row_sums", "copy", "trial.picky"]  # the other wants its operand row-major


@pytest.mark.parametrize(
    "first, error, message",
    [
        (-1.0, IndexError, "trial.picky: expected elements of at least 0, got -1"),
        (10.0, RuntimeError, "trial.picky: a library that this one uses gave up"),
    ],
)
def test_a_kernel_that_fails_ends_its_call_alone(
    trial: Path, first: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run("trial.picky", [np.array([first], np.float32)], {})
    assert run("trial.picky", [np.array([3], np.float32)], {})[0] == 3


@pytest.mark.parametrize(
    "op, shape, attrs, error, message",
    [
        ("trial.blend", [2], {}, ValueError, r"expected attribute 'shift' \(int\), got none"),
        ("trial.blend", [2], {"shift": 0.5}, ValueError, "expected attribute 'shift' as int, got float"),
        ("trial.row_sums", [2], {}, RuntimeError, "trial.row_sums: expected a matrix"),
        ("trial.too_few", [2], {}, RuntimeError, "its row has 1 results, its function gives 0"),
        ("trial.half", [2], {}, RuntimeError, "expected results of f32, i64, i32 or bool from its package"),
        ("trial.missing", [2], {}, NotImplementedError, "operator 'trial.missing' is not one of this engine's"),
        ("trial.blend", [1] * 9, {"shift": 1}, NotImplementedError, "expected at most 8 dimensions"),
    ],
)
def test_what_does_not_fit_a_row_is_refused(
    trial: Path, op: str, shape: list[int], attrs: dict[str, Any], error: type[Exception], message: str
) -> None:
    graph = _engine.Graph()
    with pytest.raises(error, match=message):
        graph.add(op, [graph.input("x", "f32", shape)], attrs)


def test_the_text_of_a_graph_and_the_list_of_operators_name_them(trial: Path) -> None:
    graph = _engine.Graph()
    graph.set_outputs(graph.add("trial.blend", [graph.input("x", "f32", [2])], {"shift": 3}))
    assert "trial.blend(%0, _) {shift = 3}" in graph.text()
    assert _engine.Graph.parse(graph.text()).text() == graph.text()
    (row,) = [row for row in _engine.ops() if row["name"] == "trial.blend"]
    assert row["package"] == "trial" and row["operands"] == ["x", "y?"] and row["modelled"]
    assert {row["package"] for row in _engine.ops()} >= {"", "trial"}


# ---- what is refused ----


@pytest.mark.parametrize(
    "fault, message",
    [
        ("release", "expected a library of operators for thresher .*, got .* for thresher 0.0.9; build its package"),
        ("name", r"operator 'other.blend': expected a name of the form trial.operator, got 'other.blend'"),
        ("package", "expected a package whose name has letters, digits and _ only, got 'a b'"),
        ("empty", "expected a package with operators, got none in 'trial'"),
        ("doc", "operator 'trial.blend': expected a sentence"),
        ("operands", r"expected names of operands, each with \? behind it if it is optional, got 'y!'"),
        ("none", "expected 1 to 8 operands, got 0"),
        ("state", "expected names of operands, .* got 'state'"),
        ("results", "expected 1 to 4 results, got 5"),
        ("attributes", "expected at most 8 attributes, got 9"),
        ("kernel", "expected infer, cost and run"),
        ("twice", "expected operators with names of their own, got 'trial.blend'"),
    ],
)
def test_a_faulty_package_is_refused_whole(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("FAULT", fault)
    before = len(_engine.ops())
    with pytest.raises((ValueError, NotImplementedError), match=message):
        thresher.packages.load(shutil.copy(trial, tmp_path / "copy.so"))
    assert len(_engine.ops()) == before


def test_what_is_no_library_of_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a library of operators, got no missing[.]so; build"):
        thresher.packages.load("missing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ValueError, match=r"which cannot be opened: .*text\.so"):
        thresher.packages.load(tmp_path / "text.so")
    with pytest.raises(ValueError, match="with THRESHER_OPERATOR_PACKAGE in one of its sources"):
        thresher.packages.load(_engine.__file__)


# ---- installed packages ----

USE = """
import math, torch, thresher
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 5)
    def forward(self, x):
        return torch.logcumsumexp(self.fc(x), 1) * 2
torch.manual_seed(0)
model = Model().eval()
"""


def told(code: str, path: str) -> str:
    done = run_python(USE + code, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def of_the_guide() -> str:
    """The code in docs/operators.md that makes an operator of its own for PyTorch."""
    parts = (ROOT / "docs" / "operators.md").read_text().split("```python\n")
    return next(part for part in parts if part.startswith("@torch.library.custom_op")).split("```")[0]


@pytest.fixture(scope="module")
def exported(site: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a model file, its input and its result; and what was printed, where the model ran by itself."""
    folder = tmp_path_factory.mktemp("exported")
    code = f"""
run = thresher.compile(model, config=thresher.CompilerConfig(fallback="error"))
x = torch.randn(2, 7, 6)
with torch.no_grad(), thresher.profiler.profile() as p:
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
assert thresher.compilation_stats().unsupported == ()
print([row.opname for row in p.report.rows if row.opname.startswith("scans")])
thresher.export(model, (x,), {str(folder / "model.thrmodel")!r})
import numpy
numpy.savez({str(folder / "wanted.npz")!r}, x=x.numpy(), y=model(x).detach().numpy())
"""
    return folder, told(code, site)


def test_a_model_needs_nothing_but_the_installed_package(exported: tuple[Path, str]) -> None:
    assert "['scans.logcumsumexp']" in exported[1]


@pytest.mark.thorough
def test_shapes_types_and_odd_numbers_and_the_own_operator_of_the_guide(site: str) -> None:
    code = f"""
config = thresher.CompilerConfig(fallback="error")
run = thresher.compile(model, config=config)
with torch.no_grad():
    for shape in ((3, 7, 6), (1, 2, 6), (4, 9, 6), (40, 300, 6)):
        x = torch.randn(*shape)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
inf, nan = math.inf, math.nan
odd = torch.tensor([[-inf, -inf, 1.0], [inf, 2.0, -inf], [0.0, nan, 1.0], [inf, inf, -inf]])
whole = thresher.compile(lambda x: torch.logcumsumexp(x, -1), config=config)
torch.testing.assert_close(whole(odd), torch.logcumsumexp(odd, -1), equal_nan=True)
half = torch.randn(3, 50).bfloat16()
wanted = torch.logcumsumexp(half.float(), -1).bfloat16()
torch.testing.assert_close(whole(half), wanted, rtol=1e-2, atol=0)
from types import SimpleNamespace
from thresher import ops
{of_the_guide()}
x = torch.randn(4, 5)
wanted = torch.logcumsumexp(x, -1)
torch.testing.assert_close(prefix_lse(x), wanted)
run = thresher.compile(prefix_lse, config=config)
torch.testing.assert_close(run(x), wanted)
torch.library.opcheck(prefix_lse, (x, 0))
try:
    prefix_lse(x.double())
except ValueError as error:
    print(error)
"""
    said = told(code, site)
    assert "expected tensors that the engine holds, got float64[4, 5] on cpu as argument 0" in said


def test_a_model_file_with_such_an_operator_runs_without_pytorch(site: str, exported: tuple[Path, str]) -> None:
    code = f"""
import sys, warnings
import numpy, thresher
warnings.simplefilter("error")
kept = numpy.load({str(exported[0] / "wanted.npz")!r})
(y,) = thresher.load({str(exported[0] / "model.thrmodel")!r})(kept["x"]).values()
assert numpy.allclose(y, kept["y"], atol=1e-5)
assert "torch" not in sys.modules
print("right")
"""
    done = run_python(code, PYTHONPATH=site)
    assert done.stdout == "right\n", done.stderr
    done = run_python(code)
    assert "operator 'scans.logcumsumexp' is not one of this engine's; install the package of operators 'scans'" in (
        done.stderr
    )


def test_commands_show_installed_packages(site: str) -> None:
    code = "from thresher.cli import main; import sys; sys.argv[1:] = [{}]; main()"
    assert "scans.logcumsumexp" in run_python(code.format("'ops'"), PYTHONPATH=site, COLUMNS="200").stdout
    said = run_python(code.format("'doctor'"), PYTHONPATH=site).stdout
    assert "operator packages" in said and "scans 1.0 (1)" in said


LEFT_OUT = "operators are left out: the package thresher-scans 1.0: expected a library of operators for"


def test_a_package_for_another_release_is_left_out_and_told(trial: Path, tmp_path: Path) -> None:
    code = """
import thresher
print(thresher.packages.installed()[0].problem)
print([row["name"] for row in thresher._engine.ops() if row["package"]])
"""
    done = run_python(code, PYTHONPATH=installed_in(tmp_path, trial), FAULT="release")
    problem, found = done.stdout.splitlines()
    assert LEFT_OUT in done.stderr and "expected a library of operators for" in problem and found == "[]"


@pytest.mark.thorough
def test_a_model_goes_on_without_a_package_for_another_release(trial: Path, tmp_path: Path) -> None:
    path = installed_in(tmp_path, trial)
    code = """
import os
os.environ["FAULT"] = "release"
x = torch.randn(3, 7, 6)
with torch.no_grad():
    torch.testing.assert_close(thresher.compile(model)(x), model(x))
print([op.op for op in thresher.compilation_stats().unsupported])
"""
    said = told(code, path)
    assert LEFT_OUT in said and "['aten.logcumsumexp.default']" in said


def cpp_package(folder: Path) -> Path:
    with tarfile.open(os.environ["CPP_PACKAGE"]) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # noqa: S202
    (found,) = folder.iterdir()
    return found


def built(tmp_path: Path, command: list[object], **environment: str) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": TOOL_PATH, **environment},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


wants_package = pytest.mark.skipif(
    not ("CPP_PACKAGE" in os.environ and CMAKE),
    reason="CPP_PACKAGE names no archive of `nox -s build -- --package`, or there is no CMake",
)


@wants_package
def test_the_example_is_built_with_the_cpp_package_alone(tmp_path: Path) -> None:
    example = shutil.copytree(EXAMPLE, tmp_path / "example")
    prefix = f"-DCMAKE_PREFIX_PATH={cpp_package(tmp_path / 'unpacked')}"
    built(tmp_path, [CMAKE, "-S", example, "-B", "b", "-G", "Ninja", prefix, "-DCMAKE_BUILD_TYPE=Release"])
    built(tmp_path, [CMAKE, "--build", "b"])
    path = installed_in(tmp_path / "site", tmp_path / "b" / "scans.so")
    code = "import thresher; print(thresher.packages.installed()[0].operators)"
    assert run_python(code, PYTHONPATH=path).stdout == "('scans.logcumsumexp',)\n"


# Without PyTorch and without numpy: the engine reads and writes whatever speaks the buffer protocol.
IN_AN_EMPTY_ENVIRONMENT = """
import array, math, thresher
from thresher import _engine
(package,) = thresher.packages.installed()
assert package.problem is None and package.version == "1.0", package
graph = _engine.Graph.parse("graph 1\\ninput %x : f32[3]\\n%y = scans.logcumsumexp(%x)\\nreturn %y\\n")
x, y = array.array("f", [0, 1, 2]), array.array("f", [0, 0, 0])
_engine.Plan.build(graph, _engine.WeightStore()).run([x], [y])
wanted = [math.log(sum(math.exp(v) for v in x[: i + 1])) for i in range(3)]
assert all(abs(a - b) < 1e-6 for a, b in zip(y, wanted)), y
print("right", thresher.__file__)
"""


@wants_package
@pytest.mark.thorough
def test_wheels_of_both_work_in_an_empty_environment(tmp_path: Path) -> None:
    wheels = sorted((ROOT / "dist").glob(f"thresher-*-cp3{sys.version_info.minor}-*{os.uname().machine}.whl"))
    if not wheels or TOOLS is None:
        pytest.skip("`nox -s build` has left no wheel in dist/")
    example = shutil.copytree(EXAMPLE, tmp_path / "example")
    prefix = str(cpp_package(tmp_path / "unpacked"))
    pip = ["-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", example, "-w", tmp_path]
    built(tmp_path, [TOOLS / "python", *wheel], CMAKE_PREFIX_PATH=prefix)
    (own,) = tmp_path.glob("thresher_scans-1.0-py3-none-*.whl")
    built(tmp_path, [sys.executable, "-m", "venv", "empty"])
    python = tmp_path / "empty" / "bin" / "python"
    built(tmp_path, [python, *pip, "install", "--no-index", "--no-deps", wheels[-1], own])
    done = subprocess.run(
        [str(python), "-I", "-c", IN_AN_EMPTY_ENVIRONMENT], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith(f"right {tmp_path / 'empty'}"), done.stderr
