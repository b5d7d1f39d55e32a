"""The papers' claims beside what was measured here."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.experiments import UNTESTED
from kvlab.fast.lab.evaluate.reproduction import BUDGETS, Judged, Reproduction, Verdict, counts
from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table
from kvlab.reference import methods
from kvlab.reference.planner.figures import paper_figures
from kvlab.reference.proofs import PAPERS, claims
from kvlab.reference.proofs import Verdict as Proved
from kvlab.reference.proofs.errata import Interval
from kvlab.reference.traces.replay import replay
from kvlab.reference.traces.trace import Recording

NO_BREAK = "\u00a0"

SHADES = {
    Verdict.HOLDS: "C2",
    Verdict.FAILS: "C3",
    Verdict.BOTH: "C1",
    Verdict.UNDECIDED: "0.5",
    Verdict.FLOOR: "0.5",
}


def contrasts(judgements: Sequence[Sequence[Judged]]) -> Table:
    """List what the papers print and what was measured, with intervals and a verdict."""
    rows = []
    for several in judgements:
        for each in several:
            contrast = each.contrast
            rows.append(
                (
                    contrast.source,
                    contrast.statement,
                    contrast.printed,
                    each.budget or "own rule",
                    f"{each.problems:,}",
                    shown(each, each.ours),
                    shown(each, each.other),
                    shown(each, each.difference, sign="+"),
                    str(each.verdict),
                )
            )
    columns = ("where", "claim", "printed: ours, other", "memory", "problems", "ours", "other")
    return Table((*columns, "difference", "verdict"), rows, words=4, wrap=True)


def shown(judged: Judged, interval: Interval, sign: str = "") -> str:
    """Format a share in percent, or a mean error."""
    share = judged.contrast.kind != "smaller error"
    factor, digits = (100, 0) if share else (1, 3)
    mean, low, high = (
        round(factor * x, digits) + 0.0 for x in (interval.mean, interval.low, interval.high)
    )
    bounds = f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"
    return f"{mean:{sign}.{digits}f} ({bounds})".replace(" ", NO_BREAK)


def forest(judgements: Sequence[Sequence[Judged]]) -> Picture:
    """Draw the differences in solved problems with their intervals, coloured by verdict."""
    chosen = [
        each for several in judgements for each in several if each.contrast.kind != "smaller error"
    ]
    figure, (axes,) = canvas(width=8, height=0.8 + 0.2 * len(chosen))
    for row, each in enumerate(chosen):
        low, mean, high = (100 * getattr(each.difference, x) for x in ("low", "mean", "high"))
        shade = SHADES[each.verdict]
        axes.plot([low, high], [row, row], color=shade, linewidth=1.6)
        marker = "o" if each.contrast.kind == "more solved" else "s"
        axes.plot(mean, row, marker, color=shade, markersize=4)
    labels = [f"{each.contrast.statement} · {each.budget or 'own rule'}" for each in chosen]
    axes.set_yticks(range(len(chosen)), labels, fontsize=7)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set(xlabel="problems solved more than the other, percentage points", xlim=(-105, 105))
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    return finish(figure, "Differences with intervals: green holds, red does not hold, grey open.")


def tally(judged: Mapping[str, Sequence[Sequence[Judged]]]) -> Table:
    """Count the verdicts on contrasts, budgets put together, by paper."""
    rows = []
    for paper, judgements in judged.items():
        found = counts(judgements)
        own = sum(each.paper == paper for each in UNTESTED)
        numbers = [found[verdict] for verdict in Verdict]
        rows.append((paper, *map(str, numbers), str(own)))
    columns = (*(str(verdict) for verdict in Verdict), "needs other models")
    return Table(("paper", *columns), rows, wrap=True)


def shares(found: Reproduction, specs: Sequence[str]) -> Table:
    """List the shares of problems solved with 95 % intervals, at every budget that was measured."""
    rows = []
    for spec in specs:
        if takes_budget(spec):
            cells = [percent(found.of(spec, budget).share) for budget in BUDGETS]
        else:
            cells = [percent(found.of(spec, None).share)] * len(BUDGETS)
        rows.append((spec, *cells))
    return Table(("method", *(f"solved at {budget}" for budget in BUDGETS)), rows)


def percent(share: Interval) -> str:
    """Format a share and its interval."""
    return f"{100 * share.mean:.0f} % ({100 * share.low:.0f}–{100 * share.high:.0f})"


def untested(paper: str) -> Table:
    """List what cannot be tested here, and why."""
    return Table(
        ("where", "what", "why not here", "what tests it"),
        [
            (each.source, each.statement, each.why, each.instead)
            for each in UNTESTED
            if each.paper == paper
        ],
        words=4,
        wrap=True,
    )


def proofs(model: Path) -> Table:
    """Count the verdicts of `kvlab prove` by paper."""
    rows = []
    for paper in PAPERS:
        found = [claim.run(model).verdict for claim in claims(paper)]
        rows.append((paper, str(len(found)), *(str(found.count(verdict)) for verdict in Proved)))
    columns = ("claims", *(str(verdict) for verdict in Proved))
    return Table(("paper", *columns), rows, wrap=True)


def modelled(paper: str) -> Table:
    """List the printed figures of memory and time beside those of the cost model."""
    return Table(
        ("where", "figure", "printed", "model", "model / printed"),
        [
            (
                each.source,
                each.what,
                f"{each.printed:g} {each.unit}",
                f"{each.modelled:.4g}",
                f"{each.ratio:.2f}" + (" (fitted)" if each.note.startswith("fitted") else ""),
            )
            for each in paper_figures()
            if each.paper == paper
        ],
        words=2,
        wrap=True,
    )


def entries_over_tokens(trace: Recording, specs: Mapping[str, int | None]) -> Picture:
    """Draw the entries that methods hold over the tokens (LazyEviction Fig. 6).

    Args:
        trace: to be replayed; its first layer is shown.
        specs: budgets by method; None for methods that take none.
    """
    figure, (axes,) = canvas(height=3.2)
    policies = [methods.get(spec, budget) for spec, budget in specs.items()]
    fates = next(iter(replay(trace, policies)))
    for spec, fate in zip(specs, fates, strict=True):
        axes.plot(fate.entries, label=spec, linewidth=1.3)
    axes.axvline(trace.prompt - 0.5, color="tab:red", linewidth=0.8)
    axes.set(xlabel="tokens", ylabel="entries per KV head", ylim=(0, None))
    return finish(figure, "Entries over tokens: level once the budget is reached, but for windows.")


def error_by_layer(
    traces: Sequence[Recording], pairs: Sequence[tuple[str, str]], budget: int
) -> Picture:
    """Draw the error of the attention output by layer, without and with CAOTE (CAOTE Fig. 3).

    Args:
        traces: generations to be replayed.
        pairs: a method and its wrapped form.
        budget: entries per KV head.
    """
    figure, (axes,) = canvas(height=3.4)
    specs = [spec for pair in pairs for spec in pair]
    policies = [methods.get(spec, budget) for spec in specs]
    errors = np.array(
        [
            [
                [fate.error[:, trace.prompt :].mean() for fate in fates]
                for fates in replay(trace, policies)
            ]
            for trace in traces
        ]
    ).mean(axis=0)
    for number, (base, wrapped) in enumerate(pairs):
        for spec, style in ((base, "-o"), (wrapped, "--s")):
            axes.plot(
                errors[:, specs.index(spec)], style, markersize=4, color=f"C{number}", label=spec
            )
    axes.set(xlabel="layer", ylabel="relative error of the output", ylim=(0, None))
    axes.set_xticks(range(len(errors)))
    return finish(figure, "Error of the attention output by layer, with CAOTE and without.")
