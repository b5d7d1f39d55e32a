"""The loop of every experiment: points are measured one after the other, and each becomes a row.

A point is a method at a budget. What is measured of a point is a function; where it raises
ValueError, the method cannot run, and where it raises another error, the method has failed. The row
says why, and the other points go on.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from traceback import format_tb
from typing import Any, TypeVar

from jaxtyping import Real

from kvlab.fast.lab.loop import Step, run_all
from kvlab.fast.lab.store import Store
from kvlab.fast.lab.tables import percent
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import methods
from kvlab.reference.generators import seeded
from kvlab.reference.methods import takes_budget
from kvlab.reference.notation import Array
from kvlab.reference.selection import budget_entries

Budget = TypeVar("Budget", int, str)

ORACLE = "oracle"
"""Name, among methods, of the policy that knows what the rest of a run will need."""


def most_entries(kept: Real[Array, "layers steps"]) -> float:
    """Return what tables call entries; the first step ends with the last token of the prompt."""
    return float(kept.mean(axis=0).max())


@dataclass(frozen=True)
class After:
    """How often what is measured happened: until its first eviction a method is the full cache."""

    count: int
    """How many were rated or written after at least one eviction; of answers: at least in part."""
    of: int
    unit: str
    """tokens or answers."""

    @property
    def total(self) -> str:
        """How many there were in all, as text."""
        return f"{self.of} {self.unit}"

    def written(self, form: str = "", to: str = "", scale: float = 1) -> str:
        """Write the share in percent, with the mark of a row that measures nothing."""
        return f"{percent(self.count / self.of)}{'' if self.count else f' {NOTHING}'}"


def never(after: After | None) -> bool:
    """Say whether it was counted how often something happened, and it never did."""
    return after is not None and not after.count


def all_of(parts: Iterable[After | None]) -> After | None:
    """Add up what was counted; None if nothing was."""
    known = [each for each in parts if each is not None and each.of]
    if not known:
        return None
    return After(sum(each.count for each in known), sum(each.of for each in known), known[0].unit)


def tokens_after(first: int | None, before: int, tokens: int) -> int:
    """Return how many tokens come after an eviction, of those that follow ``before`` others.

    A token does if the one before it, which predicts it, is not among the ``first`` tokens that
    attended to all others (`CompressedCache.first_evictions`); None: nothing was evicted.
    """
    return 0 if first is None else min(tokens, max(0, before + tokens - 1 - first))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one budget; the classes below this one hold what was measured of it."""

    method: str
    budget: int | str | None
    refusal: str | None = None
    """Why there are no figures: what the method cannot do, or what has not been run."""
    failed: bool = False
    """Whether the reason is an error in code; then commands end with exit code 1."""

    @property
    def marked_budget(self) -> str | None:
        """The budget with its mark; None for a method that takes none."""
        return None if self.budget is None else f"{self.budget}{budget_mark(self)}"


class RefusalError(ValueError):
    """What a method cannot do, found while it runs; it would find the same again."""


def reason(error: Exception) -> dict[str, Any]:
    """Return the fields of a row that say why a method stopped; of an error in code also where."""
    if isinstance(error, ValueError):
        return {"refusal": " ".join(str(error).split()) or "ValueError without words"}
    trace = "".join([*format_tb(error.__traceback__), str(error.__cause__)])
    frames = re.findall(r'File "(.+?)", line (\d+)', trace)
    file, line = ([each for each in frames if "site-packages" not in each[0]] or frames)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return {"refusal": f"{what} ({Path(file).name}, line {line})", "failed": True}


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(Row):
    """A row that says how often what is measured happened, some also whether it held its budget."""

    after_eviction: After | None = None
    """None for what evicts nothing, and where it was not counted."""

    @property
    def measures_nothing(self) -> bool:
        """Whether nothing was evicted before any token, so that the row is the full cache's."""
        return never(self.after_eviction)


EXCEEDED = "†"
"""Marks a row that held more entries than its budget."""

UNKNOWN = "?"
"""Marks a row of which that is not known."""


def budget_mark(row: Any) -> str:
    """Return the mark of a row: none if it held its budget, takes none, or was refused."""
    if row.budget is None or row.refusal is not None or row.holds_budget:
        return ""
    return f" {UNKNOWN if row.holds_budget is None else EXCEEDED}"


NOTHING = "∅"
"""Marks a row that measures nothing."""


Measured = TypeVar("Measured", bound=Row)


def measure_points(
    asked: Iterable[tuple[str, Budget | None]],
    measure: Callable[[str, Budget | None], Measured],
    refused: type[Measured],
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[Measured], object] = lambda row: None,
    store: Store | None = None,
) -> tuple[Measured, ...]:
    """Measure every point: a method, and a budget if it takes one.

    ``measure`` returns a point's row, or raises what the module's docstring says; a row of the
    class ``refused`` then says why. Every point finds the shared generators with the same seed.
    ``progress`` is called before each point, ``tell`` with each row,
    and ``store`` keeps the rows of methods that could run. ValueError if none could.
    """
    asked = list(asked)

    def work(number: int, method: str, budget: Budget | None) -> Measured:
        progress(number, len(asked), method)
        try:
            with seeded(0):
                return measure(method, budget)
        except Exception as error:
            return refused(method=method, budget=budget, **reason(error))

    steps = [Step(f"{n}: {x} {y}", partial(work, n, x, y)) for n, (x, y) in enumerate(asked)]
    rows = run_all(
        steps,
        store,
        kind=refused,
        tell=lambda step, row: tell(row),
        lasting=lambda row: row.refusal is None,
    )
    check_any([*rows.values()])
    return tuple(rows.values())


def check_any(rows: Sequence[Row]) -> None:
    """Raise ValueError if no method could run; the line names each, and says why."""
    if all(row.refusal is not None for row in rows):
        reasons = dict.fromkeys(f"{row.method}: {row.refusal}" for row in rows)
        raise ValueError(f"no method could run; {'; '.join(reasons)}")


def points(specs: Sequence[str], budgets: Sequence[Budget]) -> Iterator[tuple[str, Budget | None]]:
    """Pair each method with every budget, or with None; ValueError if it takes one and has none."""
    for spec in specs:
        if not takes_budget(spec):
            yield spec, None
        elif not budgets:
            raise ValueError(f"{spec} needs a budget")
        else:
            yield from ((spec, budget) for budget in budgets)


LARGE = 10**6
"""Tokens of a text of which nothing is known yet."""


def check_points(specs: Sequence[str], budgets: Sequence[str], tokens: int = LARGE) -> None:
    """Raise ValueError for what can be known before a model is loaded.

    A method or a budget is not allowed, a budget is missing, a method cannot be built at any budget
    whatever, or no method at any of the budgets, which are shares of a text of ``tokens`` tokens.
    """
    if not specs:
        raise ValueError("methods must name at least one")
    asked = list(points(specs, [budget_entries(text, tokens) for text in budgets]))
    rows = [built(spec, LARGE if takes_budget(spec) else None) for spec in specs]
    for row in rows:
        if row.refusal is not None and not row.failed:
            raise ValueError(f"{row.method}: {row.refusal}")
    check_any([built(spec, entries) for spec, entries in asked])


def built(spec: str, entries: int | None) -> Row:
    """Return a row that says whether a method can be built at a budget, and why not."""
    try:
        methods.get(spec, entries)
    except Exception as error:
        return Row(method=spec, budget=entries, **reason(error))
    return Row(method=spec, budget=entries)
