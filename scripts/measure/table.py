"""One table, three looks: aligned text, Markdown, and a rich table when `rich` is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """A titled grid of strings.

    Attributes:
      columns: headings; one that starts with "<" (not shown) is aligned to the left, all others to the right.
      rows: as many cells each as there are columns.
      bad_rows: positions of the rows that a terminal should show in red.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bad_rows: set[int] = field(default_factory=set)

    def add(self, *cells: str, bad: bool = False) -> None:
        """Appends a row.

        Raises:
          ValueError: the number of cells is not the number of columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"table '{self.title}': a row needs {len(self.columns)} cells, got {len(cells)}")
        if bad:
            self.bad_rows.add(len(self.rows))
        self.rows.append(cells)

    def _left(self, column: int) -> bool:
        return self.columns[column].startswith("<")

    def _headings(self) -> list[str]:
        return [name.removeprefix("<") for name in self.columns]

    def text(self) -> str:
        """Plain text with aligned columns."""
        headings = self._headings()
        widths = [max([len(headings[i]), *(len(row[i]) for row in self.rows)]) for i in range(len(headings))]

        def line(cells: Sequence[str]) -> str:
            parts = [
                cell.ljust(width) if self._left(i) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return "  ".join(parts).rstrip()

        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([self.title, rule, line(headings), rule, *map(line, self.rows), rule])

    def markdown(self) -> str:
        """A GitHub table with the title as a bold line above."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        align = ["---" if self._left(i) else "---:" for i in range(len(self.columns))]
        return "\n".join([f"**{self.title}**", "", line(self._headings()), line(align), *map(line, self.rows)])

    def print(self) -> None:
        """Writes the table to standard output, in colour where that is a terminal and `rich` is installed."""
        if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
            print(self.text() + "\n", flush=True)
            return
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=self.title, title_justify="left")
        for i, heading in enumerate(self._headings()):
            shown.add_column(heading, justify="left" if self._left(i) else "right")
        for i, row in enumerate(self.rows):
            shown.add_row(*(Text(cell) for cell in row), style="bold red" if i in self.bad_rows else None)
        Console().print(shown)
