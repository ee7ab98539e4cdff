"""Where the tensors of a graph lie, and which device runs its parts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import torch
from torch import fx

from thresher import _engine
from thresher.machine import open_device

log = logging.getLogger("thresher.compiler")

CPU = torch.device("cpu")

# Why a device cannot run a node, or "", by what decides about it.
_obstacles: dict[object, str] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where the tensors of a graph lie, and which device runs its parts.

    Attributes:
      tensors: where parts take their tensors from, and leave them.
      engine: what runs the parts; None for the CPU.
      obstacle: why tensors that lie elsewhere stay in PyTorch; "" where nothing needs to be said of it.
    """

    tensors: torch.device = CPU
    engine: _engine.Device | None = None
    obstacle: str = ""

    @property
    def in_place(self) -> bool:
        """Whether tensors lie on a device of their own, which reads and writes them there, on PyTorch's stream."""
        return self.tensors.type != "cpu"

    @property
    def index(self) -> int:
        """The device's number among those of its kind; -1 for the host's memory."""
        return self.tensors.index if self.in_place else -1

    def stream(self) -> int | None:
        """The handle of PyTorch's current stream where tensors are used in place."""
        return torch._C._cuda_getCurrentRawStream(self.tensors.index) if self.in_place else None


def placement_of(module: fx.GraphModule, target: str | None) -> Placement:
    """The placement of an aten graph's parts.

    Args:
      module: the graph, with traced values in meta["val"].
      target: "cpu" or "cuda" where the user said so; None: where the tensors lie.
    """
    found = _devices(module)
    if target == "cpu" or (target is None and not found):
        return Placement()
    index = found[0].index or 0 if found else 0
    try:
        engine = open_device("cuda", index)
    except (FileNotFoundError, ImportError, ValueError, NotImplementedError, RuntimeError) as error:
        log.info("tensors on cuda:%d stay in PyTorch: %s", index, error)
        return Placement(obstacle=f", and kernels cannot run there: {error}")
    return Placement(torch.device("cuda", index) if found else CPU, engine)


def _devices(module: fx.GraphModule) -> list[torch.device]:
    """The CUDA devices of the graph's tensors, in order."""
    found: dict[torch.device, None] = {}
    for node in module.graph.nodes:
        val = node.meta.get("val")
        for one in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(one, torch.Tensor) and one.device.type == "cuda":
                found[one.device] = None
    return list(found)


def obstacle_of(device: _engine.Device, key: object, level: str, build: Callable[[], _engine.Graph]) -> str:
    """Why a device cannot run a small graph, or "".

    Args:
      device: the device.
      key: what decides about the graph, for it to be looked at once.
      level: the optimisation level.
      build: gives the graph.
    """
    whole = (id(device), level, key)
    if whole not in _obstacles:
        _obstacles[whole] = _engine.plan_obstacle(build(), device, level)
    return _obstacles[whole]
