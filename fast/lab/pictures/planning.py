"""What could be kept at best, beside what methods keep."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table
from kvlab.reference import methods
from kvlab.reference.traces.judge import judge, skill
from kvlab.reference.traces.trace import Recording
from kvlab.reference.traces.workloads import Workload


def mass_over_budget(
    trace: Recording, specs: Sequence[str], budgets: Sequence[int], exact: bool | None = None
) -> Picture:
    """Draw the attention mass that methods hold over their budget, between chance and the best.

    Args:
        trace: to be replayed.
        specs: methods that hold their budget after every token.
        budgets: entries per KV head.
        exact: see `kvlab.reference.traces.judge.judge`.
    """
    figure, (axes,) = canvas(height=3.8)
    policies = [methods.get(spec, budget) for spec in specs for budget in budgets]
    judged = list(judge(trace, policies, exact=exact))

    def curve(name: str, start: int) -> list[float]:
        places = range(start, start + len(budgets))
        return [float(np.mean([getattr(layer[n], name) for layer in judged])) for n in places]

    axes.plot(budgets, curve("best", 0), "--", color="0.5", linewidth=1, label="best possible")
    for number, spec in enumerate(specs):
        axes.plot(budgets, curve("mass", number * len(budgets)), "o-", markersize=3, label=spec)
    axes.plot(budgets, curve("random", 0), ":", color="0.5", linewidth=1, label="at random, mean")
    axes.set(xlabel="entries per KV head", ylabel="share of attention on what is there")
    return finish(figure, "Attention that is kept over the budget, by method.")


def skills(workloads: Mapping[str, Workload], specs: Sequence[str], budget: int) -> Table:
    """List how far each method comes on each workload, from chance, 0 %, to the best, 100 %."""
    rows = []
    policies = [methods.get(spec, budget if takes_budget(spec) else None) for spec in specs]
    columns = {name: list(judge(each.trace, policies)) for name, each in workloads.items()}
    for number, spec in enumerate(specs):
        values = (skill([layer[number] for layer in judged]) for judged in columns.values())
        rows.append((spec, *(f"{100 * value:.0f} %" for value in values)))
    return Table(("method", *columns), rows)
