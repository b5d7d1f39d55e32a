"""Finds the rows of the kit's plan, in which every two values of every two dimensions meet.

PYTHONPATH=docs python -m study.plan  # writes reference/conformance/plan.toml; needs covertable
"""

from collections.abc import Mapping, Sequence
from typing import Any

from covertable import make

from kvlab.fast.lab.files import write_text
from kvlab.reference.conformance import plan, vectors

FILE = vectors.HERE / "plan.toml"
HEADER = "# Rows of drawn.toml's dimensions, written by `PYTHONPATH=docs python -m study.plan`.\n"
WIDTH = 120


def rows_of(entry: Mapping[str, Any]) -> list[str]:
    """Return rows as digits: of each dimension the number of its value."""
    values = plan.dimensions(entry)
    factors = {name: [*range(len(x))] for name, x in values.items()}

    def constraint(names: Sequence[str]) -> dict[str, Any]:
        def fits(row: Mapping[str, int]) -> bool:
            return plan.fits(entry, {name: values[name][row[name]] for name in names})

        return {"operator": "fn", "requires": [*names], "evaluate": fits}

    limited = (*(names for names, _ in entry.get("most", ())), *entry.get("never", ()))
    if len(factors) == 1:
        return list(plan.DIGITS[: len(*factors.values())])
    found: Any = make(factors, constraints=[constraint([*names]) for names in limited])
    return sorted("".join(plan.DIGITS[row[name]] for name in factors) for row in found)


def main() -> None:
    """Write the rows of all entries."""
    text = HEADER
    for size in plan.GROUPS:
        text += f"\n[{size}]\n"
        for entry in (each for each in plan.TABLES[size] if "axes" not in each):
            text += f'{entry["operations"][0]} = """\n{wrapped(rows_of(entry))}"""\n'
    write_text(FILE, text)


def wrapped(rows: Sequence[str]) -> str:
    """Return lines of rows."""
    each = max(1, WIDTH // (len(rows[0]) + 1))
    lines = (" ".join(rows[first : first + each]) for first in range(0, len(rows), each))
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
