"""Notices when the Python objects of a model, which a capture read, no longer hold what they held."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from thresher import _engine

# Keys and items held by a model's objects in all, where it is data that they hold. A network of 900 modules has 57,000,
# which take 7 us to compare, 118 from memory; TorchDynamo's guards take 4 ms there (AMD EPYC, Zen 5).
MOST_ITEMS = 1_000_000

# What never changes, or is looked at elsewhere: tensors by their addresses and versions, classes by their tags.
_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.Tensor,
    torch.dtype,
    torch.device,
    torch.Size,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    logging.Logger,
)
# Have no attributes of their own, or none that anybody sets.
_PLAIN = (dict, list, set, tuple, frozenset, collections.OrderedDict, collections.defaultdict)
# Of nn.Module: what it calls around forward().
_HOOKS = frozenset({"_forward_hooks", "_forward_pre_hooks"})
# Of nn.Module, and without a part in a call.
_BOOKKEEPING = frozenset(
    {
        "_non_persistent_buffers_set",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)


class TooManyItemsError(Exception):
    """A model holds more than can be compared at every call."""


class Watch:
    """What the modules of a model, their attributes and classes held at one moment.

    The attributes of every module are watched, and what they hold: dicts, lists, sets and the attributes of other
    objects, all the way down. One comparison of identities says whether all still hold the same objects. Closures,
    global variables and what C extensions hold are not seen.

    Args:
      model: the model.

    Raises:
      TooManyItemsError: it holds too much.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._seen: set[int] = set()
        self._tensors: set[int] = set()
        self._items = 0
        self._decisive = {id(hooks) for hooks in _global_hooks()}
        entries = list(self._walk([model, *_global_hooks()]))
        self._holders = _engine.Holders(tuple(entries))
        self._code = _engine.Holders(tuple(entry for entry in entries if id(entry[1]) in self._decisive))

        self.unchanged = self._holders.unchanged  # whether everything still holds what it held

    def same_code(self) -> bool:
        """Whether classes and hooks are the same: TorchDynamo does not look at them again."""
        return self._code.unchanged()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether this very tensor is among what is watched."""
        return id(tensor) in self._tensors

    def _walk(self, found: list[Any]) -> Iterator[tuple[object, object, object]]:
        while found:
            holder = found.pop()
            if isinstance(holder, _LEAVES):
                if isinstance(holder, torch.Tensor):
                    self._tensors.add(id(holder))
                continue
            if id(holder) in self._seen:
                continue
            self._seen.add(id(holder))
            if isinstance(holder, (tuple, frozenset)):
                found.extend(holder)
            elif isinstance(holder, dict):
                yield self._dict(None, holder, found)
            elif isinstance(holder, list):
                found.extend(holder)
                yield None, holder, self._counted(tuple(holder))
            elif isinstance(holder, set):
                found.extend(holder)
                yield None, holder, self._counted(frozenset(holder))
            elif isinstance(holder, types.MethodType):
                found.append(holder.__self__)
            kind: type[Any] = type(holder)
            yield from self._classes(kind)
            attributes = None if kind in _PLAIN else getattr(holder, "__dict__", None)
            if type(attributes) is dict and id(attributes) not in self._seen:
                self._seen.add(id(attributes))
                yield self._dict(holder, attributes, found)
            slots = _slots(kind)  # type: ignore[arg-type]  # of any class
            if slots:
                values = tuple(getattr(holder, name, None) for name in slots)
                found.extend(values)
                yield holder, slots, self._counted(values)

    def _dict(self, owner: object, holder: dict[Any, Any], found: list[Any]) -> tuple[object, object, object]:
        saved: list[object] = []
        for key, value in list(holder.items()):
            saved += (key, value)
            if key in _HOOKS:
                self._decisive.add(id(value))
            if key not in _BOOKKEEPING:
                found.append(value)
        return owner, holder, self._counted(tuple(saved))

    def _classes(self, kind: type) -> Iterator[tuple[object, object, object]]:
        for base in kind.__mro__:
            if id(base) not in self._seen and base.__flags__ & _HEAP_TYPE:
                self._seen.add(id(base))
                attributes = _engine.class_dict(base)
                self._decisive.add(id(attributes))
                yield None, attributes, self._counted(tuple(itertools.chain.from_iterable(attributes.items())))

    def _counted(self, saved: Any) -> Any:
        self._items += len(saved)
        if self._items > MOST_ITEMS:
            raise TooManyItemsError(f"its objects hold more than {MOST_ITEMS:,} items")
        return saved


_HEAP_TYPE = 1 << 9  # made by a class statement, so that it can change


@functools.cache
def _slots(kind: Hashable) -> tuple[str, ...]:
    """The names under which instances of a class keep values outside a dictionary."""
    assert isinstance(kind, type)
    return tuple(
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and base.__flags__ & _HEAP_TYPE
    )


def _global_hooks() -> Iterable[dict[int, Any]]:
    """The hooks that nn.Module calls for every module."""
    return torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks
