"""A product of matrices and what was measured about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from thresher.json_text import flag, integer, number, text


@dataclass(frozen=True, order=True)
class Product:
    """m rows times a k x n matrix of weights: a linear layer with k inputs and n outputs.

    Attributes:
        precision: How it is computed; one of the names that `thresher.compile` takes.
        m: Rows: the batch times the length of the sequence.
        n: Columns of the weights. Layers that are computed together count as one wide one.
        k: Rows of the weights.
        num_threads: Threads that share the work.
    """

    precision: str
    m: int
    n: int
    k: int
    num_threads: int

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n}"


@dataclass(frozen=True)
class Choice:
    """How a product is cut into blocks.

    Attributes:
        panel_kib: KiB of the weights that stay in the first-level cache; 0: what fits this machine's.
        most_rows: Rows that stay in the second-level cache; 0: as many as fit this machine's.
        split: What threads share: "rows", "panels" of the weights, or "auto".
        variant: How weights in fewer bits meet their rows: "direct", "widened" beforehand, or "auto".
    """

    panel_kib: int = 0
    most_rows: int = 0
    split: str = "auto"
    variant: str = "auto"

    def __str__(self) -> str:
        parts = [
            f"panel {self.panel_kib} KiB" if self.panel_kib else "",
            f"{self.most_rows} rows" if self.most_rows else "",
            f"split by {self.split}" if self.split != "auto" else "",
            self.variant if self.variant != "auto" else "",
        ]
        return ", ".join(part for part in parts if part) or "default"


@dataclass(frozen=True)
class TunedProduct:
    """The verdict on a product.

    Attributes:
        isa: The instruction set that was measured.
        product: What was measured.
        choice: The default, unless something else was faster beyond doubt.
        default_us: Microseconds of a call by default: lower quartile, median, upper quartile.
        tuned_us: The same of the choice.
        candidates: How many ways were measured.
        rounds: How many times the choice was measured against the default.
        measured_at: When, as ISO 8601 in UTC.
        from_cache: Whether an earlier measurement was used.
    """

    isa: str
    product: Product
    choice: Choice
    default_us: tuple[float, float, float]
    tuned_us: tuple[float, float, float]
    candidates: int
    rounds: int
    measured_at: str
    from_cache: bool = False

    @property
    def gain(self) -> float:
        """The share of the time that the choice saves; 0 where the default was kept."""
        return 0.0 if self.choice == Choice() else 1 - self.tuned_us[1] / self.default_us[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rest = {name: value for name, value in vars(self).items() if name not in ("product", "choice")}
        return {**asdict(self.product), **rest, "choice": asdict(self.choice), "gain": self.gain}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TunedProduct:
        """The inverse of `to_dict`.

        Raises:
            ValueError: The data is not what `to_dict` gives.
        """
        try:
            return cls(
                isa=text(data["isa"]),
                product=Product(
                    text(data["precision"]), *(integer(data[name]) for name in ("m", "n", "k", "num_threads"))
                ),
                choice=_choice(data["choice"]),
                default_us=_three(data["default_us"]),
                tuned_us=_three(data["tuned_us"]),
                candidates=integer(data["candidates"]),
                rounds=integer(data["rounds"]),
                measured_at=text(data["measured_at"]),
                from_cache=flag(data["from_cache"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected what TunedProduct.to_dict gives, got something else: {error}") from error


def _three(values: Any) -> tuple[float, float, float]:
    lower, median, upper = (float(number(value)) for value in values)
    if median <= 0:
        raise TypeError(f"expected a time, got {median}")
    return lower, median, upper


def _choice(data: Mapping[str, Any]) -> Choice:
    choice = Choice(**data)
    return Choice(integer(choice.panel_kib), integer(choice.most_rows), text(choice.split), text(choice.variant))
