"""Where models can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Backend:
    """A kind of device, by name.

        >>> thresher.Backend("cpu").available()
        True

    Attributes:
      name: "cpu" or "cuda".

    Raises:
      ValueError: an unknown name; the message lists the known ones.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _OBSTACLES:
            raise ValueError(f"backend: wanted one of {', '.join(_OBSTACLES)}, found {self.name!r}")

    def available(self) -> bool:
        """Whether a model can run there now, with this build on this machine."""
        return self.obstacle() is None

    def obstacle(self) -> str | None:
        """What stands in the way, or None."""
        return _OBSTACLES[self.name]()


def _cpu() -> str | None:
    try:
        from thresher import _engine

        _engine.initialize()
    except ImportError as error:
        return f"the engine cannot be loaded: {error}; see `thresher doctor`"
    except ValueError as error:
        return str(error)  # a THRESHER_* variable
    return None


def _cuda() -> str | None:
    return "this build runs on CPUs only"


_OBSTACLES: dict[str, Callable[[], str | None]] = {"cpu": _cpu, "cuda": _cuda}


def backends() -> list[Backend]:
    """All known ones, available or not."""
    return [Backend(name) for name in _OBSTACLES]
