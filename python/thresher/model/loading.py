"""thresher.load and what it gives."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from thresher import _engine, packages, startup, tuning
from thresher import threads as pool

# NumPy has no bf16: such a port takes and gives float32, which holds every bf16.
_DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.float32,
    "i64": np.int64,
    "i32": np.int32,
    "bool": np.bool_,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """An input or output.

    Attributes:
      name: as in the model: "input_ids"; of an output without a name "output", or "output_0" and so on.
      dtype: of its elements.
      shape: its sizes.
      bf16: whether the model holds bf16 there. NumPy has no such type: inputs are float32, rounded to the nearest
        bf16, and outputs float32 that hold a bf16 each.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    bf16: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {'bfloat16' if self.bf16 else self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelStats:
    """What a loaded model takes, and how it computes.

    Attributes:
      load_seconds: reading, checking and compiling.
      engine: the version of the engine that wrote the file.
      isa: the instruction set it was compiled for.
      precision: how layers with weights compute.
      threads: how many share one operator's work.
      packed_bytes: weights rearranged for the kernels, in memory of this process.
      working_bytes: memory for values between operators, for each combination of shapes.
      precision_decisions: for each layer with weights, where another precision than fp32 was asked for: module, op, k,
        n, precision, weight_error and reason.
    """

    load_seconds: float
    engine: str
    isa: str
    precision: str
    threads: int
    packed_bytes: int
    working_bytes: tuple[int, ...]
    precision_decisions: tuple[dict[str, object], ...]


class Model:
    """A model from a file. Call it with arrays; calls from several threads may overlap.

    Attributes:
      name: that of the file when it was written.
      shapes: for each combination of shapes, the inputs and the outputs; of many sizes those at the largest.
      sizes: for each combination, the least and the largest of every size that changes, by name.
    """

    def __init__(self, engine: _engine.Model, load_seconds: float) -> None:
        self._engine = engine
        self._load_seconds = load_seconds
        self.name = engine.name
        self.shapes = tuple((_ports(engine.inputs(i)), _ports(engine.outputs(i))) for i in range(engine.num_shapes))
        self.sizes = tuple(engine.sizes(i) for i in range(engine.num_shapes))
        self._names = tuple(port.name for port in self.inputs)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order, with the first combination of shapes."""
        return self.shapes[0][0]

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs, in order, with the first combination of shapes."""
        return self.shapes[0][1]

    def __call__(self, *args: npt.ArrayLike, **kwargs: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
        """Runs the model.

        Args:
          *args: inputs in the order of `inputs`; any strides.
          **kwargs: further inputs by name.

        Returns:
          New arrays by name, in the order of `outputs`.

        Raises:
          TypeError: an input is missing, given twice or not known.
          ValueError: a shape or dtype that the file does not hold; the message lists those it holds.
          IndexError: an index in the data is out of range. The next call works all the same.
        """
        arrays = [np.asarray(value) for value in self._in_order(args, kwargs)]
        for i, port in enumerate(self.inputs):
            if port.bf16 and arrays[i].dtype == np.float32:
                arrays[i] = to_bf16(arrays[i])
        outputs = self.shapes[0][1]
        if len(self.shapes) > 1 or self.sizes[0]:
            outputs = _ports(self._engine.find(arrays)[1])
        results = [np.empty(port.shape, np.uint16 if port.bf16 else port.dtype) for port in outputs]
        self._engine.run(arrays, results)
        return {
            port.name: from_bf16(result) if port.bf16 else result for port, result in zip(outputs, results, strict=True)
        }

    def plan(self, shape: int = 0) -> _engine.Plan:
        """The engine's plan for one combination of shapes: its steps, products, constants."""
        return self._engine.plan(shape)

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """The inputs at some sizes, by name; those not given are the largest.

        Raises:
          ValueError: the file does not hold them.
        """
        for i, found in enumerate(self.sizes):
            wanted = {name: sizes.get(name, largest) for name, (_, largest) in found.items()}
            rest = {name: size for name, size in sizes.items() if name not in found}
            # What is 1 there has no name.
            if all(size == 1 and name in self.sizes[0] for name, size in rest.items()) and 1 not in wanted.values():
                return _ports(self._engine.inputs(i, list(wanted.values())))
        known = ", ".join(f"{name} 1 to {largest}" for name, (_, largest) in self.sizes[0].items()) or "none"
        found_text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(f"model {self.name}: expected the sizes {known}, got {found_text}; export it with these too")

    def stats(self) -> ModelStats:
        """What the model takes, and how it computes."""
        plans = [self._engine.plan(i) for i in range(len(self.shapes))]
        return ModelStats(
            load_seconds=self._load_seconds,
            engine=self._engine.engine,
            isa=_engine.isa(),
            precision=self._engine.precision,
            threads=plans[0].num_threads,
            packed_bytes=self._engine.weight_bytes,
            working_bytes=tuple(plan.arena_bytes for plan in plans),
            precision_decisions=tuple(plans[0].precision_decisions()),
        )

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in self.shapes[0])
        more = f", {len(self.shapes) - 1} more shapes" if len(self.shapes) > 1 else ""
        if self.sizes[0]:
            more = "".join(f", {name} up to {largest}" for name, (_, largest) in self.sizes[0].items())
        return f"<thresher.Model {self.name}: ({inputs}) -> ({outputs}){more}>"

    def _in_order(self, args: tuple[npt.ArrayLike, ...], kwargs: dict[str, npt.ArrayLike]) -> list[npt.ArrayLike]:
        wanted = f"model {self.name}: expected the inputs {', '.join(self._names) or 'none'}"
        if len(args) > len(self._names):
            raise TypeError(f"{wanted}, got {len(args)} without a name")
        given = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self._names:
                raise TypeError(f"{wanted}, got {name!r}")
            if name in given:
                raise TypeError(f"{wanted}, got {name} twice")
            given[name] = value
        missing = [name for name in self._names if name not in given]
        if missing:
            raise TypeError(f"{wanted}, got no {' and no '.join(missing)}")
        return [given[name] for name in self._names]


def load(
    path: str | os.PathLike[str],
    *,
    optimization_level: Literal["O0", "O1", "O2", "O3"] = "O2",
    precision: str | None = None,
    precision_exclude: tuple[str, ...] | None = None,
    max_weight_error: float | None = None,
    threads: int | None = None,
) -> Model:
    """Loads a file of ``thresher.export`` and compiles it for this machine. Needs no PyTorch.

    Weights are read when they are packed, so none is in memory twice. Nothing is read from the file afterwards: it may
    be replaced, removed or written to.

    Args:
      path: the file.
      optimization_level: "O0" (no passes) to "O3".
      precision: how weights are stored and multiplied: "model" (as in the file), "fp32", "bf16", "fp16", "int8",
        "int8_weight" or "int4_weight"; None for what the file says.
      precision_exclude: modules that stay as they are in the file; None for what the file says.
      max_weight_error: the change of weights beyond which a layer stays so; None for what the file says.
      threads: how many share one operator's work, 1 to 1024; None for ``thresher.get_num_threads()`` now.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged, incomplete, changed meanwhile or none of thresher.export, has operators of a
        package that is not installed, or a setting cannot work.
      NotImplementedError: the file was written by a later version in a format that this one does not know.
    """
    start = time.perf_counter()
    number = None if threads is None else pool.checked("threads", threads)
    startup.initialize()
    number = pool.reserve(number)
    tuning.apply(number)
    name = os.fspath(path)
    if not os.path.exists(name):
        raise FileNotFoundError(f"expected a model file, got no {name}; thresher.export writes one")

    def opened() -> _engine.Model:
        return _engine.Model.load(
            name,
            level=optimization_level,
            precision=precision,
            exclude=None if precision_exclude is None else list(precision_exclude),
            max_weight_error=max_weight_error,
            num_threads=number,
        )

    try:
        engine = opened()
    except ValueError:
        # Looking for packages takes longer than loading a small model: only where an operator may be theirs.
        if not packages.load_installed():
            raise
        engine = opened()
    return Model(engine, time.perf_counter() - start)


def _ports(rows: list[tuple[str, str, tuple[int, ...]]]) -> tuple[Port, ...]:
    return tuple(Port(name, np.dtype(_DTYPES[dtype]), shape, dtype == "bf16") for name, dtype, shape in rows)


def to_bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bf16, ties to even; a NaN stays one."""
    bits = np.array(array, np.float32, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """What the bits of bf16 stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
