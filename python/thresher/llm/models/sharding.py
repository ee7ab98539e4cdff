"""A rank's share of a model: some heads, and some of the feed-forward part, so that ranks meet twice a layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from thresher.llm.formats import StoredTensor
from thresher.llm.formats.tensors import BLOCKS, DTYPES
from thresher.llm.models.config import ModelConfig, UnsupportedModelError
from thresher.llm.models.names import Names

HEAD_SHARE = "head.share"  # the name of a rank's rows of the table that scores tokens

_Ranges = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Which part of a model one of several ranks has.

    Attributes:
      rank: from 0.
      size: how many ranks there are.
    """

    rank: int = 0
    size: int = 1

    def of(self, count: int, unit: int = 1) -> tuple[int, int]:
        """First and end of this rank's part of `count` things that stay together in units; parts differ by one unit.

        Raises:
          UnsupportedModelError: there are fewer units than ranks.
        """
        units = count // unit
        if units < self.size or count % unit:
            raise UnsupportedModelError(
                f"expected {count} in units of {unit} for {self.size} ranks, got {units} units; take fewer ranks"
            )
        base, more = divmod(units, self.size)
        first = self.rank * base + min(self.rank, more)
        return first * unit, (first + base + (self.rank < more)) * unit


def shard(
    config: ModelConfig, tensors: Mapping[str, StoredTensor], share: Share
) -> tuple[ModelConfig, Mapping[str, StoredTensor]]:
    """The model of one rank: fewer heads, a narrower feed-forward part, and their weights.

    What ranks compute behind attention and the feed-forward part has to be summed up over them.

    Args:
      config: of the whole model.
      tensors: its checkpoint.
      share: which part.

    Returns:
      The configuration and tensors; beside those of the checkpoint HEAD_SHARE, where the vocabulary can be shared
      equally.

    Raises:
      UnsupportedModelError: heads or blocks of weights are too few or too large for so many ranks.
    """
    if config.num_kv_heads < share.size:
        raise UnsupportedModelError(
            f"expected at most {config.num_kv_heads} ranks, as many as there are heads of keys and values, got "
            f"{share.size}"
        )
    names = Names(config.architecture, tensors.keys())
    return _Sharding(config, tensors, names, share).made()


class _Sharding:
    def __init__(self, config: ModelConfig, tensors: Mapping[str, StoredTensor], names: Names, share: Share) -> None:
        self._config, self._tensors, self._names, self._share = config, tensors, names, share
        self._inputs_first = config.architecture == "gpt2"  # weights are [in, out]
        self._made: dict[str, Callable[[], StoredTensor]] = {}
        self._dropped: set[str] = set()

    def made(self) -> tuple[ModelConfig, Mapping[str, StoredTensor]]:
        config, share = self._config, self._share
        size, queries = config.head_size, config.num_heads // config.num_kv_heads
        first, end = share.of(config.num_kv_heads)
        narrow = (first * size, end * size)
        wide = (narrow[0] * queries, narrow[1] * queries)
        q_width, kv_width = config.num_heads * size, config.num_kv_heads * size
        both = [wide, (q_width + narrow[0], q_width + narrow[1])]
        both.append((both[1][0] + kv_width, both[1][1] + kv_width))
        inner = expert = (0, 0)
        if config.intermediate_size:
            inner = share.of(config.intermediate_size, self._unit("down"))
        if config.experts:
            expert = share.of(config.expert_size, self._unit("expert_down"))
        for layer in range(config.num_layers):
            for role, ranges in (("q", [wide]), ("k", [narrow]), ("v", [narrow]), ("qkv", both)):
                self._outputs(ranges, role, layer)
            self._inputs(wide, "o", layer)
            width = config.intermediate_size
            for role, ranges in (
                ("gate", [inner]),
                ("up", [inner]),
                ("gate_up", [inner, (width + inner[0], width + inner[1])]),
            ):
                self._outputs(ranges, role, layer)
            self._inputs(inner, "down", layer)
            for number in range(config.experts):
                for role in ("expert_gate", "expert_up"):
                    self._outputs([expert], role, layer, number)
                self._inputs(expert, "expert_down", layer, number)
        if config.vocab_size % share.size == 0:
            own = (config.vocab_size // share.size * share.rank, config.vocab_size // share.size * (share.rank + 1))
            tied = config.tie_embeddings or not self._names.has("head")
            name = self._names.of("embedding") if tied else self._names.of("head") + ".weight"
            self._made[HEAD_SHARE] = lambda: self._tensors[name].rows([own])
        local = dataclasses.replace(
            config,
            num_heads=(end - first) * queries,
            num_kv_heads=end - first,
            intermediate_size=inner[1] - inner[0],
            expert_size=expert[1] - expert[0],
        )
        return local, _SharedTensors(self._tensors, self._made, self._dropped)

    def _unit(self, role: str) -> int:
        """How many inputs of such weights have to stay together, in all layers."""
        numbers = (0,) if role.startswith("expert") else ()
        found = [1]
        for layer in range(self._config.num_layers):
            if self._names.has(role, layer, *numbers):
                found.append(self._block(self._names.of(role, layer, *numbers) + ".weight"))
        return math.lcm(*found)

    def _block(self, name: str) -> int:
        """How many inputs of a weight have to stay together."""
        encoding = self._tensors[name].encoding
        return 1 if encoding in DTYPES or self._inputs_first else BLOCKS[encoding][0]

    def _outputs(self, ranges: _Ranges, role: str, *numbers: int) -> None:
        """A linear of which this rank computes these outputs."""
        if not self._names.has(role, *numbers):
            return
        name = self._names.of(role, *numbers)
        weight = f"{name}.weight"
        cut = StoredTensor.columns if self._inputs_first else StoredTensor.rows
        self._made[weight] = lambda: cut(self._tensors[weight], ranges)
        bias = f"{name}.bias"
        if bias in self._tensors:
            self._made[bias] = lambda: self._tensors[bias].rows(ranges)

    def _inputs(self, own: tuple[int, int], role: str, *numbers: int) -> None:
        """A linear of which this rank has these inputs; its bias is rank 0's to add."""
        if not self._names.has(role, *numbers):
            return
        name = self._names.of(role, *numbers)
        weight = f"{name}.weight"
        if f"{name}.columns" in self._tensors:
            raise UnsupportedModelError(
                f"tensor {weight}: expected inputs in their own order for several ranks, got those of GPTQ desc_act; "
                "run it in one process"
            )
        block = self._block(weight)
        if own[0] % block or own[1] % block:
            raise UnsupportedModelError(
                f"tensor {weight}: expected shares of a multiple of {block} inputs, which "
                f"{self._tensors[weight].encoding} keeps together, got {own[0]} to {own[1]}; take fewer ranks or "
                "another encoding"
            )
        cut = StoredTensor.rows if self._inputs_first else StoredTensor.columns
        self._made[weight] = lambda: cut(self._tensors[weight], [own])
        if self._share.rank:
            self._dropped.add(f"{name}.bias")


class _SharedTensors(Mapping[str, StoredTensor]):
    """The tensors of a checkpoint, some of them cut when they are asked for."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        made: Mapping[str, Callable[[], StoredTensor]],
        dropped: set[str],
    ) -> None:
        self._tensors, self._made = tensors, made
        self._names = [*(name for name in tensors if name not in dropped), *(set(made) - set(tensors))]
        self._known = set(self._names)

    def __getitem__(self, name: str) -> StoredTensor:
        if name not in self._known:
            raise KeyError(name)
        make = self._made.get(name)
        return self._tensors[name] if make is None else make()

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
