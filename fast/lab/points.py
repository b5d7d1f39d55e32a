"""Points: methods at budgets, as every comparison asks for them."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kvlab.reference.methods import takes_budget
from kvlab.reference.selection import budget_entries

Budget = TypeVar("Budget")


def points(specs: Sequence[str], budgets: Sequence[Budget]) -> Iterator[tuple[str, Budget | None]]:
    """Pair each method with every budget; a method that takes no budget stands once, with None.

    Raises:
        ValueError: if a method is not allowed, or takes a budget and there is none.
    """
    for spec in specs:
        if not takes_budget(spec):
            yield spec, None
        elif not budgets:
            raise ValueError(f"{spec} needs a budget")
        else:
            yield from ((spec, budget) for budget in budgets)


def check_points(specs: Sequence[str], budgets: Sequence[str]) -> None:
    """Raise ValueError if a method or a budget is not allowed, or a budget is missing."""
    if not specs:
        raise ValueError("methods must name at least one")
    for text in budgets:
        budget_entries(text, 100)
    list(points(specs, budgets))


def check_some_ran(rows: Sequence[Any]) -> None:
    """Raise ValueError if every row, with its ``method`` and ``refusal``, is a refusal."""
    if all(row.refusal is not None for row in rows):
        raise ValueError(f"no method could run; {rows[0].method}: {rows[0].refusal}")
