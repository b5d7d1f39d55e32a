"""The ledger of figures: what pages say about results, computed from what is stored.

    PYTHONPATH=docs python -m study.ledger [--write]

prints what the pages say otherwise than the stored results, and what they say without a row. With
``--write`` it puts the stored figures into the pages and their rows, where numbers alone differ.

``ledger/PAGE.toml`` has the rows of a page. The words of a row stand there as they stand on the
page; « » enclose what is computed, and each expression of ``figures`` computes one of these with
the functions of `Source`, at the row's sweep and budget. A text holds its numbers with their units,
joined as they are ("81.0 (72.2–87.5) %"). They are compared as the words write them, with as many
decimals: one number of an interval is its mean, two are its ends, three are all. Where words state
a verdict, one of `VERDICTS`, the paired test must have it. ``[settings]`` are regular expressions
of what looks like a result and is none, each with the reason, and ``[names]`` what expressions may
use; those of ``shared.toml`` hold on all pages.

What is no row, setting, code, address or comment (hooks replace comments by tables made from the
data) is searched for results: numbers with a unit, with decimals, of an interval, as in "7 of 9" or
in a table's cell, and words that compare. Not seen are results in words alone ("twice", "hardly",
"most of it"), whole numbers without a unit, other words than those of `COMPARED` and `TELLS`, and
whether the words of a row mean what its expressions compute.
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate.pairs import Test, paired_tests
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.sweep.summary import (
    ACCEPTED,
    ALONG,
    LOSS,
    SOLVED,
    Point,
    TaskSummary,
    main_measure,
)
from study import effects_figures, pays, speeds, stored
from study.after_eviction import rated
from study.map import PROTECTIONS, panel, split

DOCS, ROWS = Path(__file__).parents[1], Path(__file__).parent / "ledger"
OWN_PAGES = (
    "README",
    "index",
    "results",
    "which",
    "score_or_protection",
    "benchmarks",
    "kernels",
    "plan",
    "vllm",
)
"""Pages that are searched beside those of methods, and those that have rows."""
PAGES = sorted(
    {*OWN_PAGES}
    | {f"methods/{each.stem}" for each in (DOCS / "methods").glob("*.md")}
    | {str(each.relative_to(ROWS).with_suffix("")) for each in ROWS.rglob("*.toml")} - {"shared"}
)
MEASURES = {each.name: each for each in (SOLVED, ACCEPTED, LOSS, *ALONG)}

COUNTS = (
    *("no|none|nothing|never", "one|once", "two|both|twice", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
    "sixteen",
)
"""Whole numbers as words, from 0, where a text has no digits."""
VERDICTS = {
    "open": r"\b(?:not|no|nothing|none|no longer) (?:\w+ )*?significant(?:ly)?|≈|no difference"
    r"|(?:nothing|none|cannot|nor|not) (?:[\w ]+ )?told (?:apart|from)",
    "same": r"as (?:much|many) as",
    "worse": r"loses? (?:significantly )?more|(?:significantly )?(?:worse|(?:fewer|less)(?! nats))"
    r"|behind|hurts",
    "better": r"better|more|gain(?:s|ed)?|leads?|ahead|beats?|helps|(?:fewer|less) nats"
    r"|significant(?:ly)?(?! more)",
}
"""What words say of a paired test: not significant, or which is better; or that nothing differs."""
SAID = re.compile(
    "|".join(rf"(?P<{kind}>{words})" for kind, words in VERDICTS.items()).replace(" ", r"\s+"), re.I
)

NUMBER = re.compile(r"(?<![\w.])[−+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
JOIN = r"(?:–|/|,? (?:to|and|or|of|against) |, | ?\()"
UNIT = r"(?:%|(?:ms|µs|s|[MG]iB|[kMG]B|tokens/s|nats?|points?|times|percent)\b)"
CHAIN = re.compile(
    rf"(?<![\w.@=-])(?P<numbers>{NUMBER.pattern}(?:{JOIN}{NUMBER.pattern})*)(?![\w@]|\.\d)"
    rf"(?P<end>\)?)(?P<unit> ?{UNIT})?"
)
COMPARED = re.compile(
    r"\b(?:better|worse|best|worst|fast(?:er|est)|slow(?:er|est)|fewe(?:r|st)|significant(?:ly)?"
    r"|beats?|leads?|ahead|behind|hurts|helps|outperforms?"
    r"|(?:more|less|larger|smaller|higher|lower|cheaper|costlier)\b(?=[^.;:|]{0,60}\bthan)"
    r"|as (?:good|well|fast|many|much) as)\b",
    re.IGNORECASE,
)
TELLS = re.compile(r"\b(?:gain(?:s|ed)?|loses?|solves?)\b", re.IGNORECASE)
"""Verbs of results: what they tell stands in the words of a row."""
MASKED = re.compile(
    r"\A---\n.*?\n---\n|^```.*?^```|^ {4}.*?$|<!--.*?-->|`[^`\n]+`|<[^>\n]*>|\]\([^)\s]*\)|https?://\S+",
    re.DOTALL | re.MULTILINE,
)
"""Front matter, code, comments, tags and addresses."""
MARKED = re.compile("«(.*?)»", re.DOTALL)
CELLS = re.compile(r"^\|(?!.*\n\|[ :|-]+$).*$", re.MULTILINE)
"""Rows of tables below their headings."""


Span = tuple[int, int]


@dataclass(frozen=True)
class Verdict:
    """What a paired test says of a method, against its control or another method."""

    method: str
    budget: int | str | None
    gain: Interval
    """Positive where the method is better: points of a share, or nats."""
    p: float
    holm: float
    """p after Holm's correction."""
    said: str
    """One of `VERDICTS`."""


Item = float | str | Interval | Verdict | Iterable[Any]
"""What an expression computes; a text is a verdict."""


@dataclass(frozen=True)
class Source:
    """A sweep at one of its budgets; all functions take another ``sweep``, ``budget`` or ``by``."""

    sweep: str = ""
    budget: str | int | None = None
    by: str = ""
    """Measure, as `MEASURES` name it; by default the sweep's main one."""
    task: str = ""
    """Where the sweep has several."""

    def summary(self, **at: Any) -> TaskSummary:
        """Return all that the sweep found."""
        here = replace(self, **at)
        return stored.stored_summary(here.sweep, here.task)

    def point(self, method: str = "full", **at: Any) -> Point:
        """Return the row of a method, or of a control that the sweep added."""
        here = replace(self, **at)
        return here.summary().point(method, here.budget)

    def share(self, method: str = "full", **at: Any) -> Interval:
        """Return the percentage of problems solved, or of tokens accepted."""
        point, by = self.point(method, **at), replace(self, **at).by
        found = point.accepted if by == ACCEPTED.name else point.interval or point.accepted
        assert found, f"{method} has no share"
        return scaled(found, 100)

    def nats(self, method: str, **at: Any) -> Interval:
        """Return the loss per token less the full cache's."""
        found = self.point(method, **at).nats
        assert found, f"{method} has no loss"
        return found

    def after(self, **at: Any) -> float:
        """Return the percentage of rated tokens that come after an eviction, from their lengths."""
        here = replace(self, **at)
        (found,) = (x["after"] for x in rated(here.sweep) if x["budget"] == here.budget)
        return 100 * found.count / found.of

    def split(
        self, without: Sequence[str] = (), under: Sequence[str] = tuple(PROTECTIONS), **at: Any
    ) -> list[Interval]:
        """Return what score, protection and their match explain of the variance, in percent."""
        here = replace(self, **at)
        by = MEASURES[here.by] if here.by else None
        found = split(here.sweep, str(here.budget), by, without, under)
        return [scaled(share, 100) for share in found.values()]

    def gains(self, *methods: str, **at: Any) -> list[Verdict]:
        """Return tests against matched controls, of all methods if none is named.

        Without a budget they are those of all budgets. Holm corrects over the whole sweep.
        """
        here = replace(self, **at)
        tests = [verdict(each) for each in here.summary().gains]
        return [x for x in tests if x.method in (methods or {x.method}) and here.has(x.budget)]

    def versus(self, *pairs: tuple[str, str], **at: Any) -> list[Verdict]:
        """Test the first of each pair against the second; Holm corrects over these tests."""
        here = replace(self, **at)
        rows = [x for x in (*here.summary().points, *here.summary().controls) if here.has(x.budget)]
        measure = MEASURES[here.by] if here.by else main_measure(rows)
        tests = paired_tests(rows, pairs, measure)
        assert len(tests) >= len(pairs), f"of {pairs} only {len(tests)} can be tested"
        return [verdict(each) for each in tests]

    def has(self, budget: int | str | None) -> bool:
        """Say whether a row of this budget, in entries, is meant."""
        known: Mapping[Any, int] = self.summary().budgets
        return self.budget is None or budget in (None, known.get(self.budget, self.budget))


def verdict(test: Test) -> Verdict:
    """Turn a test so that more is better, and shares are percentages."""
    measure = MEASURES[test.measure]
    scale = measure.sign * (1 if measure.sign < 0 else 100)
    said = {test.first: "better", test.second: "worse"}.get(test.verdict, "open")
    gain = scaled(test.difference, scale)
    return Verdict(test.first, test.budget, gain, test.p, test.p_adjusted, said)


def scaled(found: Interval, scale: float) -> Interval:
    """Multiply an interval."""
    ends = sorted((scale * found.low, scale * found.high))
    return Interval(scale * found.mean, *ends)


def better(tests: Iterable[Verdict]) -> list[str]:
    """Return the methods that are significantly better in some of the tests, each once."""
    return list(dict.fromkeys(each.method for each in tests if each.said == "better"))


def only(tests: Iterable[Verdict], *methods: str) -> str:
    """Return "better" if these methods are significantly better, and no others."""
    return "better" if sorted(better(tests)) == sorted(methods) else "others, too, or not all"


def same(*items: Interval | float) -> str:
    """Return "same" if all means are equal."""
    least, largest = span(items)
    return "same" if least == largest else "different"


def span(items: Iterable[Interval | float]) -> tuple[float, float]:
    """Return the least and the largest of some means."""
    means = [each.mean if isinstance(each, Interval) else each for each in items]
    return min(means), max(means)


def of_file(name: str, *path: str | int | Mapping[str, Any]) -> Any:
    """Return what stands in ``results/NAME.json``; of a list, a mapping takes the row that has it.

    Raises:
        ValueError: if not one row has it.
    """
    found: Any = stored.stored_file(name)
    for step in path:
        if isinstance(step, Mapping):
            (found,) = (row for row in found if step.items() <= row.items())
        else:
            found = found[step]
    return found


OWN = ("summary", "point", "share", "nats", "after", "split", "gains", "versus")
"""Of a source: what expressions may call."""
FUNCTIONS = {f.__name__: f for f in (better, only, panel, same, span, of_file, scaled)}
FUNCTIONS |= {**speeds.FUNCTIONS, **pays.FUNCTIONS, **effects_figures.FUNCTIONS}


@dataclass(frozen=True)
class Row:
    """Words of a page, and what computes those in « »."""

    words: str
    figures: Sequence[str]
    sweep: str = ""
    budget: str | int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """Expressions that the others use."""

    @property
    def texts(self) -> list[str]:
        """What is computed, as it stands in the words."""
        return MARKED.findall(self.words)

    @property
    def pattern(self) -> re.Pattern[str]:
        """The words, wherever lines break; each text is a group."""
        parts = (
            r"\s+".join(map(re.escape, re.split(r"\s+", x))) for x in re.split("[«»]", self.words)
        )
        return re.compile("".join(f"({x})" if i % 2 else x for i, x in enumerate(parts)))

    @cached_property
    def computed(self) -> list[str]:
        """The texts as the stored results have them.

        Raises:
            ValueError: if there are more or fewer expressions than texts, or one cannot be written.
        """
        return [written(*each) for each in zip(self.texts, self.items(), strict=True)]

    def items(self) -> list[Item]:
        """Compute every expression."""
        source = Source(self.sweep, self.budget)
        known = FUNCTIONS | {name: getattr(source, name) for name in OWN}
        known |= {name: eval(each, dict(known)) for name, each in self.names.items()}
        return [eval(f"({figure})", dict(known)) for figure in self.figures]


def written(text: str, item: Item) -> str:
    """Write what was computed as a text writes it; a verdict that it does not have is in ⟨ ⟩.

    Raises:
        ValueError: if the text has another number of figures, or neither figure nor verdict.
    """
    items = list(flat(item))
    figures = [x.gain if isinstance(x, Verdict) else x for x in items if not isinstance(x, str)]
    said = {x.said if isinstance(x, Verdict) else x for x in items if isinstance(x, Verdict | str)}
    stated = {each.lastgroup for each in SAID.finditer(text)} if said else set()
    stated = {"open"} & stated or stated
    numbers = NUMBER.findall(text)
    if numbers:
        values = iter(expanded(figures, len(numbers)))
        text = NUMBER.sub(lambda found: like(found[0], next(values)), text)
    elif not said:
        (count,) = expanded(figures, 1)
        if not re.search(rf"\b(?:{COUNTS[round(count)]})\b", text, re.IGNORECASE):
            return f"{text} ⟨{count}⟩"
    if said and (stated or not numbers) and stated != said:
        return f"{text} ⟨{', '.join(sorted(said))}⟩"
    return text


def flat(item: Item) -> Iterator[Any]:
    """Yield what lists hold."""
    if isinstance(item, Iterable) and not isinstance(item, str):
        for each in item:
            yield from flat(each)
    else:
        yield item


def expanded(figures: Sequence[float | Interval], count: int) -> list[float]:
    """Return so many numbers: means, both ends of every interval, or all three.

    Raises:
        ValueError: if there are not so many.
    """
    wide = [x if isinstance(x, Interval) else Interval(x, x, x) for x in figures]
    for ends in (("mean",), ("low", "high"), ("mean", "low", "high")):
        if count == len(ends) * len(figures):
            return [getattr(x, end) for x in wide for end in ends]
    raise ValueError(f"{count} numbers are written, and {len(figures)} figures were computed")


def like(text: str, value: float) -> str:
    """Write a number with the sign and the decimals of another; a half is rounded away from 0."""
    digits = len(text.partition(".")[2])
    value += math.copysign(1e-9, value)
    return f"{value:{'+' if text[0] == '+' else ''},.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Page:
    """A page and its rows."""

    name: str
    text: str
    rows: Sequence[Row]
    settings: Sequence[str]
    """Regular expressions."""

    def faults(self) -> Iterator[str]:
        """Yield what is not on the page, what is stored otherwise, and what has no row."""
        texts, words = [], []
        for row in self.rows:
            if not (found := list(row.pattern.finditer(self.text))):
                yield f"{self.name}: not on the page: {row.words}"
            try:
                right_ones = row.computed
            except Exception as error:
                yield f"{self.name}: {type(error).__name__}: {error}: {row.words}"
                continue
            for text, right in zip(row.texts, right_ones, strict=True):
                if text != right:
                    yield f"{self.name}: “{text}” must be “{right}”: {row.words}"
            words += [each.span() for each in found]
            texts += [group for each in found for group in each.regs[1:]]
        for each in results(self.text, self.settings, texts, words):
            yield f"{self.name}: has no row: {each}"

    def mended(self) -> "Page":
        """Put the stored figures into the page and its rows; other verdicts stay as they are."""
        text, rows = self.text, []
        for row in self.rows:
            items = row.items()
            text = row.pattern.sub(lambda found, items=items: restated(found, items), text)
            new = iter(items)
            words = MARKED.sub(lambda found, new=new: restated(found, [next(new)]), row.words)
            rows.append(replace(row, words=words))
        return replace(self, text=text, rows=rows)


def restated(found: re.Match[str], items: Sequence[Item]) -> str:
    """Return what was found with the stored figures in its groups, but for another verdict."""
    edges = [found.start(), *(edge for group in found.regs[1:] for edge in group), found.end()]
    parts = [found.string[a:b] for a, b in pairwise(edges)]
    right = [written(*each) for each in zip(parts[1::2], items, strict=True)]
    parts[1::2] = [old if "⟨" in new else new for old, new in zip(parts[1::2], right, strict=True)]
    return "".join(parts)


def results(
    text: str, settings: Sequence[str], texts: Sequence[Span], words: Sequence[Span]
) -> Iterator[str]:
    """Yield what looks like a result outside of rows and settings, with words around it."""
    masked = MASKED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    flat = masked.replace("\n", " ")
    cells = [each.span() for each in CELLS.finditer(masked)]
    known = [each.span() for x in settings for each in re.finditer(x.replace(" ", r" +"), flat)]
    for pattern in (CHAIN, COMPARED, TELLS):
        for found in pattern.finditer(flat):
            place = found.span() if pattern is not CHAIN or found["unit"] else found.span("numbers")
            if within(place, [*known, *(words if pattern is TELLS else texts)]):
                continue
            if pattern is not CHAIN or is_result(found) or within(place, cells):
                start, end = place
                around = flat[max(0, start - 40) : start], found[0], flat[end : end + 25]
                yield "{}[{}]{}".format(*(re.sub(r" +", " ", each) for each in around))


def within(place: Span, others: Sequence[Span]) -> bool:
    """Say whether a place lies within one of others."""
    return any(start <= place[0] and place[1] <= end for start, end in others)


def is_result(found: re.Match[str]) -> bool:
    """Say whether numbers have a unit or decimals, or are an interval or a part of a whole."""
    numbers = found["numbers"]
    interval = found["end"] and re.search(r"\d(?:–| to )\d", numbers)
    return bool(found["unit"] or "." in numbers or " of " in numbers or interval)


def read(name: str) -> Page:
    """Read a page and its rows."""
    own, shared = (
        tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        for path in (ROWS / f"{name}.toml", ROWS / "shared.toml")
    )
    settings = [*shared["settings"], *own.get("settings", ())]
    names = shared["names"] | own.get("names", {})
    rows = [Row(**each, names=names) for each in own.get("row", ())]
    return Page(name, path_of(name).read_text("utf-8"), rows, settings)


def path_of(name: str) -> Path:
    """Return where a page is."""
    return DOCS.parent / "README.md" if name == "README" else DOCS / f"{name}.md"


def write(old: Page, new: Page) -> None:
    """Write a page and its rows where they differ from the old ones."""
    path_of(new.name).write_text(new.text, "utf-8")
    file = ROWS / f"{new.name}.toml"
    for was, row in zip(old.rows, new.rows, strict=True):
        file.write_text(file.read_text("utf-8").replace(was.words, row.words), "utf-8")


def main(write_them: bool) -> int:
    """Print the faults of all pages; return 1 if there are any."""
    found = []
    for name in PAGES:
        page = read(name)
        if write_them:
            write(page, mended := page.mended())
            page = mended
        found += page.faults()
    print(*found, f"{len(found)} faults", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv))
