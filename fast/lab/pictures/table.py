"""A table for notebooks: HTML in Jupyter and on the site, aligned text elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Table:
    """Cells of text.

    Raises:
        ValueError: if a row has not as many cells as there are columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """How many columns from the left hold words; the others are aligned to the right."""
    wrap: bool = False
    """Whether long cells break into lines, those of the first column excepted."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {list(row)} must have {len(self.columns)} cells")

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        head = "".join(self._cell("th", i, cell) for i, cell in enumerate(self.columns))
        body = "".join(
            "<tr>" + "".join(self._cell("td", i, cell) for i, cell in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _cell(self, kind: str, column: int, text: str) -> str:
        side = "left" if column < self.words else "right"
        breaks = "; white-space: normal" if self.wrap and column else ""
        return f'<{kind} style="text-align: {side}{breaks}">{escape(text)}</{kind}>'

    def __str__(self) -> str:
        """Return aligned text."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < self.words else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__
