"""The cores of this machine in equal shares."""

from __future__ import annotations

from itertools import pairwise


def core_slices(count: int) -> list[list[int]]:
    """The CPUs of `count` equal shares of the cores that this process may use, those of a node beside each other.

    Raises:
      ValueError: there are fewer cores.
    """
    from thresher import _engine  # what reads profiles imports this package, and needs no engine

    cores = _engine.topology()["cores"]
    if not 1 <= count <= len(cores):
        raise ValueError(f"processes: expected 1 to {len(cores)}, as many as there are cores, got {count}")
    bounds = [number * len(cores) // count for number in range(count + 1)]
    return [[cpu for core in cores[first:last] for cpu in core["cpus"]] for first, last in pairwise(bounds)]
