"""What became of the entries of a trace under several methods."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.collections import LineCollection

from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.notation import Array
from kvlab.reference.policy import Policy
from kvlab.reference.traces.judge import Judgement, skill
from kvlab.reference.traces.replay import Fate

QUESTIONS = ("score", "schedule", "protect", "budget", "precision")


def answers(policies: Sequence[Policy]) -> Table:
    """List how policies answer the four questions; the budget says how many may stay."""
    return Table(
        ("method", *QUESTIONS),
        [
            (policy.name, *(type(getattr(policy, question)).__name__ for question in QUESTIONS))
            for policy in policies
        ],
        words=6,
    )


def timelines(fates: Mapping[str, Fate], prompt: int, head: int = 0, columns: int = 3) -> Picture:
    """Draw every entry of one KV head from its birth to the token after which it left.

    Args:
        fates: of one layer, by the name to show.
        prompt: tokens of the prompt; a vertical line marks its end.
        head: KV head.
        columns: panels side by side.
    """
    return lifetimes({name: fate.left[head] for name, fate in fates.items()}, prompt, columns)


def lifetimes(left: Mapping[str, Int[Array, " t"]], prompt: int, columns: int = 3) -> Picture:
    """Draw every entry from its birth to the token after which it left; see `timelines`.

    Args:
        left: index of that token by entry; t if it stayed to the end.
        prompt: tokens of the prompt.
        columns: panels side by side.
    """
    columns = min(columns, len(left))
    rows = -(-len(left) // columns)
    figure, panels = canvas(columns, rows, height=0.4 + 2.3 * rows, sharex=True, sharey=True)
    for axes, (name, last) in zip(panels, left.items(), strict=False):
        t = len(last)
        lines = [[(born, born), (min(gone, t - 1), born)] for born, gone in enumerate(last)]
        axes.add_collection(LineCollection(lines, linewidths=max(0.4, 130 / t), colors="C0"))
        axes.axvline(prompt - 0.5, color="tab:red", linewidth=0.8)
        axes.set(xlim=(0, t), ylim=(0, t))
        axes.set_title(name)
    for axes in panels[len(left) :]:
        axes.set_visible(False)
    figure.supxlabel("token", fontsize=8.5)
    figure.supylabel("position of the entry", fontsize=8.5)
    return finish(figure, f"When each entry left, under {', '.join(left)}.")


def judgements(names: Sequence[str], judged: Sequence[Sequence[Judgement]]) -> Table:
    """List what a replay says about methods, means over layers.

    Args:
        names: of the methods.
        judged: what `judge` yields, one list of judgements per layer.
    """

    def mean(method: int, column: str) -> float:
        return float(np.mean([getattr(layer[method], column) for layer in judged]))

    rows = []
    for number, name in enumerate(names):
        recalls = [layer[number].recall for layer in judged]
        regained = sum(int(each.regained.sum()) for each in recalls)
        hits = sum(int(each.hits.sum()) for each in recalls)
        rows.append(
            (
                name,
                str(max(layer[number].size for layer in judged)),
                f"{mean(number, 'mass'):.3f}",
                f"{mean(number, 'random'):.3f}",
                f"{mean(number, 'best'):.3f}",
                f"{100 * skill([layer[number] for layer in judged]):.0f} %",
                f"{mean(number, 'error'):.3f}",
                f"{hits / max(1, regained):.0%}",
            )
        )
    columns = ("method", "entries", "mass", "random", "best", "skill", "error", "hits")
    return Table(columns, rows)
