"""The ledger: everything that the four papers contain, and what became of each row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kvlab.reference.files import read_data
from kvlab.reference.proofs import PAPERS

LEDGER, MEASURED = "proofs/data/ledger.toml", "proofs/data/measured.toml"


@dataclass(frozen=True)
class Measured:
    """What was measured for a row."""

    what: str
    where: str
    """Model, problems and budget."""
    figures: Mapping[str, Sequence[float]]
    """Method → mean, and lower and upper end of its 95 % interval."""
    command: str
    """What measures it again."""

    def text(self) -> str:
        """Return figures, what they are and where they come from, in words."""
        shown = (
            f"`{name}` {m:.3g} ({low:.3g} to {high:.3g})"
            for name, (m, low, high) in self.figures.items()
        )
        return f"{self.what}: {', '.join(shown)}; {self.where}"


@dataclass(frozen=True)
class LedgerRow:
    """One thing that a paper contains."""

    paper: str
    place: str
    says: str
    """The content, in our own words."""
    claims: Sequence[str] = ()
    """Tags of the checks."""
    elsewhere: Sequence[str] = ()
    """Those of the tags whose counterexamples are all about other rows."""
    tests: Sequence[str] = ()
    """Tests that tie methods or models to it."""
    tags: Sequence[str] = ()
    """Tags of the lines of the reference that compute it."""
    figures: bool = False
    """Whether `python -m study.planner_figures` sets the cost model beside it."""
    measured: Sequence[Measured] = ()
    pages: Sequence[str] = ()
    """Further pages with measurements."""
    declared: str = ""
    """What nobody here can check, and why."""
    repeat: Sequence[str] = ()
    """Commands for readers who have what is missing here."""

    @property
    def commands(self) -> list[str]:
        """Commands that repeat the row."""
        tags = "".join(f" --claim {tag}" for tag in self.claims)
        return [
            *([f"kvlab prove{tags}"] if tags else []),
            *([" ".join(["pytest", *self.tests])] if self.tests else []),
            *(
                ["python -m study.planner_figures docs/study/results/planner_figures.md"]
                if self.figures
                else []
            ),
            *dict.fromkeys(each.command for each in self.measured),
            *self.repeat,
        ]


@cache
def ledger() -> tuple[LedgerRow, ...]:
    """Return all rows, paper by paper."""
    rows = []
    for name in PAPERS:
        of_places = read_data(MEASURED).get(name, {})
        for each in read_data(LEDGER)[name]:
            found = [Measured(**one) for one in of_places.get(each["place"], [])]
            rows.append(LedgerRow(name, **each, measured=found))
    return tuple(rows)


@cache
def measured(paper: str) -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """Return what was measured: place → where → name → mean and ends of its interval."""
    found: dict[str, dict[str, dict[str, Sequence[float]]]] = {}
    for place, rows in read_data(MEASURED).get(paper, {}).items():
        for row in rows:
            found.setdefault(place, {}).setdefault(row["where"], {}).update(row["figures"])
    return found


def on_smollm2(paper: str, place: str, *figures: str) -> list[Sequence[float]]:
    """Return figures that a row holds of SmolLM2: each mean, and the ends of its interval."""
    own: dict[str, Sequence[float]] = {}
    for where, of_where in measured(paper)[place].items():
        own |= of_where if where.startswith("model smollm2") else {}
    return [own[name] for name in figures]
