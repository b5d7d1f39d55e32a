"""Methods judged on recorded and synthetic traces, beside the best that there could be."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.collections import LineCollection

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.fast.lab.tables import Column, Table, percent, tabulate, text_of
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.notation import Array
from kvlab.reference.policy import Policy, Score
from kvlab.reference.simulator.judge import Judgement, judge, skill
from kvlab.reference.simulator.workloads import Workload

SHARED = "#4285f440", "#fb8c0040", "#0f9d5840", "#ab47bc40"
"""Pale colours that a light and a dark page show through."""


class Grid(Table):
    """A table whose HTML colours, column by column, what several rows answer.

    An answer may end in numbers, after a colon: they do not count.
    """

    def html(self) -> str:
        """Write the table as an HTML element."""
        styles = chain.from_iterable(zip(*map(self._styles, range(len(self.columns))), strict=True))
        return re.sub("<td", lambda _: f"<td{next(styles)}", super().html())

    def _styles(self, column: int) -> Iterator[str]:
        kinds = [text_of(row[column]).partition(":")[0] for row in self.rows]
        shared = (kind for kind, rows in Counter(kinds).items() if rows > 1)
        colours = dict(zip(shared, SHARED if column else (), strict=False))
        for kind in kinds:
            yield f' style="background: {colours[kind]}"' if kind in colours else ""

    _repr_html_ = html


def answers(policies: Sequence[Policy]) -> Grid:
    """List how policies answer the four questions; the budget says how many may be kept."""
    questions = ("score", "schedule", "protect", "budget", "precision")
    rows = [
        (policy.name, *(described(getattr(policy, question)) for question in questions))
        for policy in policies
    ]
    return Grid(("method", *questions), rows, words=6)


def described(part: Any) -> str:
    """Name a part of a policy, then its own whole numbers, without those left at the default."""
    numbers = [
        f"{each.name} {value}"
        for each in fields(part)
        if type(value := getattr(part, each.name)) is int and value != each.default
    ]
    own = "" if isinstance(part, Score) or not numbers else f": {', '.join(numbers)}"
    return words(type(part).__name__) + own


def words(name: str) -> str:
    """Write the name of a class as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def judgements(names: Sequence[str], judged: Sequence[Sequence[Judgement]]) -> Table:
    """List what a replay says about methods, means over layers.

    Args:
        names: names of the methods.
        judged: what `judge` yields, one list of judgements per layer.
    """

    def mean(heading: str) -> Column:
        return Column(heading, lambda row: np.mean([getattr(x, heading) for x in row[1]]), ".3f")

    columns = (
        Column("method", lambda row: row[0]),
        Column("entries", lambda row: max(layer.size for layer in row[1])),
        *map(mean, ("mass", "random", "best")),
        Column("skill", lambda row: skill(row[1]), percent),
        mean("error"),
        Column(
            "hits",
            lambda row: sum(x.hits for x in row[1]) / max(1, sum(x.regained for x in row[1])),
            ".0%",
        ),
    )
    return tabulate(zip(names, zip(*judged, strict=True), strict=True), columns)


def lifetimes(left: Mapping[str, Int[Array, " t"]], prompt: int) -> Picture:
    """Draw every entry of one KV head from its birth to the token after which it was evicted.

    Args:
        left: by the name of the panel, index of that token for every entry; t if the entry was
            kept to the end.
        prompt: tokens of the prompt; a vertical line marks its end.
    """
    columns = min(3, len(left))
    rows = -(-len(left) // columns)
    figure, panels = canvas(columns, rows, height=0.4 + 2.3 * rows, sharex=True, sharey=True)
    for axes, (name, last) in zip(panels, left.items(), strict=False):
        t = len(last)
        lines = [[(born, born), (min(gone, t - 1), born)] for born, gone in enumerate(last)]
        axes.add_collection(LineCollection(lines, linewidths=max(0.4, 130 / t), colors="C0"))
        axes.axvline(prompt - 0.5, color=RED, linewidth=0.8)
        axes.set(xlim=(0, t), ylim=(0, t), title=name.partition("@")[0])
    for axes in panels[len(left) - columns : len(left)]:
        axes.tick_params(labelbottom=True)
    for axes in panels[len(left) :]:
        axes.set_visible(False)
    figure.supxlabel("token", fontsize=8.5)
    figure.supylabel("position of the entry", fontsize=8.5)
    return finish(figure, f"When each entry was evicted, under {', '.join(left)}.")


def skills(workloads: Mapping[str, Workload], specs: Sequence[str], budget: int) -> Table:
    """List how far each method comes on each workload, from chance, 0 %, to the best, 100 %."""
    policies = [methods.get(spec, budget if takes_budget(spec) else None) for spec in specs]
    judged = [zip(*judge(each.trace, policies), strict=True) for each in workloads.values()]
    rows = [
        (spec, *(percent(skill(layers)) for layers in several))
        for spec, *several in zip(specs, *judged, strict=True)
    ]
    return Table(("method", *workloads), rows)
