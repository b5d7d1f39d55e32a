"""The plan of cases: what each is drawn of, row by row.

``drawn.toml`` lists the values of each dimension, and ``plan.toml`` the rows in which every two of
them meet, which ``python -m study.plan`` finds. ``cases.toml`` lists further rows one by one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from string import ascii_lowercase, digits
from typing import Any

from kvlab.reference.files import read_data
from kvlab.reference.method import Example

TABLES = read_data("conformance/drawn.toml") | read_data("conformance/cases.toml")

DIGITS = digits + ascii_lowercase
"""In a row, the number of each dimension's value."""

GROUPS: Mapping[str, str] = TABLES["groups"]
"""Tables of the plan, and the group of their cases."""

SIZES = ("kernel", "long")
"""Sizes at which kernels break; the vectors are ``small``."""


def dimensions(entry: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return the values of each dimension of an entry, the simplest first."""
    told = ("operations", "never", "most", "later")
    return {name: x for name, x in entry.items() if name not in told}


SMALL: Mapping[str, Mapping[str, Sequence[Any]]] = {
    operation: {
        name: [*x, *entry.get("later", {}).get(name, ())] for name, x in dimensions(entry).items()
    }
    for entry in TABLES["small"]
    for operation in entry["operations"]
}
"""The dimensions of building blocks whose cases are published, and values that came later."""


def fits(entry: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether some dimensions may have these values together, as far as they are chosen."""

    def banned(ban: Mapping[str, Sequence[Any]]) -> bool:
        return all(name in chosen and chosen[name] in values for name, values in ban.items())

    large = (
        prod(chosen[name] for name in names) > limit
        for names, limit in entry.get("most", ())
        if all(name in chosen for name in names)
    )
    return not any(large) and not any(map(banned, entry.get("never", ())))


def rows(size: str, entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the value of each dimension, row by row."""
    if "axes" in entry:  # listed one by one
        fixed = entry.get("fixed", {})
        yield from (fixed | dict(zip(entry["axes"], row, strict=True)) for row in entry["rows"])
        return
    values = dimensions(entry)
    for row in read_data("conformance/plan.toml")[size][entry["operations"][0]].split():
        numbers = map(DIGITS.index, row)
        yield {name: x[i] for (name, x), i in zip(values.items(), numbers, strict=True)}


def group_of(table: str, entry: Mapping[str, Any]) -> str:
    """Return the group of an entry's cases: its own, or that of a table of planned rows."""
    return entry["group"] if "axes" in entry else GROUPS[table]


def option_rows(*tables: str) -> Iterator[tuple[int, Example, str]]:
    """Yield number, example and stream of the rows of options in some tables, method by method."""
    numbers = defaultdict[str, Iterator[int]](count)
    for table in tables:
        for entry in TABLES[table]:
            for row in rows(table, entry):
                yield next(numbers[entry["operations"][0]]), *asked(entry, row)


def asked(entry: Mapping[str, Any], row: dict[str, Any]) -> tuple[Example, str]:
    """Return the example and the stream of a row of options."""
    options = {key: x for key, x in row.items() if key not in ("stream", "budget", "base")}
    base, _, own = row.get("base", "").partition("@")
    names = (name for name in (entry["operations"][0], base) if name not in ("every_method", ""))
    told = [own] if own else []
    told += [f"{key}={str(x).lower()}" for key, x in options.items()]
    spec = f"{':'.join(names)}@{','.join(told)}"
    return example(spec, row.get("budget", "none")), row["stream"]


def example(spec: str, budget: int | str) -> Example:
    """Return an example of a table, where ``none`` stands for no budget."""
    return Example(spec, None if budget == "none" else int(budget))
