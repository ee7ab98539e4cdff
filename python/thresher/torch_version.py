"""Which versions of PyTorch are supported."""

from __future__ import annotations

import warnings

# Minor versions whose insides the compiler is tested with; the newest last, which is that of pyproject.toml.
SUPPORTED = ("2.13",)


def is_supported(version: str) -> bool:
    """Whether a version, "2.13.0+cpu" for instance, is one of the supported."""
    return version.startswith(tuple(f"{minor}." for minor in SUPPORTED))


def cure() -> str:
    """The command that installs a supported one."""
    return f"pip install 'torch=={SUPPORTED[-1]}.*'"


def warn_unsupported(version: str) -> None:
    """Gives a warning where a version is not supported."""
    if not is_supported(version):
        warnings.warn(
            f"thresher: expected PyTorch {' or '.join(SUPPORTED)}, got {version}, with which it was not tested: models "
            f"may fail to compile, and PyTorch's profiler does not show the engine; do: {cure()}",
            stacklevel=2,
        )
