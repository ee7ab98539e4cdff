"""Models that are trained at their first load and kept in the cache."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from thresher import cache

log = logging.getLogger("thresher.zoo")


def trained(name: str, version: int, make: Callable[[], torch.nn.Module], train: Callable[[Any], None]) -> Any:
    """A model with its weights, from the cache or trained now.

    Args:
      name: of the entry.
      version: changes with what is trained and how.
      make: gives the model, with random weights.
      train: trains it. Random numbers of the caller's go on as if nothing had drawn any.

    Returns:
      The model in eval mode.
    """
    key = {"name": name, "version": version, "torch": str(torch.__version__)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        kept = cache.load("zoo", key)
        if kept is None or not _restore(model, kept):
            log.warning("%s is trained now, once; it is kept in the cache", name)
            start = time.monotonic()
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # for tensors this small further ones cost more than they bring
            try:
                with torch.enable_grad():
                    train(model.train())
            finally:
                torch.set_num_threads(threads)
            log.info("%s: trained in %.0f s", name, time.monotonic() - start)
            cache.store("zoo", key, _stored(model))
    return model.eval()


def _stored(model: torch.nn.Module) -> dict[str, str]:
    return {
        name: base64.b64encode(tensor.detach().float().numpy().tobytes()).decode()
        for name, tensor in model.state_dict().items()
    }


def _restore(model: torch.nn.Module, kept: Any) -> bool:
    """Whether what was kept fits; a file that somebody changed is as good as none."""
    try:
        state = {
            name: torch.from_numpy(np.frombuffer(base64.b64decode(kept[name]), np.float32).copy()).reshape(tensor.shape)
            for name, tensor in model.state_dict().items()
        }
    except (KeyError, TypeError, ValueError, RuntimeError):
        return False
    model.load_state_dict(state)
    return True
