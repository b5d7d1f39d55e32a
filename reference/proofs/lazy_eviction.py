"""LazyEviction's claims (arXiv 2506.15969).

TS is the generated step of an entry's latest activation, MRI its longest interval between two
activations, Δ the steps since the latest one. The authors' code starts TS one step before an entry
is born, so that the first activation ends an interval, too; we do the same unless a claim says
otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise, product
from math import log2, tanh
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import sympy
from jaxtyping import Float, Int
from sympy import Expr

from kvlab.reference.files import printed_tables
from kvlab.reference.notation import Array
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    exhaustive,
    false,
    measured,
    not_here,
    proved,
    refuted,
    right,
    sentences,
    tabulated,
    verified,
)
from kvlab.reference.proofs.counting import Counts, count_window, operations
from kvlab.reference.proofs.outputs import exact_error
from kvlab.reference.simulator.observed import prompt_tokens, received

PAPER = Paper("lazy_eviction", "LazyEviction", "arXiv 2506.15969")
TABLES = printed_tables("lazy_eviction")
MODELS = ("DS-Llama-8B", "DS-Qwen-7B", "Qwen3-4B", "QwQ-32B")

Form = Callable[[Expr], Expr]
Importance = Callable[[float, float], float]
"""A score as a function of MRI and Δ."""


# --- definitions ---------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    """1/(1 + e^−x), without overflow."""
    return (1 + tanh(x / 2)) / 2


def printed_h2(mri: float) -> float:
    """2σ(−1/(MRI − 1)); its right limit, 0, at MRI = 1."""
    return 2 * sigmoid(-1 / (mri - 1)) if mri > 1 else 0.0


def code_h2(mri: float) -> float:
    """2σ(−(MRI − 1)), as the authors' code has it."""
    return 2 * sigmoid(1 - mri)


def importance(mri: float, elapsed: float) -> float:
    """Eq. 2 with the code's H2, for MRI ≥ 1."""
    return 2 * sigmoid(-elapsed / mri) + code_h2(mri)


def printed_importance(mri: float, elapsed: float) -> float:
    """Eq. 2 as printed."""
    return 2 * sigmoid(-elapsed / mri) + printed_h2(mri)


def official_importance(mri: float, elapsed: float) -> float:
    """The authors' code: H1 is 2σ(−1 − Δ/MRI)."""
    return 2 * sigmoid(-1 - elapsed / mri) + code_h2(mri)


Start = Literal["step before birth", "birth", "first activation"]


def track(active: Sequence[bool], born: int, start: Start = "step before birth") -> tuple[int, int]:
    """Eq. 1, step by step: TS and MRI after the steps ``born``, ``born + 1``, …

    Args:
        active: whether the entry is activated at each of these steps.
        born: the entry's first step.
        start: what TS is before the first activation; the paper does not say.
    """
    started = start != "first activation"
    stamp, interval = born if start == "birth" else born - 1, 0
    for step, now in enumerate(active, start=born):
        if now:
            interval = max(interval, step - stamp) if started else 0
            stamp, started = step, True
    return stamp, interval


FORMS: Mapping[str, Form] = {
    "sigmoid": lambda x: 2 / (1 + sympy.exp(x)),
    "exp": lambda x: sympy.exp(-x),
    "tanh": lambda x: 1 - sympy.tanh(x),
    "inverse": lambda x: 1 / (1 + x),
    "log": lambda x: 1 / (1 + sympy.log(1 + x)),
}
"""The families of Appendix D as maps of x ≥ 0: x is Δ/MRI in H1 and MRI − 1 in H2."""


def objection(form: Form) -> str:
    """Say what Appendix D would object to in a map of x ≥ 0; empty if nothing."""
    x = sympy.symbols("x", positive=True)
    f = sympy.simplify(form(x).rewrite(sympy.exp))
    slope = sympy.factor(sympy.simplify(sympy.diff(f, x)))
    if not slope.is_negative:
        value: Callable[..., float] = sympy.lambdify(x, slope, "math")
        rising = [at for at in (1, 2, 5) if value(at) >= 0]
        return f"its slope is {slope}, not negative" + (f" at x = {rising[0]}" if rising else "")
    highest, lowest = sympy.limit(f, x, 0, "+"), sympy.limit(f, x, sympy.oo)
    if not (highest <= 1 and lowest >= 0):
        return f"its values fall from {highest} to {lowest}"
    return ""


# --- §4 and Appendix D: the score ----------------------------------------------------------------


@PAPER.printed("LE-1", "Eq. 2 and Appendix D, H2", Verdict.REFUTED, "H2")
@right("2σ(−(MRI − 1)) is printed", h2=lambda x: 2 / (1 + sympy.exp(x)))
@false("the reading is 2σ(MRI − 1)", reading=lambda x: 2 / (1 + sympy.exp(-x)))
def printed_h2_falls(
    *,
    h2: Form = lambda x: 2 / (1 + sympy.exp(1 / x)),
    reading: Form = lambda x: 2 / (1 + sympy.exp(x)),
) -> Finding:
    """H2 = 2σ(−1/(MRI − 1)) is larger for a smaller MRI, and stays in [0, 1].

    §4 gives the first as its purpose, Appendix D demands both. SymPy, with x = MRI − 1 > 0.
    """
    against = objection(h2)
    if not against:
        return proved("SymPy: negative slope for all x = MRI − 1 > 0, values in [0, 1]")
    x = sympy.symbols("x", positive=True)
    values = [float(h2(sympy.Integer(m - 1))) for m in (2, 3, 10)]
    left = sympy.limit(h2(-x), x, 0, "+")
    return refuted(
        f"MRI = 2, 3, 10: H2 = {', '.join(f'{v:.4f}' for v in values)}; at MRI = 1 it has no value",
        f"SymPy, x = MRI − 1: {against}; the limits at MRI = 1 are "
        f"{sympy.limit(h2(x), x, 0, '+')} from above and {left} from below",
        "2σ(−(MRI − 1)), the authors' code, falls from 1 to 0",
        not objection(reading),
    )


@PAPER.reading("LE-2", "Appendix D and Table 5", Verdict.PROVED)
@false("the exponential is e^x", forms={"exp": lambda x: sympy.exp(x)})
@false("the inverse is 2/(1 + x)", forms={"inverse": lambda x: 2 / (1 + x)})
@false("the logarithm is −ln(1 + x)", forms={"log": lambda x: -sympy.log(1 + x)})
def all_forms_fall_within_the_unit_interval(*, forms: Mapping[str, Form] = FORMS) -> Finding:
    """The five families of Table 5, read as their simplest members with value 1 at 0, have the two
    properties that Appendix D demands: they fall strictly and stay in [0, 1].

    The paper names the families and prints no formula but the sigmoid's.
    """
    for name, form in forms.items():
        if against := objection(form):
            return refuted(f"{name}: {against}")
    return proved(f"SymPy: negative slope and limits in [0, 1] for {', '.join(forms)}, all x > 0")


@PAPER.reading("LE-2b", "Eq. 2, the case MRI = 0", Verdict.PROVED, "MRI = 0")
@false("the limit for Δ > 0 is 1", waiting=1)
@false("the limit for Δ = 0 is 0, too", active=0)
def score_without_recurrence(*, waiting: int = 0, active: int = 1) -> Finding:
    """Eq. 2 keeps H1 = 2σ(−Δ/MRI) for MRI = 0, which divides by zero; its limit for MRI → 0 is 0
    if the entry waits (Δ > 0) and 1 if it was activated just now (Δ = 0).
    """
    elapsed, mri = sympy.symbols("Delta MRI", positive=True)
    limits = [sympy.limit(2 / (1 + sympy.exp(d / mri)), mri, 0, "+") for d in (elapsed, 0)]
    if limits != [waiting, active]:
        return refuted(f"the limits are {limits}, {[waiting, active]} is claimed")
    return proved("SymPy: both limits for MRI → 0 from above; no single value suits both")


@PAPER.ours("LE-1b", "Eq. 2 against the authors' code", Verdict.EXHAUSTIVE, "H1")
@false("entries are ranked as by the printed H1", code=importance)
@false("entries of equal MRI change their order", equal_intervals_agree=False)
def code_changes_the_order(
    *, code: Importance = official_importance, equal_intervals_agree: bool = True
) -> Finding:
    """H1 in the authors' code, 2σ(−1 − Δ/MRI), puts some entries into another order than the
    printed 2σ(−Δ/MRI), but never two of equal MRI.

    Both with the code's H2; all pairs of MRI and Δ up to 12, smallest first.
    """
    pairs = [(a, b) for a, b in product(histories(12), repeat=2) if importance(*a) > importance(*b)]
    turned = [(a, b) for a, b in pairs if code(*a) < code(*b)]
    agree = not any(a[0] == b[0] for a, b in turned)
    if not turned or agree != equal_intervals_agree:
        return refuted(f"{len(turned)} of {len(pairs)} pairs change their order")
    a, b = turned[0]
    return exhaustive(
        f"{len(turned)} of {len(pairs)} pairs; the first, (MRI, Δ) = {a} and {b}: paper "
        f"{importance(*a):.3f} > {importance(*b):.3f}, code {code(*a):.3f} < {code(*b):.3f}; the "
        f"code's H1 is at most {code(12, 0) - code_h2(12):.3f} instead of 1"
    )


def histories(largest: int) -> list[tuple[int, int]]:
    """MRI and Δ up to a number, smallest sum first."""
    return sorted(product(range(1, largest + 1), range(largest + 1)), key=sum)


@PAPER.ours("LE-1c", "Eq. 2, how much H2's reading matters", Verdict.VERIFIED, "H2", "H1")
@false("the code's H2 is compared with itself", other=importance)
@false("the printed H2 changes little", small=printed_importance)
def reading_of_h2_decides(
    *, other: Importance = printed_importance, small: Importance = official_importance
) -> Finding:
    """Where MRIs are small, the reading of H2 decides which entries are kept: at a mean MRI of 3,
    two thirds of the kept entries differ. The code's −1 in H1 changes less than a tenth anywhere.

    Half of 1000 synthetic entries is kept, Δ geometric with mean MRI; chance keeps 0.5 in common.
    """
    shares = {
        name: (_common(mri, importance, other), _common(mri, importance, small))
        for name, mri in _mri_samples(1000).items()
    }
    evidence = "kept in common by printed and code's H2, and by the code's and the printed H1: "
    evidence += ", ".join(f"{name}: {h2:.2f} and {h1:.2f}" for name, (h2, h1) in shares.items())
    figures = {name: list(pair) for name, pair in shares.items()}
    lowest_h2, lowest_h1 = (min(each) for each in zip(*shares.values(), strict=True))
    return measured(lowest_h2 < 0.34 and lowest_h1 >= 0.9, evidence, **figures)


def _mri_samples(entries: int) -> dict[str, Int[Array, " entries"]]:
    rng = np.random.default_rng(0)
    lognormal = np.exp(rng.normal(np.log(60), np.log(175 / 60) / 0.8416, size=entries))
    return {
        **{f"geometric, mean {m}": rng.geometric(1 / m, size=entries) for m in (3, 10, 50)},
        "log-normal, 80 % below 175": np.maximum(1, np.round(lognormal)).astype(int),
    }


def _common(mri: Int[Array, " n"], first: Importance, second: Importance) -> float:
    elapsed = np.random.default_rng(1).geometric(1 / (1 + mri)) - 1
    kept = [
        _better_half([rule(float(m), float(d)) for m, d in zip(mri, elapsed, strict=True)])
        for rule in (first, second)
    ]
    return len(kept[0] & kept[1]) / len(kept[0])


def _better_half(scores: Sequence[float]) -> set[int]:
    return set(np.argsort(scores, kind="stable")[len(scores) // 2 :].tolist())


@PAPER.printed("LE-8", "§1, MRI-centric eviction policy", Verdict.REFUTED, "Δ < MRI")
@right("the score is 1 where Δ < MRI, else 0", score=lambda mri, d: float(d < mri))
@false("2 is taken away there", guarded=lambda mri, d: printed_importance(mri, d) - 2 * (d < mri))
def recurring_tokens_are_retained(
    *,
    score: Importance = printed_importance,
    guarded: Importance = lambda mri, d: printed_importance(mri, d) + 2 * (d < mri),
) -> Finding:
    """Entries whose time since the latest activation exceeds their MRI are evicted first, those
    with Δ < MRI are retained: by Eq. 2 no entry with Δ < MRI scores below an entry with Δ > MRI.

    All pairs with MRI from 2, below which the printed H2 has no value, to 10 and Δ up to 10,
    smallest first.
    """
    found = _overtaken(score)
    if not found:
        return verified("every pair of entries, MRI from 2 and Δ, both up to 10")
    code = _overtaken(importance)
    return refuted(
        f"(MRI, Δ) = {found}",
        f"all pairs, MRI from 2 and Δ, both up to 10; with the code's H2 {code or 'it holds'}",
        "it holds if 2, the most by which H1 + H2 can differ, is added where Δ < MRI (guard=true)",
        not _overtaken(guarded),
    )


def _overtaken(score: Importance) -> str:
    """Name the first entry with Δ < MRI that scores below one with Δ > MRI; empty if none does."""
    defined = [(mri, elapsed) for mri, elapsed in histories(10) if mri > 1]
    waiting = [entry for entry in defined if entry[1] < entry[0]]
    overdue = [entry for entry in defined if entry[1] > entry[0]]
    for a, b in product(waiting, overdue):
        if score(*a) < score(*b):
            return f"{a} scores {score(*a):.3f}, below {b} with {score(*b):.3f}"
    return ""


# --- Eq. 1: tracking -----------------------------------------------------------------------------


def gaps_between(active: Sequence[bool], born: int, which: int | None = None) -> tuple[int, int]:
    """The words of §4: step of the latest activation, longest interval between consecutive ones.

    Args:
        active: whether the entry is activated at each step from its first on.
        born: the entry's first step.
        which: take this interval instead of the longest one.
    """
    steps = [step for step, now in enumerate(active, start=born) if now]
    gaps = [later - earlier for earlier, later in pairwise(steps)] or [0]
    return (steps[-1] if steps else born - 1), max(gaps) if which is None else gaps[which]


PATTERNS = [
    (born, active)
    for born, length in product((1, 4), range(1, 11))
    for active in product((False, True), repeat=length)
]
"""Every pattern of activations of up to ten steps, born at steps 1 and 4."""
Words = Callable[[Sequence[bool], int], tuple[int, int]]


@PAPER.printed("LE-3", "Eq. 1 and the text before it", Verdict.EXHAUSTIVE, "first activation")
@false("MRI is the latest interval", words=lambda active, born: gaps_between(active, born, -1))
@false("an interval starts at birth", start="birth")
def recursion_tracks_the_longest_gap(
    *, words: Words = gaps_between, start: Start = "first activation"
) -> Finding:
    """MRI ← max(MRI, TS_t − TS_{t−1}) gives the longest wait between one activation and the next,
    and TS is the step of the latest one.

    Every pattern of activations of up to ten steps; the recursion starts at the first activation.
    """
    for born, active in PATTERNS:
        found = track(active, born, start)
        if found != words(active, born):
            return refuted(f"born at {born}, active {active}: {found}")
    return exhaustive(f"{len(PATTERNS)} patterns of up to ten steps")


@PAPER.reading("LE-3b", "§4, H2-score", Verdict.EXHAUSTIVE, "first activation", "MRI = 0")
@false("TS starts at birth", start="birth")
@false("MRI stays 0 until the second activation", start="first activation")
def no_recurrence_means_never_activated(*, start: Start = "step before birth") -> Finding:
    """MRI = 0 exactly for entries that were never activated, as §4 says, if TS starts one step
    before birth, as in the authors' code.

    The first interval is then one longer than the entry's age: born at 3 and first activated at 5,
    MRI is 3. Every pattern of activations of up to ten steps.
    """
    for born, active in PATTERNS:
        interval = track(active, born, start)[1]
        if (interval == 0) == any(active):
            return refuted(f"born at {born}, active {active}: MRI = {interval}")
    example = track([False, False, True], 3, start)[1]
    return exhaustive(f"{len(PATTERNS)} patterns; born at 3, first active at 5: MRI = {example}")


@PAPER.ours("LE-3c", "Eq. 1, what TS starts at", Verdict.VERIFIED, "first activation")
@false("RaaS's start keeps the same entries", birth=1.0)
@false("the first activation may count for nothing", first_activation=0.9)
def start_of_the_stamp_matters_little(
    *, model: Path, birth: float = 0.9, first_activation: float = 0.8
) -> Finding:
    """The start of TS matters little: if TS starts at birth, as in RaaS, nine tenths of the kept
    entries stay the same; if the first activation counts for nothing, eight tenths do.

    Embedded model, one problem: the better half of the entries at its end, the last 16 left out;
    mean over the KV heads.
    """
    shares = []
    for rows in received(model):
        ours, *others = (_better_half(_scores(rows, start)) for start in get_args(Start))
        shares.append([len(ours & other) / len(ours) for other in others])
    means = np.mean(shares, axis=0)
    evidence = "birth: {:.3f} in common, first activation: {:.3f} in common".format(*means)
    return measured((means >= (birth, first_activation)).all(), evidence)


def _scores(rows: Array, start: Start) -> list[float]:
    last = len(rows) - prompt_tokens(0)
    entries = tracked(rows, prompt_tokens(0), 0.01, start)[:-16]
    return [importance(mri, last - stamp) if mri else 0.0 for stamp, mri in entries]


# --- α -------------------------------------------------------------------------------------------

THRESHOLDS = (1e-5, 1e-4, 5e-4, 1e-3, 1e-2, 1e-1)
"""The four of Table 10 and two that are larger."""


@PAPER.printed("LE-5", "Appendix F.2", Verdict.VERIFIED)
@false("a smaller α lengthens MRI", grows=-1)
@false("all α flag alike", flags=0)
def smaller_threshold_shortens_intervals(
    *, model: Path, grows: int = 1, flags: int = -1
) -> Finding:
    """With a small α more entries count as important, and their MRI is shorter.

    Embedded model, one problem, every KV head: activations and mean MRI of the entries that were
    activated, for six α. Single entries may go against the trend, because a smaller α can add an
    activation long after the last one.
    """
    prompt, means, counts = prompt_tokens(0), [], []
    for threshold in THRESHOLDS:
        found = np.concatenate([_intervals(rows, prompt, threshold) for rows in received(model)])
        means.append(float(found[found > 0].mean()))
        counts.append(sum(int((rows[prompt:] >= threshold).sum()) for rows in received(model)))
    evidence = ", ".join(
        f"α = {a:g}: {count} activations, mean MRI {mean:.1f}"
        for a, count, mean in zip(THRESHOLDS, counts, means, strict=True)
    )
    holds = _monotone(means, grows) and _monotone(counts, flags)
    return measured(holds, evidence, intervals=means)


def _monotone(x: Sequence[float], sign: int) -> bool:
    return all(sign * (later - earlier) > 0 for earlier, later in pairwise(x))


@PAPER.ours("LE-5b", "§4 and Appendix F.2, extreme α", Verdict.VERIFIED)
@false("α = 0 gives MRI = 2", always=(2, 0))
@false("α = 0 leaves Δ = 1", always=(1, 1))
@false("α > 1 gives MRI = 1", never=1)
@false("α = 0.5 does as 0", low=0.5)
def limits_of_the_threshold(
    *, model: Path, always: tuple[int, int] = (1, 0), never: int = 0, low: float = 0.0
) -> Finding:
    """With α = 0 every entry is active at every step: MRI = 1 and Δ = 0 for all, so all scores are
    equal. With α > 1 no entry ever is: MRI = 0 for all.

    Tracked over the attention of the embedded model, every entry of every KV head of one problem.
    """
    prompt, last = prompt_tokens(0), _generated(model, 0)
    for rows in received(model):
        found = {(mri, last - stamp) for stamp, mri in tracked(rows, prompt, low)}
        if found != {always} or (_intervals(rows, prompt, 1.001) != never).any():
            return refuted(f"α = {low}: MRI and Δ are {sorted(found)[:3]}, …")
    return verified(f"every entry of every KV head over {last} steps, α = 0 and 1.001")


@PAPER.ours("LE-9", "the authors' bookkeeping", Verdict.EXHAUSTIVE, "bookkeeping")
@false("whole numbers of 32 bits lose steps, too", stored=np.int32)
@false("float16 holds whole numbers up to 4096", first_lost=4097)
def half_precision_loses_step_numbers(
    *, stored: Any = np.float16, first_lost: int = 2049
) -> Finding:
    """Step numbers that are stored in the attention's number format, float16, as the authors' code
    stores them, are rounded from step 2049 on; whole numbers of 32 bits hold them.
    """
    steps = range(1, 32769)
    lost = next((t for t in steps if int(stored(t)) != t), None)
    if lost != first_lost or any(int(np.int32(t)) != t for t in steps):
        return refuted(f"the first step that is lost is {lost}")
    zero = next(m for m in range(1, 100) if np.float16(2) / (np.float16(1) + _half_exp(m - 1)) == 0)
    return exhaustive(
        f"every step up to {steps[-1]}: {lost} is stored as {int(stored(lost))}; the code's H2 in "
        f"float16 is exactly 0 from MRI = {zero} on"
    )


def _half_exp(x: int) -> np.float16:
    with np.errstate(over="ignore"):
        return np.exp(np.float16(x), dtype=np.float16)


# --- §3: recurrence ------------------------------------------------------------------------------


@PAPER.printed("LE-13", "§3, Finding 2 and Fig. 3: GSM8K and MATH-500", Verdict.NOT_HERE)
@right("more than nine tenths recur", printed_share=0.9)
@right("α is 1e-4", threshold=0.0001)
def importance_recurs(
    *, model: Path, printed_share: float = 0.95, threshold: float = 5e-4
) -> Finding:
    """More than 95 % of the tokens of several reasoning models become important again: their MRI is
    above 1.

    Embedded model, every KV head of five problems, at the α that the paper takes for its Llama
    model; the solution's tokens are the generated ones.
    """
    shares = {a: _recurring(model, a) for a in (threshold, 1e-4, 1e-2)}
    share = shares.pop(threshold)
    evidence = "; ".join(f"α = {a:g}: {other:.1%}" for a, other in shares.items())
    if share > printed_share:
        return verified(f"α = {threshold:g}: {share:.1%} recur; {evidence}", share=share)
    return not_here(f"α = {threshold:g}: {share:.1%} recur", evidence, share=share)


def _recurring(model: Path, threshold: float) -> float:
    return float((_all_intervals(model, threshold, range(5)) > 1).mean())


@PAPER.printed("LE-14", "§3, Finding 3: Qwen on MATH-500", Verdict.NOT_HERE)
@right("a fifth of the output is far smaller", far_smaller=0.2)
def most_intervals_are_far_shorter_than_the_output(
    *, model: Path, far_smaller: float = 175 / 8000
) -> Finding:
    """The MRI of most tokens is far smaller than the output: 80 % lie below 175, where an output
    can have 8,000 tokens.

    175 is 2.2 % of 8,000. Embedded model, every KV head of five problems, at the α that the paper
    takes for its Qwen models; entries that were activated.
    """
    window = _window(_all_intervals(model, 1e-4, range(5)))
    written = np.mean([_generated(model, problem) for problem in range(5)])
    evidence = f"80 % lie below {window:.0f} of {written:.0f} tokens, {window / written:.1%}"
    if window <= far_smaller * written:
        return verified(evidence)
    return not_here(evidence, "α = 0.0001; 175 of 8,000 are 2.2%; these texts are short")


@PAPER.printed("LE-15", "§4, choice of W, and Limitations", Verdict.VERIFIED)
@false("1 % gives W to the token", tolerance=0.0)
@false("the longest MRI of a sample gives W", rule=lambda intervals: float(intervals.max()))
def one_percent_of_the_samples_gives_the_window(
    *, model: Path, tolerance: float = 0.28, rule: Callable[[Array], float] | None = None
) -> Finding:
    """W, the MRI below which 80 % of the tokens lie, can be found on 1 % of a data set's samples.

    Embedded model: five problems, as 1 % of MATH-500 are, against five other ones; all choices out
    of ten. At least nine tenths of the choices have to be off by at most 28 %, because by Table 9 a
    W that is 28 % larger costs 0.4 points.
    """
    each, take = [_all_intervals(model, 5e-4, [problem]) for problem in range(10)], rule or _window
    found = []
    for chosen in combinations(range(10), 5):
        sample, others = (
            [x for i, x in enumerate(each) if (i in chosen) is own] for own in (True, False)
        )
        found.append(take(np.concatenate(sample)) / _window(np.concatenate(others)))
    near = np.mean([abs(ratio - 1) <= tolerance for ratio in found])
    return measured(
        near >= 0.9,
        f"{len(found)} choices of five of ten problems give {min(found):.2f} to {max(found):.2f} "
        f"times the W of the other five; {near:.1%} are off by at most {tolerance:.0%}",
    )


Attention = Callable[[Array, np.random.Generator], Array]
"""Returns the attention that a check uses, from a head's observed attention."""


def as_observed(rows: Array, rng: np.random.Generator) -> Array:
    """The model's own attention."""
    return rows


def shuffled(rows: Array, rng: np.random.Generator) -> Array:
    """Noise: each row's attention, spread over the visible entries in random order."""
    return np.array(
        [np.append(rng.permutation(row[: t + 1]), row[t + 1 :]) for t, row in enumerate(rows)]
    )


def unchanging(rows: Array, rng: np.random.Generator) -> Array:
    """Every row has the attention of the last row."""
    return np.tril(np.tile(rows[-1], (len(rows), 1)))


@PAPER.printed("LE-16", "§3, Finding 1, and Fig. 2b", Verdict.VERIFIED)
@false("later important tokens were important before", often=0.9)
@false("attention is noise", attention=shuffled)
@false("the important tokens stay the same", attention=unchanging)
def later_important_tokens_were_unimportant(
    *, model: Path, often: float = 0.25, attention: Attention = as_observed
) -> Finding:
    """Tokens that are important at later steps are often missing in the most important half of an
    earlier one, so that methods which keep this half lose them.

    Embedded model, three problems, every KV head: entries with attention of α = 0.01 or more, and
    the better half 16 steps before, by the attention of that step, as TOVA has it, and by the sum
    up to then, as H2O has it. In noise, half of them are missing in either. So the sum also has to
    miss at least a tenth less than that; else importance would be no property of a token.
    """
    rng = np.random.default_rng(0)
    heads = (
        (attention(observed, rng), prompt_tokens(problem))
        for problem in range(3)
        for observed in received(model, problem)
    )
    latest, summed = missing_before(heads, gap=16)
    evidence = f"missing 16 steps before by one step's attention: {latest:.0%}, by the sum: "
    evidence += f"{summed:.0%}; by chance 50 %"
    return measured(min(latest, summed) >= often and summed <= 0.9 * 0.5, evidence)


def missing_before(
    heads: Iterable[tuple[Float[Array, "t t"], int]], gap: int
) -> tuple[float, float]:
    """Return which share of the activated entries was in the worse half ``gap`` steps before: by
    the attention of that step, and by the sum up to then.

    Args:
        heads: attention of each KV head, and the tokens of its prompt; every eighth step after
            these is looked at.
        gap: steps.
    """
    activated, missing = 0, np.zeros(2)
    for rows, prompt in heads:
        sums = np.cumsum(rows, axis=0)
        for t in range(prompt, len(rows) - gap, 8):
            late = set(np.flatnonzero(rows[t + gap, : t + 1] >= 0.01).tolist())
            early = (_better_half(each[t, : t + 1].tolist()) for each in (rows, sums))
            missing += [len(late - half) for half in early]
            activated += len(late)
    latest, summed = missing / activated
    return float(latest), float(summed)


def _generated(model: Path, problem: int) -> int:
    return len(received(model, problem)[0]) - prompt_tokens(problem)


def tracked(
    rows: Float[Array, "t t"], prompt: int, threshold: float, start: Start = "step before birth"
) -> list[tuple[int, int]]:
    """TS and MRI of every entry; those of the prompt are tracked from step 1 on, TS from 0."""
    active, found = rows >= threshold, []
    for j in range(len(rows)):
        born = max(1, j - prompt + 1)
        own: Start = "step before birth" if j < prompt and start == "birth" else start
        found.append(track(active[prompt + born - 1 :, j].tolist(), born, own))
    return found


def _intervals(rows: Float[Array, "t t"], prompt: int, threshold: float) -> Int[Array, " t"]:
    return np.array([interval for _, interval in tracked(rows, prompt, threshold)])


@cache
def _of_problem(model: Path, threshold: float, problem: int) -> Int[Array, " entries"]:
    prompt = prompt_tokens(problem)
    return np.concatenate([_intervals(r, prompt, threshold) for r in received(model, problem)])


def _all_intervals(model: Path, threshold: float, problems: Iterable[int]) -> Array:
    """MRI of every entry of every KV head of several problems."""
    return np.concatenate([_of_problem(model, threshold, problem) for problem in problems])


def _window(intervals: Array) -> float:
    """The MRI below which 80 % of the entries lie that were activated."""
    return float(np.quantile(intervals[intervals > 0], 0.8))


# --- Algorithm 1: eviction -----------------------------------------------------------------------


def sizes(
    prompt: int, budget: int, window: int, evicts: Callable[[int, int], bool], steps: int
) -> list[int]:
    """Entries after every generated token, before an eviction at its end; then the final size."""
    n, found = prompt, []
    for step in range(1, steps + 1):
        n += 1
        found.append(n)
        if step % window == 0 and evicts(n, budget):
            n = budget
    return [*found, n]


@PAPER.reading("LE-4", "§4, evicting when |S| > B", Verdict.EXHAUSTIVE, "when to evict")
@false("at most max(prompt, B) + W − 1", bound=lambda n, B, W: max(n, B) + W - 1)
@false("at most B + W, whatever the prompt", bound=lambda n, B, W: B + W)
def cache_stays_within_budget_and_window(
    *, bound: Callable[[int, int, int], int] = lambda prompt, B, W: max(prompt, B) + W
) -> Finding:
    """If eviction happens every W steps when the size exceeds B, as §4 says, the cache holds at
    most max(prompt, B) + W entries, and B after each eviction.

    Every prompt, budget and window up to ten, 5 W steps.
    """
    cases = [(n, B, W) for n, B in product(range(1, 11), repeat=2) for W in range(1, B + 1)]
    reached = 0
    for prompt, B, W in cases:
        found = sizes(prompt, B, W, lambda n, B: n > B, 5 * W)
        if max(found) > bound(prompt, B, W) or found[-1] > B:
            return refuted(f"prompt {prompt}, B = {B}, W = {W}: {max(found)} entries")
        reached += max(found) == bound(prompt, B, W)
    return exhaustive(f"{len(cases)} sizes up to ten; the bound is reached for {reached} of them")


@PAPER.printed("LE-4b", "Algorithm 1, line 8, and §4", Verdict.REFUTED, "when to evict")
@right("line 8 demands |K| > B", line_8=lambda n, B: n > B)
@false("evict above ten times the budget", reading=lambda n, B: n > 10 * B)
def printed_condition_holds_the_budget(
    *,
    line_8: Callable[[int, int], bool] = lambda n, B: n <= B,
    reading: Callable[[int, int], bool] = lambda n, B: n > B,
) -> Finding:
    """Line 8 evicts at t = kW while B ≥ |K|, and the cache keeps to its budget.

    Ten windows, every budget up to 8 and every window up to it, a prompt of B + 1.
    """
    cases = [(B + 1, B, W) for B in range(1, 9) for W in range(1, B + 1)]

    def unbounded(rule: Callable[[int, int], bool]) -> tuple[int, int, int] | None:
        return next((c for c in cases if sizes(*c, rule, 10 * c[2])[-1] > c[1] + c[2]), None)

    found = unbounded(line_8)
    if found is None:
        return verified(f"{len(cases)} sizes")
    prompt, B, W = found
    return refuted(
        f"B = {B}, W = {W}, prompt {prompt}: {sizes(*found, line_8, 10 * W)[-1]} entries after "
        f"{10 * W} steps",
        f"{len(cases)} sizes, ten windows",
        "the cache keeps to B if |K| > B is demanded, as text and code do",
        not unbounded(reading),
    )


RUNNING = {
    "H2O": "h2o@recent=16",
    "TOVA": "tova",
    "RaaS": "raas@pin_prompt=false",
    "LazyEviction": "lazy_eviction@window=16,threshold=0.02",
}
"""The methods of Fig. 6 and Table 6 with a window of 16."""


@cache
def counted() -> dict[str, Counts]:
    """What each of these methods does in one window, once its cache of 48 entries is full."""
    return {name: count_window(spec, 48, 16) for name, spec in RUNNING.items()}


@PAPER.printed("LE-4c", "§5.2 and Fig. 6", Verdict.VERIFIED)
@false("LazyEviction's cache is constant, too", swing={"LazyEviction": 0})
@false("H2O's cache swings by the window", swing={"H2O": 15})
def cache_is_level_beyond_the_budget(*, swing: Mapping[str, int] | None = None) -> Finding:
    """Once the budget is reached, the caches of TOVA, H2O and RaaS stay constant; LazyEviction's
    fluctuates a little: by its window.

    Counted in runs of the reference after each token, B = 48 and W = 16, over one window.
    """
    held = {name: counts.held for name, counts in counted().items()}
    claimed = dict.fromkeys(held, 0) | {"LazyEviction": 15} | dict(swing or {})
    evidence = ", ".join(f"{name} {min(n)} to {max(n)} entries" for name, n in held.items())
    holds = all((min(n), max(n)) == (48, 48 + claimed[name]) for name, n in held.items())
    return measured(holds, evidence)


@PAPER.ours("LE-7", "Eq. 4, which Appendix A approximates by a heuristic", Verdict.EXHAUSTIVE)
@false("the heuristic finds the optimum", method=lambda history, errors: errors.index(min(errors)))
@false("the largest error may go", optimal=lambda history, errors: errors.index(max(errors)))
def heuristic_misses_the_optimum(
    *,
    method: Callable[[Any, list[Fraction]], int] = lambda history, errors: min(
        range(3), key=lambda j: importance(*history[j])
    ),
    optimal: Callable[[Any, list[Fraction]], int] = lambda history, errors: min(
        range(3), key=lambda j: errors[j]
    ),
) -> Finding:
    """The entries that the score keeps need not minimise the change of the attention output, Eq. 4;
    for a single eviction that change itself, CAOTE's score, does.

    Three entries, two of which stay: all whole-number attention weights and values up to 2, and
    histories (MRI, Δ) up to 2; the optimum is found by trying all subsets.
    """
    found = _not_optimal(method)
    if found is None or _not_optimal(optimal):
        return refuted("the heuristic finds every optimum, or the error itself does not")
    weights, values, history, victim, errors = found
    best = min(range(3), key=lambda j: errors[j])
    return exhaustive(
        f"attention {weights}, values {values}, (MRI, Δ) {history}: the method drops entry "
        f"{victim + 1} (error {errors[victim]}), dropping {best + 1} costs {errors[best]}"
    )


def _not_optimal(victim_of: Callable[..., int]) -> tuple[Any, ...] | None:
    histories = list(product(product((1, 2), (0, 1, 2)), repeat=3))
    for weights, values in product(product((1, 2), repeat=3), product(range(3), repeat=3)):
        errors = [exact_error(weights, values, [j]) for j in range(3)]
        for history in histories:
            victim = victim_of(history, errors)
            if errors[victim] > min(errors):
                return weights, values, history, victim, errors
    return None


# --- Appendix E: cost ----------------------------------------------------------------------------


@PAPER.printed("LE-6", "Appendix E.1 and Table 6", Verdict.VERIFIED)
@false("LazyEviction ranks at every step", rankings={"LazyEviction": 16})
@false("every entry is updated twice a step", updates=2)
def one_ranking_per_window(
    *, rankings: Mapping[str, int] | None = None, updates: int = 1
) -> Finding:
    """Over W steps LazyEviction ranks its entries once, H2O, TOVA and RaaS W times; all but TOVA,
    which keeps no state, update W·B scores.

    Counted in runs of the reference over one window, B = 48 and W = 16.
    """
    runs = counted()
    claimed = dict.fromkeys(runs, 16) | {"LazyEviction": 1} | dict(rankings or {})
    evidence = ", ".join(f"{n} {c.rankings} rankings, {c.updated} updates" for n, c in runs.items())
    holds = all(
        counts.rankings == claimed[name]
        and counts.updated // (16 * 48) == (0 if name == "TOVA" else updates)
        for name, counts in runs.items()
    )
    return measured(holds, evidence)


@PAPER.ours("LE-6b", "Table 6, B log B for every ranking of the baselines", Verdict.VERIFIED)
@false("the entry to evict takes B comparisons", least=lambda B: B)
@false("a sort takes less than B comparisons", sort=lambda B: float(B))
def eviction_of_one_entry_needs_no_sort(
    *,
    least: Callable[[int], int] = lambda B: B - 1,
    sort: Callable[[int], float] = lambda B: B * log2(B),
) -> Finding:
    """A method that evicts one entry per step needs no ranking of B log B: B − 1 comparisons find
    the entry. So the baselines cost O(WB) over a window, as LazyEviction's updates alone do.

    Comparisons counted while the smallest of B random scores is found and while all are sorted.
    """
    scores = {B: np.random.default_rng(B).random(B) for B in (64, 256, 1024)}
    counted = {B: (operations(min, x), operations(sorted, x)) for B, x in scores.items()}
    evidence = "comparisons: " + ", ".join(
        f"B = {B}: {smallest} for the smallest, {everything} to sort"
        for B, (smallest, everything) in counted.items()
    )
    holds = all(a == least(B) and sort(B) / 2 < b <= sort(B) for B, (a, b) in counted.items())
    return measured(holds, evidence)


# --- the tables ----------------------------------------------------------------------------------


def cells() -> dict[str, dict[str, float]]:
    """Tables 1 and 2: benchmark and model → method → accuracy in percent."""
    return {
        f"{task}, {model}": {method: row[i] for method, row in table.items()}
        for task, table in TABLES["accuracy"].items()
        for i, model in enumerate(MODELS[: len(table["Ours"])])
    }


@PAPER.printed("LE-12a", "§5.1 on Tables 1 and 2", Verdict.REFUTED)
@right("the baselines are H2O and TOVA", baselines=("H2O", "TOVA"))
@false("the reading says nine tenths of the cases", mostly=0.9)
def method_is_best_everywhere(
    *, baselines: Sequence[str] = ("RaaS", "H2O", "TOVA", "R-KV"), mostly: float = 0.8
) -> Finding:
    """LazyEviction is better than every other method on all data sets, consistently."""
    table, worse = cells(), []
    for where, cell in table.items():
        best = max(baselines, key=lambda name: cell[name])
        if not cell["Ours"] > cell[best]:
            worse.append(f"{where}: {cell['Ours']} against {cell[best]} of {best}")
    better = len(table) - len(worse)
    tasks = [[c for w, c in table.items() if w.startswith(task)] for task in TABLES["accuracy"]]
    gaps = [min(sum(c["Ours"] - c[name] for c in each) for name in baselines) for each in tasks]
    reading = f"it is in {better} of {len(table)} cases, and on {sum(g > 0 for g in gaps)} of "
    reading += f"{len(tasks)} data sets in the mean over their models"
    reading = reading if better > mostly * len(table) else ""
    return tabulated(worse, len(table), "cases have LazyEviction ahead", reading)


@PAPER.ours("LE-12b", "§5.1, better than the full cache on MATH-500 and AIME", Verdict.VERIFIED)
@false("Table 1 has two such models on MATH-500", above={"MATH-500 50 %": 2, "AIME 30 %": 0})
@false("Table 1 has one on AIME", above={"MATH-500 50 %": 1, "AIME 30 %": 1})
def table_1_beats_the_full_cache_once(*, above: Mapping[str, int] | None = None) -> Finding:
    """Table 1 supports the sentence, for half of the cache, for one of four models on MATH-500. It
    prints AIME at 30 % only, where LazyEviction is above the full cache on no model; Fig. 5, which
    prints no figures, may support it.
    """
    claimed = above or {"MATH-500 50 %": 1, "AIME 30 %": 0}
    tables = {task: TABLES["accuracy"][task] for task in claimed}
    found = {
        task: sum(a > b for a, b in zip(table["Ours"], table["FullKV"], strict=True))
        for task, table in tables.items()
    }
    text = ", ".join(f"{task}: above it on {n} of 4 models" for task, n in found.items())
    return measured(found == claimed, text)


@PAPER.ours("LE-12c", "Table 8, 4K tokens, LazyEviction", Verdict.VERIFIED)
@false("all rows but one agree to a tenth", tolerance=0.1)
@false("the latency is right", single_steps=(18.9, 19.1))
def one_row_contradicts_itself(
    *, tolerance: float = 0.01, single_steps: tuple[float, float] | None = None
) -> Finding:
    """Eight of the nine rows have a throughput of 1000 divided by their latency. The ninth prints
    55.94 tokens/s, which are 17.88 ms, and 18.99 ms; Table 7, with 17.81 to 17.89 ms for the single
    steps up to 4K, speaks for 17.88.
    """
    off = {
        f"{length} tokens, {name}": 1000 / speed
        for length, row in TABLES["throughput"].items()
        for name, (speed, latency) in row.items()
        if abs(speed * latency / 1000 - 1) > tolerance
    }
    low, high = single_steps or TABLES["latency"]["LazyEviction"][:2]
    text = ", ".join(f"{where}: {ms:.2f} ms by its throughput" for where, ms in off.items())
    if len(off) != 1 or not low - 0.01 <= next(iter(off.values())) <= high + 0.01:
        return refuted(f"rows that disagree: {text or 'none'}")
    return verified(f"{text}; Table 7 has {low} to {high} ms")


@PAPER.printed("LE-12d", "Tables 3, 4 and 5, figures in brackets", Verdict.REFUTED)
@right("the table holds the difference", table={"one": [85.4, 84.2, -1.2]})
def printed_differences_are_differences(
    *, table: Mapping[str, Sequence[float]] | None = None
) -> Finding:
    """The differences in brackets are those of the figures beside them; a dash stands for 0."""
    rows = table or TABLES["differences"]
    off = [
        f"{name}: {before} to {after} is {after - before:+.2f}, {difference:+} is printed"
        for name, (before, after, difference) in rows.items()
        if abs(after - before - difference) > 0.005
    ]
    return tabulated(off, len(rows), "differences are right")


@PAPER.printed("LE-17", "Appendix E.2 on Table 7", Verdict.REFUTED)
@right("the latencies are on a line", latency=[1.0, 2.0, 4.0, 6.0, 8.0])
@false("the reading is that it grows ever more slowly", bends=-1)
def full_cache_latency_is_linear(
    *, latency: Sequence[float] | None = None, bends: int = 1
) -> Finding:
    """With the full cache the time of a decoding step grows linearly with the length.

    Slopes between the five printed lengths; half more or less than their mean is allowed.
    """
    steps, times = TABLES["latency"]["step"], latency or TABLES["latency"]["FullKV"]
    slopes = np.diff(times) / np.diff(steps) * 1000
    text = ", ".join(f"{slope:.2f}" for slope in slopes)
    evidence = f"slopes in ms per thousand tokens: {text}"
    if (abs(slopes / slopes.mean() - 1) <= 0.5).all():
        return verified(evidence)
    return refuted(
        f"{slopes[0]:.2f} ms per thousand tokens from {steps[0]} to {steps[1]}, "
        f"{slopes[-1]:.2f} ms from {steps[-2]} to {steps[-1]}",
        evidence,
        "it grows ever faster",
        bool((np.diff(slopes) * bends > 0).all()),
    )


def margins_of_sentences() -> dict[str, list[float]]:
    """By how much the figures support each sentence on Tables 3 to 5 and 7 to 10."""
    rows, runs, latency = TABLES["differences"], TABLES["throughput"], TABLES["latency"]
    ours = TABLES["accuracy"]["GSM8K 50 %"]["Ours"][0]
    waiting = [row for name, row in rows.items() if name.startswith("Table 3")]
    forms = {name.split()[-1]: [] for name in rows if name.startswith("Table 5")}
    for name, (sigmoid, other, _) in rows.items():
        if name.startswith("Table 5"):
            forms[name.split()[-1]].append(sigmoid - other)
    h1, h2 = ([r[2] for name, r in rows.items() if f"without {h}" in name] for h in ("H1", "H2"))
    windows = [[accuracy for _, accuracy in row] for row in TABLES["window"].values()]
    alphas = [[accuracy for _, accuracy in row] for row in TABLES["threshold"].values()]
    last = runs["16384"]
    return {
        "§5.3: waiting improves H2O, TOVA and RaaS": [b - a for a, b, _ in waiting],
        "§5.3: they stay below LazyEviction": [ours - b for _, b, _ in waiting],
        "§5.3: H1 matters more than H2": [min(h2) - max(h1)],
        "§5.3: H2 matters": [-x for x in h2],
        "App. D: the sigmoid is better, on average over scores and data sets": [
            float(np.mean(gaps)) for gaps in forms.values()
        ],
        "App. F.1: accuracy rises up to W = 25 and 52": [*np.diff([w[:4] for w in windows]).flat],
        "App. F.1: it falls beyond": [w[3] - w[4] for w in windows],
        "App. F.2: the middle α is best": [a[1] - max(a[0], a[2]) for a in alphas],
        "App. E.2: TOVA is slower": [r["LazyEviction"][0] - r["TOVA"][0] for r in runs.values()],
        "§4: the full cache is slower at 16K": [
            last["LazyEviction"][0] - last["FullKV"][0],
            latency["FullKV"][-1] - latency["LazyEviction"][-1],
        ],
    }


@PAPER.printed("LE-18", "§4, §5.3, Appendices D, E.2 and F", Verdict.VERIFIED)
@false("every sentence is turned round", turned=-1)
def tables_say_what_the_text_says(*, turned: int = 1) -> Finding:
    """Tables 3 to 5 and 7 to 10 show what the text says of them: waiting helps every baseline and
    leaves it behind, H1 matters more than H2, the sigmoid is better than each other form on
    average, the named W and α are best, TOVA is slower, and so is the full cache at 16K.
    """
    return sentences(margins_of_sentences(), turned)


@PAPER.ours("LE-19", "Fig. 2a, a loss of about 20 % on GSM8K", Verdict.VERIFIED)
@false("H2O loses less than 5 %", at_most=5.0)
def table_1_shows_other_losses(*, at_most: float = 7.0) -> Finding:
    """The caption gives H2O and TOVA a loss of about 20 % each at half of the cache, for a model
    that it does not name. Table 1 has at most 7 % for H2O there and from 9 to 25 % for TOVA.
    """
    table = TABLES["accuracy"]["GSM8K 50 %"]
    losses = {
        name: [100 * (1 - x / full) for x, full in zip(table[name], table["FullKV"], strict=True)]
        for name in ("H2O", "TOVA")
    }
    text = ", ".join(f"{name} {min(x):.1f} to {max(x):.1f} %" for name, x in losses.items())
    return measured(max(losses["H2O"]) < at_most, f"losses over four models: {text}")


GRIDS = {"AIME 30 %": (30, 0.05), "LiveCodeBench 40 %": (58, 0.005), "MATH-500 50 %": (500, 0.05)}
"""Problems, and half of the last printed digit."""


@PAPER.printed("LE-20", "Appendix C, sizes of the data sets", Verdict.VERIFIED)
@false("LiveCodeBench has 56 samples", grids={"LiveCodeBench 40 %": (56, 0.005)})
@false("58 samples are 6 % of 1116", share=6)
def accuracies_are_shares_of_the_samples(
    *, grids: Mapping[str, tuple[int, float]] = GRIDS, share: int = 5
) -> Finding:
    """LiveCodeBench is tested on 58 samples, about 5 % of 1116, and MATH-500 has 500 problems: all
    printed accuracies are whole numbers of these.

    So are AIME's of 30 problems, a number that the paper does not print.
    """
    off = [f"{task}: {x}" for task, grid in grids.items() for x in _off_grid(task, *grid)]
    drawn = f"58 of 1116 are {100 * 58 / 1116:.1f} %"
    if round(100 * 58 / 1116) != share:
        off.append(drawn)
    figures = sum(len(row) for task in grids for row in TABLES["accuracy"][task].values())
    return tabulated(off, figures, f"accuracies are a whole number of problems; {drawn}")


def _off_grid(task: str, problems: int, slack: float) -> list[float]:
    values = [x for row in TABLES["accuracy"][task].values() for x in row]
    return [x for x in values if abs(100 * round(x * problems / 100) / problems - x) > slack + 1e-9]


@PAPER.ours("LE-20b", "Tables 1 and 2, GSM8K and GPQA Diamond", Verdict.VERIFIED)
@false("GPQA fits 198 problems", counts=(198,), fits=True)
def other_accuracies_fit_no_number_of_problems(
    *, counts: Iterable[int] = range(20, 400), fits: bool = False
) -> Finding:
    """GSM8K's accuracies are not all a whole number of its 1,319 problems, GPQA's of no number up
    to 399. The paper does not say that it takes means of several runs or a part of the problems.
    """
    gsm8k = _off_grid("GSM8K 50 %", 1319, 0.005)
    whole = [n for n in counts if not _off_grid("GPQA 50 %", n, 0.05)]
    gpqa = _off_grid("GPQA 50 %", 198, 0.05)
    text = f"{len(gsm8k)} of 24 figures for GSM8K, {len(gpqa)} of 12 for 198 questions of GPQA"
    return measured(bool(gsm8k) and bool(whole) == fits, f"no whole number: {text}")


# --- a relative ----------------------------------------------------------------------------------

OFFSETS = 2.0 ** np.arange(17)
"""Distances to future queries at which TriAttention's authors average: 1, 2, 4, … 65,536."""


@PAPER.ours(
    "LE-21",
    "Eq. 2, and TriAttention (arXiv 2604.04921, as its authors' code has it)",
    Verdict.VERIFIED,
)
@false("phases are added", phase=lambda query, key: np.angle(query * key))
@false("the second term is the mean length alone", spread=lambda length, center: length)
def triattention_is_a_mean_of_future_logits(
    *,
    phase: Callable[[Any, Any], Any] = lambda query, key: np.angle(query * np.conj(key)),
    spread: Callable[[Any, Any], Any] = lambda length, center: length - center,
) -> Finding:
    """TriAttention's score has two terms. The first is the logit (times √d) of the key, averaged
    over sample queries and over the distances Δ + 1, Δ + 2, Δ + 4, …; the second,
    Σ (E|q| − |E q|)|k|, is never negative, and zero for queries that are all alike.

    Two channels that turn together are one complex number, before RoPE. So the score asks for no
    attention: what LazyEviction counts while the model writes is computed from samples beforehand.
    """
    rng, worst = np.random.default_rng(21), 0.0
    for _ in range(100):
        pairs, count, gap = (int(rng.integers(1, most)) for most in (5, 9, 400))
        omega = 10_000.0 ** -(np.arange(pairs) / pairs)
        key, *queries = rng.normal(size=(count + 1, pairs)) + 1j * rng.normal(
            size=(count + 1, pairs)
        )
        center = np.mean(queries, axis=0)
        turned = omega * (gap + OFFSETS[:, None]) + phase(center, key)
        first = (np.abs(center) * np.abs(key) * np.cos(turned)).sum(axis=1).mean()
        logits = [
            (query * np.exp(1j * omega * (gap + offset)) * np.conj(key)).real.sum()
            for query in queries
            for offset in OFFSETS
        ]
        worst = max(worst, abs(first - np.mean(logits)))
        second = spread(np.abs(queries).mean(axis=0), np.abs(center)) @ np.abs(key)
        alike = spread(np.abs(queries[0]), np.abs(queries[0])) @ np.abs(key)
        worst = max(worst, -second, abs(alike))
    return measured(worst < 1e-12 * len(OFFSETS), f"100 random samples: off by {worst:.1e} at most")
