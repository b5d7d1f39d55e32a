"""Claims about printed and stored figures: relations between them, listed in `data/tables.toml`.

A relation such as ``after - before = printed ± 0.005`` is read by SymPy. Its names stand for the
figures of one row of a table, and it is evaluated for every row.
"""

import operator
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib.resources import files
from math import isnan, nan
from typing import Any

import sympy
from sympy import parse_expr

from kvlab.reference.files import printed_tables
from kvlab.reference.proofs.claim import (
    Claim,
    Finding,
    Kind,
    Verdict,
    example,
    over_models,
    tabulated,
)
from kvlab.reference.proofs.ledger import measured

FILE = files("kvlab.reference.proofs") / "data" / "tables.toml"
Tree = Mapping[str, Any]
"""Figures by name, perhaps in tables of tables."""
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
FUNCTIONS = {
    "mean": lambda figures: sum(figures) / len(figures),
    "highest": lambda figures: sympy.Max(*figures),
    "lowest": lambda figures: sympy.Min(*figures),
    "rounded": lambda figure: sympy.Integer(round(figure)),
    "gaps": lambda first, second: [a - b for a, b in zip(first, second, strict=True)],
    "lost": lambda first, second: [100 - 100 * a / b for a, b in zip(first, second, strict=True)],
    "positive": lambda figures: sympy.Integer(sum(figure > 0 for figure in figures)),
}


@dataclass(frozen=True)
class Relations:
    """Relations that hold for every row, or for the given figures alone."""

    holds: Sequence[str]
    rows: Sequence[str] = ()
    """Paths in the paper's tables, such as ``accuracy/*/Ours``; * stands for anything."""
    columns: Sequence[str] = ()
    """Names of a row's figures, in its order; ``*tasks`` is a list of all that the others leave."""
    given: Tree = field(default_factory=dict)
    """Further figures by name: numbers, paths (lists, with a star), or formulas after ``=``."""
    exceptions: Sequence[str] = ()
    """Rows for which the relations must not hold."""
    says: str = ""
    """The sentence that these relations are about."""
    model: str = ""
    """Which of our models showed the figures, ``here`` or ``there``: those of `over_models`."""

    def judge(self, tables: Tree) -> Iterator[tuple[bool, str]]:
        """Yield, for each relation and row, whether it is as claimed, and the figures in words."""
        rows = [row for path in self.rows for row in _found(tables, path)]
        for name, row in rows or [("", {})]:
            named = _by_name(row, self.columns)
            for given, x in self.given.items():
                named[given] = _figures(tables, x, named)
            for relation in self.holds:
                if _legible(relation, named):
                    holds, words = _evaluate(relation, named)
                    about = ", ".join(filter(None, (self.says, name)))
                    yield holds != (name in self.exceptions), f"{about}: {words}".lstrip(": ")


def table_claims(paper: str, text: str | None = None) -> list[Claim]:
    """Return a paper's claims about its tables; ``text`` is read instead of the file."""
    return [
        Claim(
            paper,
            each["tag"],
            Kind(each["kind"]),
            each["source"],
            Verdict(each["expected"]),
            tuple(each.get("topics", ())),
            each["name"],
            each["statement"],
            partial(check, {**printed_tables(paper), "measured": measured(paper)}, each),
        )
        for each in tomllib.loads(text or FILE.read_text(encoding="utf-8")).get(paper, ())
    ]


def check(tables: Tree, claim: Tree) -> Finding:
    """Evaluate the relations of a claim, and those of its interpretation if it has one.

    Relations of figures that our models showed end by model. ``some`` asks for one that holds.
    """
    groups = [Relations(**group) for group in claim["relations"]]
    judged = [each for group in groups for each in group.judge(tables)]
    wrong = [words for as_claimed, words in judged if not as_claimed]
    what = claim["what"]
    if groups[0].model:
        shown = {model: _of_model(tables, groups, model, what) for model in ("here", "there")}
        return over_models(shown["here"], shown["there"] or (False, "not measured"))
    if claim.get("some") and len(wrong) < len(judged):
        found = "; ".join(words for holds, words in judged if holds)
        return example(f"{what}: {found}; not so: {'; '.join(wrong)}")
    if len(judged) <= 4:
        what += f": {'; '.join(words for _, words in judged)}"
    if "instead" not in claim:
        return tabulated(wrong, len(judged), what)
    instead = claim["instead"]
    told = [holds for holds, _ in Relations(**instead["relations"]).judge(tables)]
    true_statement = instead["true_statement"].format(holding=sum(told), total=len(told))
    confirmed = sum(told) > instead["share"] * len(told)
    return tabulated(wrong, len(judged), what, true_statement, confirmed)


def _of_model(
    tables: Tree, groups: Sequence[Relations], model: str, what: str
) -> tuple[bool, str] | None:
    own = [each for group in groups if group.model == model for each in group.judge(tables)]
    wrong = "; ".join(words for holds, words in own if not holds)
    right = sum(holds for holds, _ in own)
    return (not wrong, f"{right} of {len(own)} {what}{wrong and ': not '}{wrong}") if own else None


def _found(tables: Tree, path: str) -> list[tuple[str, Any]]:
    found = list(_matching(tables, path.split("/")))
    if not found:
        raise ValueError(f"path = {path!r} names no printed figure")
    return found


def _matching(tree: Any, path: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield what lies at a path, with the names that its stars stand for."""
    if not path:
        yield "", tree
        return
    branches = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    for key, branch in branches:
        if fnmatchcase(str(key), path[0]):
            starred = str(key) if path[0] != str(key) else ""
            for name, found in _matching(branch, path[1:]):
                yield ", ".join(filter(None, (starred, name))), found


def _figures(tables: Tree, given: Any, named: Tree) -> Any:
    if not isinstance(given, str):
        return given
    if given.startswith("= "):
        return _value(given[2:], named)
    found = [figure for _, figure in _found(tables, given)]
    return found if "*" in given else found[0]


def _by_name(row: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a row, which may be nested, by the names of its columns."""
    if isinstance(row, Mapping) and not columns:
        return dict(row)
    figures = _flat(row)
    if columns and columns[0].startswith("*"):
        rest = len(figures) - len(columns) + 1
        figures = [figures[:rest], *figures[rest:]]
    return dict(zip((name.lstrip("*") for name in columns), figures, strict=True))


def _flat(row: Any) -> list[Any]:
    if not isinstance(row, Mapping | list):
        return [row]
    parts = row.values() if isinstance(row, Mapping) else row
    return [figure for part in parts for figure in _flat(part)]


def _value(formula: str, named: Tree) -> Any:
    return parse_expr(formula, {**FUNCTIONS, **named}) if _legible(formula, named) else nan


def _legible(formula: str, named: Tree) -> bool:
    """Whether our copy of the paper shows all figures that a formula names."""
    figures = [named.get(name) for name in re.findall(r"[a-z]\w*", formula)]
    return not any(isinstance(figure, float) and isnan(figure) for figure in figures)


def _evaluate(relation: str, named: Tree) -> tuple[bool, str]:
    """Say whether a relation holds, and its two sides in words."""
    parts = re.fullmatch(r"(.+?) (<=|>=|<|>|=) (.+?)(?: ± (.+))?", relation)
    assert parts is not None, relation
    left, sign, right, tolerance = parts.groups()
    a, b, allowed = (float(_value(side, named)) for side in (left, right, tolerance or "0"))
    shown = f"{left}: {a:.4g}" if right == f"{b:g}" else f"{left}: {a:.4g}, {right}: {b:.4g}"
    holds = abs(a - b) <= allowed if sign == "=" else COMPARED[sign](a, b)
    return holds, shown.replace("_", " ")
