"""What a comparison shows, in three sentences: computed from its figures, with their intervals."""

from collections.abc import Sequence

from kvlab.fast.lab.evaluate.compare import Comparison
from kvlab.fast.lab.sweep.configuration import ORACLE
from kvlab.fast.lab.sweep.summary import CONTROL, FULL, LEVEL, Point
from kvlab.fast.lab.tables import counted
from kvlab.reference.methods import base_name
from kvlab.reference.quantization import FULL_BITS


def sentences(comparison: Comparison) -> list[str]:
    """Say what lost least, what eviction at random does, and what the other methods do."""
    budget = budget_of_largest_spread(comparison)
    found = [without_budget(comparison)]
    if budget is not None:
        found = [least_lost(comparison, budget), beside_control(comparison, budget), *found]
    return [sentence for sentence in found if sentence]


def budget_of_largest_spread(comparison: Comparison) -> int | None:
    """Return the budget at which methods differ most, the smallest of equal ones.

    A budget does not count if it holds the whole text, or if only one method has figures there.
    """
    length = comparison.summary.mean_length
    budgets = sorted(each for each in set(comparison.summary.budgets.values()) if each < length)

    def spread(budget: int) -> float:
        shares = [point.solved or 0.0 for point in points_at(comparison, budget)]
        return max(shares) - min(shares)

    return max((b for b in budgets if len(points_at(comparison, b)) > 1), key=spread, default=None)


def points_at(comparison: Comparison, budget: int | None) -> list[Point]:
    """Return the methods' points of a budget that have figures, the best first.

    The oracle is left out because it is no method: it reads the solution.
    """
    points = [
        point
        for point in comparison.summary.points
        if point.budget == budget and point.interval is not None and point.method != ORACLE
    ]
    return sorted(points, key=lambda point: point.solved or 0.0, reverse=True)


def least_lost(comparison: Comparison, budget: int) -> str:
    """Say which methods solved most under a budget, beside the full cache, and which come next.

    Whether the next ones are shown to be worse is what `summary.leaders` says.
    """
    points, length = points_at(comparison, budget), comparison.summary.mean_length
    forgotten = f"{100 * (1 - budget / length):.0f} % of what the model had read"
    best = [point for point in points if point.solved == points[0].solved]
    if not points[0].solved:
        return f"No method forgot {forgotten} and still solved a problem."
    full = [point for point in points_at(comparison, None) if point.method == FULL]
    beside = f"; the full cache, which forgets nothing, solved {solved(full[0])}" if full else ""
    return (
        f"{names(best)} lost least: with {forgotten} forgotten, the model solved {solved(best[0])}"
        f"{beside}.{next_best(comparison, budget, points[len(best) :])}"
    )


def next_best(comparison: Comparison, budget: int, points: Sequence[Point]) -> str:
    """Say which of the other methods solved most, and whether they are shown to be worse."""
    following = [p for p in points if p.solved and p.solved == points[0].solved]
    if not following:
        return ""
    leaders = comparison.summary.leaders.get(budget, ())
    level = [point for point in following if point.method in leaders]
    few = f"{following[0].problems} problems are too few to say"
    doubt = (
        f"; {few} that {names(level)} {'is' if len(level) == 1 else 'are'} worse" if level else ""
    )
    return f" Next: {names(following)}, {solved(following[0])}{doubt}."


def beside_control(comparison: Comparison, budget: int) -> str:
    """Say what eviction at random solved, and which methods are shown to solve more."""
    points = points_at(comparison, budget)
    controls = [point for point in points if base_name(point.method) == CONTROL]
    if not controls:
        return ""
    rest = [point for point in points if point not in controls]
    above = [p for p in rest if p.method not in comparison.summary.chance[budget]]
    shown = f"Only {names(above)}" if above else "No method"
    return (
        f"With as much forgotten at random, the model solved {solved(controls[0])}. {shown} "
        f"{'are' if len(above) > 1 else 'is'} shown to solve more than that (McNemar's exact test, "
        "Holm's correction over all budgets)."
    )


def without_budget(comparison: Comparison) -> str:
    """Say what was solved by the methods whose memory follows from their own parameters."""
    parts = [
        f"{names([point])} solved {solved(point)} with {100 * bits / FULL_BITS:.0f} % of the memory"
        for point in points_at(comparison, None)
        if point.method != FULL and (bits := point.mean("average_bits")) is not None
    ]
    return f"By a rule of their own: {'; '.join(parts)}." if parts else ""


def solved(point: Point) -> str:
    """Write how many problems were solved, with the interval of the share."""
    assert point.interval is not None
    low, high = 100 * point.interval.low, 100 * point.interval.high
    return (
        f"{sum(point.outcomes)} of {counted(point.problems, 'problem')} "
        f"({100 * LEVEL:.0f} % interval {low:.0f} to {high:.0f} %)"
    )


def names(points: Sequence[Point]) -> str:
    """List methods without their options, unless two would then have one name."""
    short = [point.method.partition("@")[0] for point in points]
    shown = short if len(set(short)) == len(short) else [point.method for point in points]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
