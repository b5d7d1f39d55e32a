"""What the papers' claims come to: proofs, measured contrasts, and figures of the cost model."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from kvlab.fast.lab.drawing import GREY, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.sweep.summary import TaskSummary
from kvlab.fast.lab.tables import Column, Table, percent_interval, tabulate
from kvlab.reference.proofs import PAPERS, Finding, Kind, claims
from kvlab.reference.proofs import Verdict as Proved
from kvlab.reference.proofs.claim import Claim
from study import contrasts as measured
from study.contrasts import BUDGETS, FIGURES, Judged, Verdict, counts

NO_BREAK = "\u00a0"

COLORS = {
    Verdict.HOLDS: "C2",
    Verdict.FAILS: "C3",
    Verdict.BOTH: "C1",
    Verdict.UNDECIDED: GREY,
    Verdict.FLOOR: GREY,
}

# --- what needs no model --------------------------------------------------------------------------


def finding(tag: str) -> tuple[Claim, Finding]:
    """Check one claim of any paper.

    Raises:
        ValueError: if no claim has this tag.
    """
    for claim in claims():
        if claim.tag == tag:
            return claim, claim.check()
    raise ValueError(f"tag = {tag!r} must be one of {', '.join(each.tag for each in claims())}")


def explanation(tag: str) -> str:
    """Check one claim; say statement, verdict, evidence, counterexample and reading in words."""
    claim, found = finding(tag)
    parts = {
        f"{claim.tag}, {claim.source}": claim.statement,
        str(found.verdict): found.evidence,
        "counterexample": found.counterexample,
        "what is true": found.reading,
    }
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


def verdicts(paper: str, tags: Sequence[str] = ()) -> Table:
    """Check claims of a paper, all of them unless ``tags`` are given, and list the verdicts.

    Raises:
        ValueError: if the paper is unknown.
    """
    columns = (
        Column("claim", "tag"),
        Column("kind"),
        Column("where", "source"),
        Column("statement"),
        Column("verdict", lambda claim: str(claim.check().verdict)),
    )
    chosen = [claim for claim in claims(paper) if not tags or claim.tag in tags]
    return tabulate(chosen, columns, words=5)


def proof_counts() -> Table:
    """Count the verdicts of `kvlab prove` by paper and kind of claim."""
    rows = []
    for paper, kind in product(PAPERS, Kind):
        found = [claim.check().verdict for claim in claims(paper) if claim.kind is kind]
        numbers = (len(found), *(found.count(verdict) for verdict in Proved))
        rows.append((paper, str(kind), *map(str, numbers)))
    return Table(("paper", "kind", "claims", *map(str, Proved)), rows, words=2)


# --- what was measured ----------------------------------------------------------------------------


def contrasts(judgements: Iterable[Sequence[Judged]]) -> Table:
    """List what the papers print and what was measured, with intervals and a verdict."""
    columns = (
        Column("where", lambda each: each.contrast.source),
        Column("claim", lambda each: each.contrast.statement),
        Column("printed: ours, other", lambda each: each.contrast.printed),
        Column("task", lambda each: each.contrast.task),
        Column("memory", memory_of),
        Column("problems", format=","),
        Column("ours", lambda each: written(each, each.ours)),
        Column("other", lambda each: written(each, each.other)),
        Column("difference", lambda each: written(each, each.difference, sign="+")),
        Column("verdict", lambda each: str(each.verdict)),
    )
    rows = [each for several in judgements for each in several]
    return tabulate(rows, columns, words=4)


def memory_of(judged: Judged) -> str:
    """Return the budget at which a contrast was judged."""
    return judged.budget or "own rule"


def written(judged: Judged, interval: Interval, sign: str = "") -> str:
    """Write a share in percent, or a mean figure, with its interval."""
    factor, digits = (1, 3) if judged.contrast.kind in FIGURES else (100, 0)
    mean, low, high = (
        round(factor * x, digits) + 0.0 for x in (interval.mean, interval.low, interval.high)
    )
    bounds = f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"
    return f"{mean:{sign}.{digits}f} ({bounds})".replace(" ", NO_BREAK)


def differences(judgements: Iterable[Sequence[Judged]]) -> Picture:
    """Draw the differences in solved problems with their intervals, coloured by verdict."""
    judged = [each for several in judgements for each in several]
    chosen = [each for each in judged if each.contrast.kind not in FIGURES]
    figure, (axes,) = canvas(width=8, height=0.8 + 0.2 * len(chosen))
    for row, each in enumerate(chosen):
        low, mean, high = (100 * getattr(each.difference, x) for x in ("low", "mean", "high"))
        color = COLORS[each.verdict]
        axes.plot([low, high], [row, row], color=color, linewidth=1.6)
        marker = "o" if each.contrast.kind == "more solved" else "s"
        axes.plot(mean, row, marker, color=color, markersize=4)
    labels = [f"{each.contrast.statement} · {memory_of(each)}" for each in chosen]
    axes.set_yticks(range(len(chosen)), labels, fontsize=7)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set(xlabel="problems solved more than the other, percentage points", xlim=(-105, 105))
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    return finish(figure, "Differences with intervals: green holds, red does not hold, grey open.")


def verdict_counts(judged: Mapping[str, Sequence[Sequence[Judged]]]) -> Table:
    """Count the verdicts on contrasts, budgets put together, by paper."""
    rows = []
    for paper, judgements in judged.items():
        found = counts(judgements)
        untestable = sum(each.paper == paper for each in measured.untested())
        numbers = [*(found[verdict] for verdict in Verdict), untestable]
        rows.append((paper, *map(str, numbers)))
    return Table(("paper", *map(str, Verdict), "needs other models"), rows)


def untested(paper: str) -> Table:
    """List what cannot be tested here, and why."""
    columns = (
        Column("where", "source"),
        Column("what", "statement"),
        Column("why not here", "why"),
        Column("what tests it", "instead"),
    )
    chosen = [each for each in measured.untested() if each.paper == paper]
    return tabulate(chosen, columns, words=4)


def solved_at_budgets(found: TaskSummary, specs: Sequence[str]) -> Table:
    """List the shares of problems solved with 95 % intervals, at every budget that was measured."""

    def share(spec: str, budget: str) -> str:
        interval = found.point_at(spec, budget).interval
        assert interval is not None
        return percent_interval(interval.mean, interval.low, interval.high)

    budgets = BUDGETS[found.task.partition("@")[0]]
    rows = [(spec, *(share(spec, budget) for budget in budgets)) for spec in specs]
    return Table(("method", *(f"solved at {budget}" for budget in budgets)), rows)
