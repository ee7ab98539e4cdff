"""What an installation needs, checked one by one."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from thresher import torch_version

OLDEST_PYTHON = (3, 10)


class Level(str, Enum):
    """How good a finding is; FAIL means that the installation cannot work."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        level: OK, WARN or FAIL.
        found: What is the case; for a problem, its cause.
        cure: What to do about it; empty if there is nothing to do.
    """

    name: str
    level: Level
    found: str
    cure: str = ""

    def to_dict(self) -> dict[str, str]:
        """The finding as plain data for JSON."""
        return {**asdict(self), "level": self.level.value}


def run_checks() -> list[Finding]:
    """Runs all checks; a check that itself breaks is a failed check, not an exception."""
    findings = [_guarded(check_python)]
    engine, finding = load_engine()
    findings.append(finding)
    if engine is not None:
        for check in (check_variables, check_instructions, check_cores, check_threads, check_computing):
            findings.append(_guarded(check, engine))
    for check_alone in (
        check_numpy,
        check_torch,
        check_backend,
        check_packages,
        check_torch_profiler,
        check_cache,
        check_report_file,
        check_gpu,
        check_compiler,
    ):
        findings.append(_guarded(check_alone))
    return findings


def verdict(findings: list[Finding]) -> Level:
    """The worst level among findings."""
    levels = [finding.level for finding in findings]
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)


def topology() -> dict[str, Any] | None:
    """The cores that this process may use as plain data for JSON; None where the engine does not load."""
    engine, _ = load_engine()
    return None if engine is None else dict(engine.topology())


def check_python() -> Finding:
    """Whether this Python is one that the package supports."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding("python", Level.FAIL, found, f"use Python {oldest} or newer")
    return Finding("python", Level.OK, found)


def load_engine() -> tuple[Any, Finding]:
    """Imports the native engine; None with a finding that says why if that is impossible."""
    try:
        engine: Any = importlib.import_module("thresher._engine")
    except Exception as error:  # whatever stops the import is what the user wants to know
        return None, Finding(
            "engine",
            Level.FAIL,
            f"the native engine does not load: {type(error).__name__}: {error}",
            f"install a wheel made for Python {sys.version_info.major}.{sys.version_info.minor} on "
            f"{platform.machine()}: pip install --force-reinstall thresher",
        )
    return engine, Finding("engine", Level.OK, f"version {engine.version()} on {engine.cpu_model()}")


def check_variables(engine: Any) -> Finding:
    """Whether every THRESHER_* variable is known and has a value of its type."""
    try:
        engine.initialize()
    except ValueError as error:
        return Finding("variables", Level.FAIL, str(error), "correct or unset the variable")
    warnings = engine.check_env()
    if warnings:
        return Finding("variables", Level.WARN, "; ".join(warnings), "rename or unset it: it has no effect")
    values = [f"{row['name']}={row['value']}" for row in engine.env_vars() if row["value"]]
    return Finding("variables", Level.OK, ", ".join(values) or "none is set")


def check_instructions(engine: Any) -> Finding:
    """Which instruction set the kernels use."""
    current, available = engine.isa(), engine.isas()
    found = f"{current} in use; this machine runs {', '.join(available)}"
    if current != available[-1]:
        return Finding("instructions", Level.WARN, found, f"unset THRESHER_ISA to get {available[-1]}")
    if refusal := engine.isa_refusal():
        cure = "use a newer kernel, or a container or sandbox that lets processes use AMX"
        return Finding("instructions", Level.WARN, f"{found}; {refusal}", cure)
    if current == "sse2":
        return Finding("instructions", Level.WARN, found, "expect low speed: the kernels are made for AVX2 and later")
    return Finding("instructions", Level.OK, found)


def check_cores(engine: Any) -> Finding:
    """Which cores the process may use, and what they share."""
    return Finding("cores", Level.OK, described(engine.topology()))


def described(topology: dict[str, Any]) -> str:
    """The cores of a machine in a sentence.

    Args:
        topology: what ``_engine.topology()`` says of it.
    """
    cores: list[dict[str, Any]] = topology["cores"]
    efficient = len(cores) - topology["fast_cores"]
    found = _counted(len(cores), "core")
    if efficient and topology["fast_cores"]:
        found += f", {topology['fast_cores']} fast and {efficient} efficient"
    if topology["cpus"] > len(cores):
        found += f", with {topology['cpus']} CPUs in all"
    nodes = sorted({core["node"] for core in cores})
    if len(nodes) > 1:
        found += f", on {len(nodes)} nodes ({', '.join(map(str, nodes))})"
    if topology["caches"] > 1:
        found += f", in {topology['caches']} groups that share a cache"
    if topology["quota"]:
        found += f", a quota of {topology['quota']:g}"
    return f"{found}; {_counted(topology['usable_cores'], 'thread')} by default"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_threads(engine: Any) -> Finding:
    """Whether the pool fits the cores that this process may use (affinity and the control group's quota)."""
    threads, cores = engine.num_threads(), engine.usable_cores()
    found = f"{threads} threads on {cores} usable of {os.cpu_count()} CPUs"
    if threads > cores:
        cure = f"set THRESHER_NUM_THREADS to at most {cores}, or give the process more cores"
        return Finding("threads", Level.WARN, found, cure)
    return Finding("threads", Level.OK, found)


def check_computing(engine: Any) -> Finding:
    """Whether the engine computes: one linear operator with a known answer."""
    try:
        import numpy as np
    except ImportError:
        return Finding("computing", Level.WARN, "not tried, since numpy is missing", "pip install numpy")
    graph = engine.Graph()
    x = graph.input("x", "f32", (2, 3))
    weight = graph.constant("weight", np.arange(12, dtype=np.float32).reshape(4, 3))
    graph.set_outputs(graph.add("linear", [x, weight, None, None], {"activation": "relu"}))
    plan = engine.Plan.build(graph, engine.WeightStore())
    value = np.array([[1, 2, 3], [-1, 0, 1]], dtype=np.float32)
    out = np.empty((2, 4), dtype=np.float32)
    plan.run([value], [out])
    wanted = np.maximum(value @ np.arange(12, dtype=np.float32).reshape(4, 3).T, 0)
    if not np.array_equal(out, wanted):
        found = f"a product of 2x3 and 3x4 came out as {out.tolist()} instead of {wanted.tolist()}"
        return Finding("computing", Level.FAIL, found, f"please report this with THRESHER_ISA={engine.isa()}")
    return Finding("computing", Level.OK, "a small graph gives the right answer")


def check_numpy() -> Finding:
    """Whether numpy is there."""
    try:
        version = metadata.version("numpy")
    except metadata.PackageNotFoundError:
        return Finding("numpy", Level.WARN, "missing: arrays can only be passed as tensors", "pip install numpy")
    return Finding("numpy", Level.OK, version)


def check_torch() -> Finding:
    """Whether there is a PyTorch of a supported version. Does not import it, which takes seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding(
            "torch",
            Level.WARN,
            'missing: torch.compile(backend="thresher") and thresher.compile need it',
            f"{torch_version.cure()}, or go on without them",
        )
    if not torch_version.is_supported(version):
        found = f"{version}; tested are {', '.join(torch_version.SUPPORTED)}"
        return Finding("torch", Level.WARN, found, torch_version.cure())
    return Finding("torch", Level.OK, version)


def check_backend() -> Finding:
    """Whether PyTorch finds the back end by its name."""
    found = [point.value for point in metadata.entry_points(group="torch_dynamo_backends", name="thresher")]
    if not found:
        return Finding(
            "backend",
            Level.WARN,
            'torch.compile(backend="thresher") finds no such entry point: the package is imported from a folder, '
            "not installed",
            "pip install the wheel",
        )
    return Finding("backend", Level.OK, f'torch.compile(backend="thresher") leads to {found[0]}')


def check_packages() -> Finding:
    """Whether the installed packages of operators are of this release."""
    import warnings

    from thresher import packages

    with warnings.catch_warnings():  # what they tell is told here
        warnings.simplefilter("ignore")
        found = packages.installed()
    if problems := [package.problem for package in found if package.problem is not None]:
        return Finding("operator packages", Level.WARN, "; ".join(problems), "or pip uninstall it to do without")
    named = [f"{package.name} {package.version} ({len(package.operators)})" for package in found]
    return Finding("operator packages", Level.OK, ", ".join(named) or "none is installed")


def check_torch_profiler() -> Finding:
    """Whether PyTorch's profiler can show the engine. Does not import PyTorch."""
    from thresher.torch_shim import library

    found = library.available()
    has = f"connections to the profiler of PyTorch {', '.join(found)}" if found else "no connection to any PyTorch"
    other = "until then its events are added to the traces that export_chrome_trace writes"
    try:
        minor = library.minor_of(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Finding("torch profiler", Level.OK, f"{has}; there is no PyTorch here")
    if minor in found:
        return Finding("torch profiler", Level.OK, f"`import thresher.torch_profiler` connects to PyTorch {minor}")
    cure = f"pip install 'torch=={found[-1]}.*'" if found else "install the wheel, or build it with `nox -s build`"
    return Finding("torch profiler", Level.WARN, f"{has}, got PyTorch {minor}", f"{cure}; {other}")


def check_cache() -> Finding:
    """Whether results that take long to make can be kept in files."""
    from thresher import cache

    try:
        if not cache.enabled():
            return Finding("cache", Level.OK, "switched off by THRESHER_CACHE")
    except (ImportError, ValueError) as error:
        return Finding("cache", Level.WARN, f"not tried: {error}", "see the finding about the engine or variables")
    folder = cache.folder()
    cure = "set THRESHER_CACHE_DIR to a folder that can be written, or THRESHER_CACHE=0 to do without"
    if folder is None:
        return Finding("cache", Level.WARN, "this user has no home folder to keep results in", cure)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Finding("cache", Level.WARN, f"{folder}: {existing} cannot be written", cure)
    return Finding("cache", Level.OK, str(folder))


def check_report_file() -> Finding:
    """Whether the report that THRESHER_PROFILE_OUTPUT asks for can be written."""
    target = os.environ.get("THRESHER_PROFILE_OUTPUT", "")
    if not target:
        return Finding("report file", Level.OK, "none is asked for by THRESHER_PROFILE_OUTPUT")
    folder = Path(target).expanduser().absolute().parent
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        cure = "set THRESHER_PROFILE_OUTPUT to a file in a folder that can be written"
        return Finding("report file", Level.WARN, f"{target}: {existing} cannot be written", cure)
    return Finding("report file", Level.OK, target)


def check_gpu() -> Finding:
    """Whether kernels can run on NVIDIA GPUs, and on which. Nobody needs one, so there is no failure here."""
    from thresher.machine.backend import Backend, cuda_library

    obstacle = Backend("cuda").obstacle()
    library = None if obstacle else cuda_library()
    if library is None and _missing_package("thresher-cuda"):
        return Finding("gpu", Level.OK, f"none is used: {obstacle}")
    if library is None:
        return Finding("gpu", Level.WARN, f"none is used: {obstacle}", "or pip uninstall thresher-cuda to do without")
    engine: Any = importlib.import_module("thresher._engine")
    found = engine.library_devices(library)
    devices = [
        f"cuda:{device['index']} {device['name']} (compute capability {device['compute_capability']}, "
        f"{device['memory_bytes'] / 2**30:.0f} GiB)"
        for device in found["devices"]
    ]
    kernels = f"kernels for {found['architectures']}; convolutions {'beside' if _has_cudnn() else 'without'} cuDNN"
    if _opens_cupti(library):
        return Finding("gpu", Level.OK, f"{', '.join(devices)}; {kernels}; profiles have exact times (CUPTI)")
    advice = "for exact times in profiles: pip install thresher-cuda[cupti]"
    return Finding(
        "gpu", Level.OK, f"{', '.join(devices)}; {kernels}; profiles have times of events, not CUPTI's", advice
    )


def _opens_cupti(library: str) -> bool:
    """Whether the library of kernels will find CUPTI: beside its own package, or wherever the system looks."""
    name = "libcupti.so.13"
    for place in (Path(library).resolve().parents[1] / "nvidia" / "cu13" / "lib" / name, Path(name)):
        try:
            ctypes.CDLL(str(place))
        except OSError:
            continue
        return True
    return False


def _has_cudnn() -> bool:
    """Whether PyTorch brings cuDNN, whose convolutions compete with our own, or the system has it."""
    name = "libcudnn.so.9"
    if any((Path(place) / "nvidia" / "cudnn" / "lib" / name).is_file() for place in sys.path):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _missing_package(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return True
    return False


def check_compiler() -> Finding:
    """States that no compiler is needed, since people look for one after other back ends."""
    return Finding("compiler", Level.OK, "none is needed: nothing is generated or built at run time")


def _guarded(check: Callable[..., Finding], *arguments: Any) -> Finding:
    try:
        return check(*arguments)
    except Exception as error:  # one failed check must not stop the others
        name = check.__name__.removeprefix("check_").replace("_", " ")
        return Finding(name, Level.FAIL, f"{type(error).__name__}: {error}", "please report this message")
