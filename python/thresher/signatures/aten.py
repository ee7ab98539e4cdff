"""Operators of PyTorch as its profiler records them."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thresher import json_text
from thresher.signatures.signature import DTYPE_NAMES, Argument, Signature, joined

# The profiler's names of element types.
_TYPES = {
    "float": torch.float32,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "long int": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}
# What stands for a number of a schema's type.
_NUMBERS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "SymInt": (int,),
    "bool": (bool, int),
    "float": (int, float),
    "number": (int, float),
}
_DIMS, _TYPE, _CONCRETE = "Input Dims", "Input type", "Concrete Inputs"


@dataclass(frozen=True, init=False)
class AtenSignature(Signature):
    """An aten operator with one result, described as the profiler of PyTorch does with `record_shapes=True`.

    Attributes:
        op: Its name, such as "aten::addmm".
        inputs: What a trace's event says of its inputs, as JSON: "Input Dims", "Input type" and "Concrete Inputs". They
            are row-major, whatever "Input Strides" says.
    """

    op: str
    inputs: str
    _overload: Any = field(repr=False, compare=False)
    _values: tuple[Any, ...] = field(repr=False, compare=False)
    _result: torch.Tensor = field(repr=False, compare=False)

    def __init__(self, op: str, inputs: Mapping[str, Any]) -> None:
        """Finds the operator's overload for these inputs.

        Args:
            op: As the attribute.
            inputs: As the attribute, parsed: the "args" of the event.

        Raises:
            ValueError: There is no such operator, it changes its inputs, its result is no tensor, or the event lacks
                shapes, types or the values of numbers.
        """
        kept = {name: inputs[name] for name in (_DIMS, _TYPE, _CONCRETE) if name in inputs}
        if not {_DIMS, _TYPE, _CONCRETE} <= set(kept):
            raise ValueError(
                f'{op}: expected "{_DIMS}", "{_TYPE}" and "{_CONCRETE}" of its inputs, got {sorted(kept) or "none"}; '
                "profile with record_shapes=True"
            )
        overload, values = _bind(op, kept)
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "inputs", json.dumps(kept, separators=(",", ":")))
        object.__setattr__(self, "_overload", overload)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_result", _result(op, overload, values))

    @property
    def func_name(self) -> str:
        """Operator, shapes, and a digest of everything."""
        name = str(self._overload).replace(".", "_")
        shapes = [joined(argument.shape) or "scalar" for argument in self.arguments]
        return "_".join(
            [
                name,
                DTYPE_NAMES[self.dtype],
                *shapes,
                hashlib.sha256(f"{self.op} {self.inputs}".encode()).hexdigest()[:12],
            ]
        )

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors among its inputs, in order."""
        return tuple(value for value in self._values if isinstance(value, Argument))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The result's, as PyTorch says it."""
        return tuple(self._result.shape)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The result's, as PyTorch says it."""
        return self._result.dtype

    @property
    def depth(self) -> int:
        """The longest dimension of an input: what may be summed."""
        return max((max(argument.shape, default=1) for argument in self.arguments), default=1)

    def call(self, *args: torch.Tensor) -> torch.Tensor:
        """The operator."""
        made = _invoke(self._overload, self._values, iter(args))
        result: torch.Tensor = made[0] if isinstance(made, (tuple, list)) else made
        return result


def read_trace(path: Path) -> list[str]:
    """The operators of a Chrome trace of PyTorch's profiler as commands, each once.

    Views, operators that change their inputs and those without shapes are left out: there is nothing to compare.

    Args:
        path: A .json or .json.gz file.

    Raises:
        ValueError: It is no such trace, or no operator in it has shapes.
        OSError: It cannot be read.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data = json_text.parse(text)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise ValueError(f'{path}: expected a Chrome trace of torch.profiler, got no "traceEvents"')
    found: dict[str, None] = {}
    for event in events:
        if isinstance(event, dict) and str(event.get("name", "")).startswith("aten::"):
            args = event.get("args")
            try:
                signature = AtenSignature(str(event["name"]), args if isinstance(args, dict) else {})
            except ValueError:
                continue
            found[f"{signature.op} {signature.inputs}"] = None
    if not found:
        raise ValueError(f"{path}: expected operators with shapes, got none; profile with record_shapes=True")
    return list(found)


def _bind(op: str, inputs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The overload of an operator that takes these inputs, and they in order: numbers, and an Argument a tensor."""
    namespace, _, name = op.partition("::")
    packet = getattr(torch.ops.aten, name, None) if namespace == "aten" and name.isidentifier() else None
    if packet is None:
        raise ValueError(f"{op}: expected an aten operator such as aten::addmm, got no operator of this name")
    dims, types, concrete = (inputs[name] for name in (_DIMS, _TYPE, _CONCRETE))
    if (
        not all(isinstance(part, list) for part in (dims, types, concrete))
        or len({*map(len, (dims, types, concrete))}) > 1
    ):
        raise ValueError(f"{op}: expected lists of one length for its inputs, got {dict(inputs)!r:.200}")
    reasons = []
    for overload in packet.overloads():
        found = getattr(packet, overload)
        schema = found._schema
        if schema.is_mutable or any(one.alias_info is not None for one in schema.returns):
            reasons.append(f"{found} changes or shares its inputs")
            continue
        try:
            values = tuple(_values(schema.arguments, dims, types, concrete))
        except (ValueError, SyntaxError) as error:
            reasons.append(f"{found}: {error}")
            continue
        return found, values
    raise ValueError(f"{op}: expected inputs that an overload takes, got none of them: {'; '.join(reasons)}")


def _values(arguments: Any, dims: list[Any], types: list[Any], concrete: list[Any]) -> Iterator[Any]:
    if len(dims) > len(arguments):
        raise ValueError(f"expected at most {len(arguments)} inputs, got {len(dims)}")
    for i, argument in enumerate(arguments):
        kind = str(argument.type)
        if i >= len(dims):
            if not argument.has_default_value():
                raise ValueError(f"expected {argument.name}, got nothing")
            yield argument.default_value
        elif types[i] in _TYPES and "Tensor" in kind:
            yield Argument(argument.name, tuple(int(size) for size in dims[i]), _TYPES[types[i]])
        elif types[i] == "TensorList" and "List[Tensor]" in kind:
            raise ValueError(f"{argument.name} is a list of tensors, of which a trace does not say the types")
        elif "Tensor" in kind:
            if types[i] or not kind.startswith("Optional"):
                raise ValueError(
                    f"expected a tensor of {', '.join(_TYPES)} as {argument.name}, got {types[i] or 'none'!r}"
                )
            yield None
        else:
            text = str(concrete[i])
            if not text and not kind.startswith("Optional"):
                raise ValueError(f"expected the value of {argument.name}, got none")
            value = ast.literal_eval(text) if text else None
            if not _fits(value, kind):
                raise ValueError(f"expected a value of {kind} as {argument.name}, got {text}")
            yield value


def _fits(value: Any, kind: str) -> bool:
    kind = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    if value is None:
        return True
    if kind.startswith("List["):
        return isinstance(value, list)
    return isinstance(value, _NUMBERS.get(kind, ()))


def _invoke(overload: Any, values: tuple[Any, ...], tensors: Iterator[torch.Tensor]) -> Any:
    """Calls the operator with tensors in the places of arguments."""
    filled = [next(tensors) if isinstance(value, Argument) else value for value in values]
    schema = overload._schema.arguments
    positional = [value for value, argument in zip(filled, schema, strict=True) if not argument.kwarg_only]
    named = {argument.name: value for value, argument in zip(filled, schema, strict=True) if argument.kwarg_only}
    return overload(*positional, **named)


def _result(op: str, overload: Any, values: tuple[Any, ...]) -> torch.Tensor:
    """What the operator gives, without data."""
    tensors = (
        torch.empty(value.shape, dtype=value.dtype, device="meta") for value in values if isinstance(value, Argument)
    )
    try:
        made = _invoke(overload, values, tensors)
    except (RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        raise ValueError(f"{op}: PyTorch refuses these inputs: {str(error).splitlines()[0]}") from None
    first = made[0] if isinstance(made, (tuple, list)) and made else made
    if not isinstance(first, torch.Tensor) or first.dtype not in DTYPE_NAMES:
        raise ValueError(
            f"{op}: expected a tensor of {', '.join(DTYPE_NAMES.values())} as its result, got {first!r:.80}"
        )
    return first
