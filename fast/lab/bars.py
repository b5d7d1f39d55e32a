"""The first thing that a person sees of a comparison: a bar per method, the best first.

A bar is solid up to the lower end of the interval, and fades to the upper one; a diamond stands
where the method's matched control ends. The full cache is the first bar.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from rich.text import Text

from kvlab.fast.lab.evaluate.controls import NO_GAIN, gain_mark, gain_of, is_significant
from kvlab.fast.lab.evaluate.pairs import Test as Gain
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.points import EXCEEDED, NOTHING, MeasuredRow, budget_mark
from kvlab.fast.lab.sweep.summary import FULL
from kvlab.fast.lab.tables import visible

FEWEST, MOST, NARROW = 10, 48, 60
"""Cells of a bar at least and at most; columns of a terminal below which intervals have no room."""

SIGNS = {
    "▓": "from the first ▓ to the last ░: its 95 % interval",
    "◆": "◆ its matched control: random eviction, with the same entries protected and budget",
    NO_GAIN: f"{NO_GAIN} not significantly better than its control",
    EXCEEDED: f"{EXCEEDED} held more entries than the budget",
    NOTHING: f"{NOTHING} nothing was evicted, so it is the full cache",
}
"""What signs in a picture mean."""


@dataclass(frozen=True)
class Bars:
    """Rows of methods, and what is drawn of them."""

    rows: Sequence[MeasuredRow]
    figure: Callable[[Any], Interval | float | None]
    """Returns a row's figure."""
    says: str
    """What the length of a bar is."""
    gains: Sequence[Gain] = ()
    """Methods against their matched controls."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """What budgets in entries are called."""
    share: bool = True
    """Whether figures are shares, of which more is better; else of losses, less is."""

    def known(self, row: MeasuredRow) -> Interval | None:
        """Return a row's figure; one without an interval has equal ends."""
        found = self.figure(row) if row.refusal is None else None
        return Interval(found, found, found) if isinstance(found, float | int) else found

    def gain(self, row: MeasuredRow) -> Gain | None:
        """Return a method's test against its control, if that ran at its budget."""
        return gain_of(self.gains, row.method, row.budget)

    def lines(self, width: int) -> Iterator[Text]:
        """Draw the bars for a terminal of so many columns, and say what the signs mean."""
        rows = sorted(self.rows, key=self.order)
        names, found = [*map(self.name, rows)], [*map(self.known, rows)]
        texts = [self.written(each, width >= NARROW) for each in found]
        label = min(max(map(len, names)), max(12, width // 3))
        cells = max(FEWEST, min(MOST, width - label - max(map(len, texts)) - 4))
        highs = [each.high for each in found if each is not None]
        scale = cells / (1.0 if self.share else max([*highs, 0.0]) or 1.0)
        budget, drawn = "", "".join(names)
        for row, name, text in zip(rows, names, texts, strict=True):
            if row.method != FULL and budget != (budget := self.allowed(row)):
                yield Text(budget, "dim")
            if len(name) > label:
                yield Text(f" {name}")
            name = name if len(name) <= label else ""
            bar = self.bar(row, scale, cells)
            drawn += bar.plain
            yield Text(f" {name:<{label}} {text:>{max(map(len, texts))}} ").append_text(bar)
        signs = [says for sign, says in SIGNS.items() if sign in drawn]
        yield Text(" · ".join([f"█{'▓' * ('▓' in drawn)} {self.says}", *signs]), "dim")

    def name(self, row: MeasuredRow) -> str:
        """Return a row's name with its marks."""
        marks = budget_mark(row) if hasattr(row, "holds_budget") else ""
        marks += gain_mark(self.gain(row))
        return visible(row.method + marks + f" {NOTHING}" * row.measures_nothing)

    def written(self, found: Interval | None, ends: bool) -> str:
        """Write a figure, with the ends of its interval if there is room and it has some."""
        if found is None:
            return "–"
        scale, digits, unit, to = (100, 0, " %", "–") if self.share else (1, 3, "", " to ")
        mean, low, high = (f"{scale * x:.{digits}f}" for x in (found.mean, found.low, found.high))
        return f"{mean}{unit} ({low}{to}{high})" if ends and low != high else f"{mean}{unit}"

    def order(self, row: MeasuredRow) -> tuple[Any, ...]:
        """Sort the full cache first, then by budget as rows have it, then the best first."""
        budgets = [*dict.fromkeys(each.budget for each in self.rows if each.budget is not None)]
        found = self.known(row)
        worth = -inf if found is None else found.mean if self.share else -found.mean
        return row.method != FULL, [*budgets, row.budget].index(row.budget), -worth

    def allowed(self, row: MeasuredRow) -> str:
        """Say how many entries a row was allowed."""
        if row.budget is None:
            return "by its own rule"
        texts = [text for text, entries in self.budgets.items() if entries == row.budget]
        said = f" ({texts[0]})" if texts and texts[0] != str(row.budget) else ""
        return f"budget: {row.budget}{' entries' * isinstance(row.budget, int)}{said}"

    def bar(self, row: MeasuredRow, scale: float, cells: int) -> Text:
        """Draw one bar; of a row without a figure, say why."""
        if (found := self.known(row)) is None:
            return Text(visible(row.refusal or "no figure"), "dim")
        ends = found.low, found.mean, found.high
        low, mean, high = (round(scale * max(0.0, x)) for x in ends)
        gain = self.gain(row)
        style = "cyan" if gain is None else "green" if is_significant(gain) else "yellow"
        bar = Text("█" * low + "▓" * (mean - low) + "░" * (high - mean), style)
        if gain is not None:  # a loss far beyond the others' is at the end
            at = max(0, min(cells, round(scale * (found.mean - gain.difference.mean))) - 1)
            bar.pad_right(max(0, at + 1 - len(bar)))
            bar = Text.assemble(bar[:at], ("◆", "bold red"), bar[at + 1 :])
        return bar
