"""What PyTorch finds under `torch.thresher`: a backend by this name, of which no device can be computed on.

PyTorch gives a backend that has a name precedence wherever it looks for an accelerator, and expects such a module.
"""

from __future__ import annotations


def is_available() -> bool:
    """Whether tensors can live on the device: the engine computes on tensors of the CPU."""
    return False


def is_initialized() -> bool:
    """Whether the device has been set up."""
    return False


def device_count() -> int:
    """How many devices there are for tensors."""
    return 0


def current_device() -> int:
    """The number of the current device."""
    return 0


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices, which are none."""


def _is_in_bad_fork() -> bool:
    return False
