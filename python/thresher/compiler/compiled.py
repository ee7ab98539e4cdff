"""What thresher.compile returns."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules.module import _has_any_global_hook

from thresher.compiler.config import CompilerConfig
from thresher.compiler.door import Door


class CompiledModule(OptimizedModule):
    """A model in the engine: the module that torch.compile makes of it, but with a way of its own into the engine.

    It shares parameters, mode and attributes with the model.
    """

    _door: Door | None = None

    def __init__(self, model: torch.nn.Module, context: Any, config: CompilerConfig, dynamic: bool | None) -> None:
        object.__setattr__(self, "_made_with", (config, dynamic))
        super().__init__(model, context)

    _made_with: tuple[CompilerConfig, bool | None] = (CompilerConfig(), None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model, with the hooks of this module around it."""
        own = self.__dict__
        door = own.get("_door")
        if (
            door is None
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or _has_any_global_hook()  # type: ignore[no-untyped-call]
        ):
            return super().__call__(*args, **kwargs)
        return door(*args, **kwargs)

    def recapture(self) -> None:
        """Captures the model anew at its next call.

        Say so after a change of what a call reads and the engine does not watch: global variables, closures, objects
        of C extensions. Changed parameters, attributes, submodules, hooks and classes are noticed without it.
        """
        if self._door is not None:
            self._door.recapture()

    def _initialize(self) -> None:
        super()._initialize()
        if not hasattr(self._orig_mod, "_initialize_hook"):  # a lazy module changes its class in its first call
            self._door = Door(self._orig_mod, *self._made_with, self.forward)
            self.forward = self._door

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledModule, (self._orig_mod, self.dynamo_ctx, *self._made_with)
