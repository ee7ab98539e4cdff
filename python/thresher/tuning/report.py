"""What tuning found, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thresher.tuning.product import Choice, TunedProduct
from thresher.tuning.table import FORMAT


@dataclass(frozen=True)
class TuningReport:
    """The verdicts of one call of `thresher.tune`.

    Attributes:
        products: One entry for each product, in the order in which they were asked for.
        cpu_model: The processor.
        engine_version: The engine that measured.
        seconds: How long it took.
        stored: Whether the new verdicts were kept for other processes; False also where there were none.
    """

    products: tuple[TunedProduct, ...]
    cpu_model: str
    engine_version: str
    seconds: float
    stored: bool

    @property
    def changed(self) -> tuple[TunedProduct, ...]:
        """The products for which something is faster than the default."""
        return tuple(entry for entry in self.products if entry.choice != Choice())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: also what a file for THRESHER_TUNING_SPEC holds."""
        products = [entry.to_dict() for entry in self.products]
        return {"format": FORMAT, **vars(self), "products": products}

    def rows(self) -> list[tuple[str, ...]]:
        """A heading and one row for each product, with medians in microseconds: the table as text."""
        rows: list[tuple[str, ...]] = [("m x k x n", "precision", "thr.", "default", "tuned", "gain", "choice")]
        for entry in self.products:
            gain = f"{100 * entry.gain:.1f} %" if entry.choice != Choice() else "-"
            times = (f"{entry.default_us[1]:.1f}", f"{entry.tuned_us[1]:.1f}")
            product = entry.product
            rows.append((str(product), product.precision, str(product.num_threads), *times, gain, str(entry.choice)))
        return rows

    def summary(self) -> str:
        """One sentence."""
        known = sum(entry.from_cache for entry in self.products)
        measured = len(self.products) - known
        text = f"{measured} measured in {self.seconds:.1f} s, {known} known before"
        return f"Microseconds; {text}; {len(self.changed)} of {len(self.products)} run faster than by default."

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        left = (0, 1, len(widths) - 1)
        padded = [
            [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)]
            for row in rows
        ]
        lines = ["  ".join(row) for row in padded]
        return "\n".join([*(line.rstrip() for line in lines), self.summary()])
