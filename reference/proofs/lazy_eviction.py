"""LazyEviction's claims (arXiv 2506.15969).

TS is the generated step of an entry's latest activation, MRI its longest interval between two
activations, Δ the steps since the latest one. The authors' code starts TS one step before an entry
is born, so that the first activation ends an interval, too; we do the same unless a claim says
otherwise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise, product
from typing import Literal

import numpy as np
import sympy
from scipy.special import expit as sigmoid
from sympy import Expr

from kvlab.reference.files import printed_tables
from kvlab.reference.notation import Array, Float, Int
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    example,
    exhaustive,
    judged,
    measured,
    over_models,
    proved,
    refuted,
    tabulated,
)
from kvlab.reference.proofs.counting import Counts, count_window
from kvlab.reference.proofs.definitions import MODEL, exact_error
from kvlab.reference.proofs.ledger import on_smollm2
from kvlab.reference.proofs.tables import table_claims
from kvlab.reference.simulator.observed import prompt_tokens, received

PAPER = Paper("lazy_eviction", "LazyEviction", "arXiv 2506.15969")
TABLES = printed_tables("lazy_eviction")


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

    The paper does not say what TS is before the first activation: ``start`` does.
    """
    started = start != "first activation"
    stamp, interval = born if start == "birth" else born - 1, 0
    for step, now in enumerate(active, start=born):
        if now:
            interval = max(interval, step - stamp) if started else 0
            stamp, started = step, True
    return stamp, interval


X = sympy.symbols("x", positive=True)
"""Any number above 0: Δ/MRI in H1, MRI − 1 in H2."""
FORMS: Mapping[str, Callable[[Expr], Expr]] = {
    "sigmoid": lambda x: 2 / (1 + sympy.exp(x)),
    "exp": lambda x: sympy.exp(-x),
    "tanh": lambda x: 1 - sympy.tanh(x),
    "inverse": lambda x: 1 / (1 + x),
    "log": lambda x: 1 / (1 + sympy.log(1 + x)),
}
"""The families of Appendix D as maps of x ≥ 0."""


def objection(form: Expr) -> str:
    """Say what Appendix D would object to in a formula of X; empty if nothing."""
    f = sympy.simplify(form.rewrite(sympy.exp))
    slope = sympy.factor(sympy.simplify(sympy.diff(f, X)))
    if not slope.is_negative:
        value: Callable[..., float] = sympy.lambdify(X, slope, "math")
        rising = [at for at in (1, 2, 5) if value(at) >= 0]
        return f"its slope is {slope}, not negative" + (f" at x = {rising[0]}" if rising else "")
    highest, lowest = sympy.limit(f, X, 0, "+"), sympy.limit(f, X, sympy.oo)
    if not (highest <= 1 and lowest >= 0):
        return f"its values fall from {highest} to {lowest}"
    return ""


@PAPER.printed("LE-1", "Eq. 2 and Appendix D, H2", Verdict.REFUTED, "H2")
def printed_h2_falls() -> Finding:
    """H2 = 2σ(−1/(MRI − 1)) is larger for a smaller MRI, and stays in [0, 1].

    §4 gives the first as its purpose, Appendix D demands both.
    """
    h2, code = 2 / (1 + sympy.exp(1 / X)), 2 / (1 + sympy.exp(X))
    against = objection(h2)
    values = ", ".join(f"{sympy.N(h2.subs(X, mri - 1), 4):.4f}" for mri in (2, 3, 10))
    above, below = (sympy.limit(h2.subs(X, x), X, 0, "+") for x in (X, -X))
    return judged(
        against and f"MRI = 2, 3, 10: H2 = {values}; at MRI = 1 it has no value",
        f"SymPy, x = MRI − 1: {against}; the limits at MRI = 1 are {above} from above and {below} "
        "from below",
        "2σ(−(MRI − 1)), the authors' code, falls from 1 to 0",
        not objection(code),
    )


@PAPER.interpretation("LE-2", "Appendix D and Table 5", Verdict.PROVED)
def all_forms_fall_within_the_unit_interval() -> Finding:
    """The five families of Table 5, read as their simplest members with value 1 at 0, have the two
    properties that Appendix D demands: they fall strictly and stay in [0, 1].

    The paper names the families and prints no formula but the sigmoid's.
    """
    for name, form in FORMS.items():
        if against := objection(form(X)):
            return refuted(f"{name}: {against}")
    return proved(f"SymPy: negative slope and limits in [0, 1] for {', '.join(FORMS)}, all x > 0")


@PAPER.interpretation("LE-2b", "Eq. 2, the case MRI = 0", Verdict.PROVED, "MRI = 0")
def score_without_recurrence() -> Finding:
    """Eq. 2 keeps H1 = 2σ(−Δ/MRI) for MRI = 0, which divides by zero; its limit for MRI → 0 is 0
    if the entry waits (Δ > 0) and 1 if it was activated just now (Δ = 0).
    """
    elapsed, mri = sympy.symbols("Delta MRI", positive=True)
    waiting = sympy.limit(2 / (1 + sympy.exp(elapsed / mri)), mri, 0, "+")
    active = sympy.limit(2 / (1 + sympy.exp(0 / mri)), mri, 0, "+")
    if (waiting, active) != (0, 1):
        return refuted(f"the limits are {waiting} and {active}")
    return proved("SymPy: both limits for MRI → 0 from above; no single value suits both")


@PAPER.ours("LE-1c", "Eq. 2, how much H2's interpretation matters", Verdict.VERIFIED, "H2", "H1")
def reading_of_h2_decides() -> Finding:
    """Where MRIs are small, the interpretation of H2 decides what is kept: at a mean MRI of 3, two
    thirds of the kept entries differ. The code's −1 in H1 changes under a tenth of any sample.

    Half of the entries is kept, Δ geometric with mean MRI; chance keeps 0.5 in common.
    """
    rng, n = np.random.default_rng(0), 1000
    lognormal = np.exp(rng.normal(np.log(60), np.log(175 / 60) / 0.8416, size=n))
    samples = {f"geometric, mean {m}": rng.geometric(1 / m, size=n) for m in (3, 10, 50)}
    samples["log-normal, 80 % below 175"] = np.maximum(1, np.round(lognormal)).astype(int)
    shares = {}
    for name, mri in samples.items():
        elapsed = np.random.default_rng(1).geometric(1 / (1 + mri)) - 1
        code, printed, official = (
            _better_half([rule(float(m), float(d)) for m, d in zip(mri, elapsed, strict=True)])
            for rule in (importance, printed_importance, official_importance)
        )
        shares[name] = [len(code & other) / len(code) for other in (printed, official)]
    evidence = "kept in common by printed and code's H2, and by the code's and the printed H1: "
    evidence += ", ".join(f"{name}: {h2:.2f} and {h1:.2f}" for name, (h2, h1) in shares.items())
    lowest_h2, lowest_h1 = np.min([*shares.values()], axis=0)
    return measured(lowest_h2 < 0.34 and lowest_h1 >= 0.9, evidence)


def _better_half(scores: Sequence[float]) -> set[int]:
    return set(np.argsort(scores, kind="stable")[len(scores) // 2 :].tolist())


@PAPER.printed("LE-8", "§1, MRI-centric eviction policy", Verdict.REFUTED, "Δ < MRI")
def recurring_tokens_are_retained() -> Finding:
    """Entries whose time since the latest activation exceeds their MRI are evicted first, those
    with Δ < MRI are retained: by Eq. 2 no entry with Δ < MRI scores below an entry with Δ > MRI.
    """
    found, code = _overtaken(printed_importance), _overtaken(importance)
    guarded = _overtaken(lambda mri, d: printed_importance(mri, d) + 2 * (d < mri))
    return judged(
        found and f"(MRI, Δ) = {found}",
        f"all pairs, MRI from 2 and Δ, both up to 10; with the code's H2 {code or 'it holds'}",
        "it holds if 2, the most by which H1 + H2 can differ, is added where Δ < MRI (guard=true)",
        not guarded,
    )


def _overtaken(score: Callable[[float, float], float]) -> str:
    """Name the first entry with Δ < MRI that scores below one with Δ > MRI; empty if none does.

    The score is a function of MRI and Δ.
    """
    histories = sorted(product(range(2, 11), range(11)), key=sum)  # (MRI, Δ), smallest sum first
    waiting = [(mri, elapsed) for mri, elapsed in histories if elapsed < mri]
    overdue = [(mri, elapsed) for mri, elapsed in histories if elapsed > mri]
    for a, b in product(waiting, overdue):
        if score(*a) < score(*b):
            return f"{a} scores {score(*a):.3f}, below {b} with {score(*b):.3f}"
    return ""


PATTERNS = [
    (born, active)
    for born, length in product((1, 4), range(1, 11))
    for active in product((False, True), repeat=length)
]
"""Every pattern of activations of up to ten steps, born at steps 1 and 4."""


@PAPER.printed("LE-3", "Eq. 1 and the text before it", Verdict.EXHAUSTIVE, "first activation")
def recursion_tracks_the_longest_gap() -> Finding:
    """MRI ← max(MRI, TS_t − TS_{t−1}) gives the longest wait between one activation and the next,
    and TS is the step of the latest one.
    """
    for born, active in PATTERNS:
        steps = [step for step, now in enumerate(active, start=born) if now]
        gaps = [later - earlier for earlier, later in pairwise(steps)] or [0]
        latest, longest = steps[-1] if steps else born - 1, max(gaps)
        found = track(active, born, start="first activation")
        if found != (latest, longest):
            return refuted(f"born at {born}, active {active}: {found}")
    return exhaustive(f"{len(PATTERNS)} patterns of up to ten steps")


@PAPER.interpretation("LE-3b", "§4, H2-score", Verdict.EXHAUSTIVE, "first activation", "MRI = 0")
def no_recurrence_means_never_activated() -> Finding:
    """MRI = 0 exactly for entries that were never activated, as §4 says, if TS starts one step
    before birth, as in the authors' code.
    """
    start: Start = "step before birth"
    for born, active in PATTERNS:
        _, mri = track(active, born, start)
        if (mri == 0) == any(active):
            return refuted(f"born at {born}, active {active}: MRI = {mri}")
    _, mri = track([False, False, True], 3, start)
    return exhaustive(f"{len(PATTERNS)} patterns; born at 3, first active at 5: MRI = {mri}")


@PAPER.printed("LE-5", "Appendix F.2", Verdict.VERIFIED)
def smaller_threshold_shortens_intervals() -> Finding:
    """With a small α more entries count as important, and their MRI is shorter.

    Single entries may go against the trend, because a smaller α can add an activation long after
    the last one.
    """
    means, counts = [], []
    thresholds = (1e-5, 1e-4, 5e-4, 1e-3)  # those of Table 10
    for threshold in thresholds:
        found = _all_intervals(threshold, [0])
        means.append(float(found[found > 0].mean()))
        generated = (rows[prompt_tokens(0) :] for rows in received(MODEL))
        counts.append(sum(int((rows >= threshold).sum()) for rows in generated))
    evidence = "embedded model, one problem: " + ", ".join(
        f"α = {a:g}: {count} activations, mean MRI {mean:.1f}"
        for a, count, mean in zip(thresholds, counts, means, strict=True)
    )
    longer = all(later > earlier for earlier, later in pairwise(means))
    fewer = all(later < earlier for earlier, later in pairwise(counts))
    return measured(longer and fewer, evidence)


@PAPER.ours("LE-9", "the authors' bookkeeping", Verdict.EXHAUSTIVE, "bookkeeping")
def half_precision_loses_step_numbers() -> Finding:
    """Step numbers that are stored in the attention's number format, float16, as the authors' code
    stores them, are rounded from step 2049 on; whole numbers of 32 bits hold them.
    """
    steps = range(1, 32769)
    lost = next((t for t in steps if int(np.float16(t)) != t), None)
    if lost != 2049 or any(int(np.int32(t)) != t for t in steps):
        return refuted(f"the first step that is lost is {lost}")
    with np.errstate(over="ignore"):
        h2 = [np.float16(2) / (np.float16(1) + np.exp(np.float16(x))) for x in range(99)]
    zero = 1 + next(x for x, value in enumerate(h2) if value == 0)
    return exhaustive(
        f"every step up to {steps[-1]}: {lost} is stored as {int(np.float16(lost))}; the code's H2 "
        f"in float16 is exactly 0 from MRI = {zero} on"
    )


@PAPER.printed("LE-13", "§3, Finding 2 and Fig. 3: GSM8K and MATH-500", Verdict.NOT_FOUND)
def importance_recurs() -> Finding:
    """More than 95 % of the tokens of several reasoning models become important again: their MRI is
    above 1. (Held to at both of the paper's α, 0.0005 for Llama and 0.0001 for Qwen.)

    The texts of the embedded model are five problems.
    """
    alphas = (5e-4, 1e-4)
    here = [float((_all_intervals(alpha, range(5)) > 1).mean()) for alpha in alphas]
    kinds = [(text, alpha) for alpha in alphas for text in ("written", "novel")]
    names = [f"{text}: MRI > 1, α = {alpha:g}" for text, alpha in kinds]
    there = [mean for mean, _, _ in on_smollm2("lazy_eviction", "Fig. 3", *names)]
    recur = "{:.1%} recur at α = 0.0005, {:.1%} at α = 0.0001".format(*here)
    told = "{:.1%}, and {:.1%} in a novel, at α = 0.0005, {:.1%} and {:.1%} at α = 0.0001"
    return over_models((min(here) > 0.95, recur), (min(there) > 0.95, told.format(*there)))


@PAPER.printed("LE-14", "§3, Finding 3: Qwen on MATH-500", Verdict.NOT_FOUND)
def most_intervals_are_far_shorter_than_the_output() -> Finding:
    """The MRI of most tokens is far smaller than the output: 80 % lie below 175, where an output
    can have 8,000 tokens. (Held to that share, 2.2 %, at the paper's α for Qwen, 0.0001; our texts,
    five of either model, are short.)
    """
    window = _window(_all_intervals(1e-4, range(5)))
    written = np.mean([len(received(MODEL, x)[0]) - prompt_tokens(x) for x in range(5)])
    evidence = f"80 % lie below {window:.0f} of {written:.0f} tokens, {window / written:.1%}"
    name = "written: W / written, α = 0.0001"
    ((there, _, _),) = on_smollm2("lazy_eviction", "Fig. 3", name)
    far = 175 / 8000
    return over_models((window / written <= far, evidence), (there <= far, f"{there:.1%} of 512"))


@PAPER.printed("LE-15", "§4, choice of W, and Limitations", Verdict.VERIFIED)
def one_percent_of_the_samples_gives_the_window() -> Finding:
    """W, the MRI below which 80 % of the tokens lie, can be found on 1 % of a data set's samples.
    (Five problems are 1 % of MATH-500. Held to 28 %, in nine tenths of the choices: by Table 9 a W
    that is 28 % larger costs 0.4 points on GSM8K, one that is 36 % smaller 3.3.)
    """
    found, tolerance = [], 0.28
    for chosen in combinations(range(10), 5):
        others = [problem for problem in range(10) if problem not in chosen]
        sample = _all_intervals(5e-4, chosen)
        found.append(_window(sample) / _window(_all_intervals(5e-4, others)))
    near = np.mean([abs(ratio - 1) <= tolerance for ratio in found])
    here = (
        f"{len(found)} choices of five of ten problems give {min(found):.2f} to {max(found):.2f} "
        f"times the W of the other five; {near:.1%} are off by at most {tolerance:.0%}"
    )
    name = "written: MRI, 80 %, α = 0.0005"
    ((mean, low, high),) = on_smollm2("lazy_eviction", "Fig. 3", name)
    off = max(mean - low, high - mean) / mean
    return over_models((near >= 0.9, here), (off <= tolerance, f"five texts give W ± {off:.0%}"))


@PAPER.printed("LE-16", "§3, Finding 1, and Fig. 2b", Verdict.EMBEDDED_ALONE)
def later_important_tokens_were_unimportant() -> Finding:
    """Tokens that are important at later steps are often missing in the most important half of an
    earlier one, so that methods which keep this half lose them. (Here important is an attention of
    at least 0.01, and often a quarter by the attention of one step and by the sum up to then.)

    The former half is TOVA's, the latter H2O's. In noise, half of the tokens are missing; so the
    sum has to miss a tenth less than that, else importance would be no property of a token.
    """
    problems = range(3)
    heads = ((rows, prompt_tokens(each)) for each in problems for rows in received(MODEL, each))
    names = [f"written: missing 16 steps before, by {what}" for what in ("attention", "its sum")]
    there = [mean for mean, _, _ in on_smollm2("lazy_eviction", "Fig. 2", *names)]
    return over_models(*map(_often_missing, (missing_before(heads, gap=16), there)))


def _often_missing(shares: Sequence[float]) -> tuple[bool, str]:
    latest, summed = shares
    said = f"missing 16 steps before by one step's attention: {latest:.0%}, by the sum: "
    return min(shares) >= 0.25 and summed <= 0.9 * 0.5, f"{said}{summed:.0%}; by chance 50 %"


def missing_before(
    heads: Iterable[tuple[Float[Array, "t t"], int]], gap: int
) -> tuple[float, float]:
    """Return which share of the activated entries was in the worse half ``gap`` steps before: by
    the attention of that step, and by the sum up to then.

    Of each KV head, with the tokens of its prompt, every eighth step after these is looked at.
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


@cache
def _of_problem(threshold: float, problem: int) -> Int[Array, " entries"]:
    prompt = prompt_tokens(problem)
    heads = [tracked(rows, prompt, threshold) for rows in received(MODEL, problem)]
    return np.array([interval for entries in heads for _, interval in entries])


def _all_intervals(threshold: float, problems: Iterable[int]) -> Array:
    """MRI of every entry of every KV head of several problems."""
    return np.concatenate([_of_problem(threshold, problem) for problem in problems])


def _window(intervals: Array) -> float:
    """The MRI below which 80 % of the entries lie that were activated."""
    return float(np.quantile(intervals[intervals > 0], 0.8))


def sizes(
    prompt: int, budget: int, window: int, evicts: Callable[[int, int], bool], steps: int
) -> list[int]:
    """Entries after every generated token, before an eviction at its end; then the final size."""
    n, found = prompt, []
    for step in range(1, steps + 1):
        n += 1
        found.append(n)
        if step % window == 0 and evicts(n, budget):
            n = min(n, budget)
    return [*found, n]


@PAPER.interpretation("LE-4", "§4, evicting when |S| > B", Verdict.EXHAUSTIVE, "when to evict")
def cache_stays_within_budget_and_window() -> Finding:
    """If eviction happens every W steps when the size exceeds B, as §4 says, the cache holds at
    most max(prompt, B) + W entries, and B after each eviction.
    """
    cases = [(n, B, W) for n, B in product(range(1, 11), repeat=2) for W in range(1, B + 1)]
    reached = 0
    for prompt, B, W in cases:
        found = sizes(prompt, B, W, lambda n, B: n > B, (B + 2) * W)
        bound = max(prompt, B) + W
        if max(found) > bound or found[-1] > B:
            return refuted(f"prompt {prompt}, B = {B}, W = {W}: {max(found)} entries")
        reached += max(found) == bound
    return exhaustive(f"{len(cases)} sizes up to ten; the bound is reached for {reached} of them")


@PAPER.printed("LE-4b", "Algorithm 1, line 8, and §4", Verdict.REFUTED, "when to evict")
def printed_condition_holds_the_budget() -> Finding:
    """Line 8 evicts at t = kW while B ≥ |K|, and the cache keeps to its budget."""
    cases = [
        (prompt, B, W)
        for B in range(1, 9)
        for W, prompt in product(range(1, B + 1), range(1, B + 2))
    ]
    printed, text = (
        [sizes(*case, evicts, 10 * case[-1])[-1] for case in cases]
        for evicts in (lambda n, B: n <= B, lambda n, B: n > B)
    )
    unbounded = [
        f"B = {B}, W = {W}, prompt {prompt}: {size} entries after {10 * W} steps"
        for (prompt, B, W), size in zip(cases, printed, strict=True)
        if size > B + W
    ]
    return judged(
        next(iter(unbounded), ""),
        f"{len(cases)} sizes, ten windows; {len(unbounded)} end above B + W",
        "the cache keeps to B if |K| > B is demanded, as text and code do",
        text == [B for _, B, _ in cases],
    )


@cache
def counted() -> dict[str, Counts]:
    """What the methods of Fig. 6 and Table 6 do in one window, once a cache of 48 is full."""
    running = {
        "H2O": "h2o@recent=16",
        "TOVA": "tova",
        "RaaS": "raas@pin_prompt=false",
        "LazyEviction": "lazy_eviction@window=16,threshold=0.02",
    }
    return {name: count_window(spec, 48, 16) for name, spec in running.items()}


@PAPER.printed("LE-4c", "§5.2 and Fig. 6", Verdict.VERIFIED)
def cache_is_level_beyond_the_budget() -> Finding:
    """Once the budget is reached, the caches of TOVA, H2O and RaaS stay constant; LazyEviction's
    fluctuates a little: by less than its window.
    """
    held = {name: (min(counts.held), max(counts.held)) for name, counts in counted().items()}
    level = {"H2O": (48, 48), "TOVA": (48, 48), "RaaS": (48, 48), "LazyEviction": (48, 48 + 15)}
    shown = ", ".join(f"{name} {low} to {high} entries" for name, (low, high) in held.items())
    return measured(held == level, f"a budget of 48, a window of 16: {shown}")


@PAPER.ours("LE-7", "Eq. 4, which Appendix A approximates by a heuristic", Verdict.EXAMPLE)
def heuristic_misses_the_optimum() -> Finding:
    """The entries that the score keeps need not minimise the change of the attention output, Eq. 4;
    for a single eviction that change itself, CAOTE's score, does.
    """
    histories = list(product(product((1, 2), (0, 1, 2)), repeat=3))
    for weights, values in product(product((1, 2), repeat=3), product(range(3), repeat=3)):
        errors = [exact_error(weights, values, [j]) for j in range(3)]
        best = errors.index(min(errors))
        for history in histories:
            scores = [importance(*entry) for entry in history]
            victim = scores.index(min(scores))
            if errors[victim] > errors[best]:
                return example(
                    f"attention {weights}, values {values}, (MRI, Δ) {history}: the method evicts "
                    f"entry {victim + 1} (error {errors[victim]}), evicting {best + 1} costs "
                    f"{errors[best]}"
                )
    return refuted("the heuristic finds every optimum")


@PAPER.printed("LE-6", "Appendix E.1 and Table 6", Verdict.VERIFIED)
def one_ranking_per_window() -> Finding:
    """Over W steps LazyEviction ranks its entries once, H2O, TOVA and RaaS W times; all but TOVA,
    which keeps no state, update W·B scores, and those of what is there beyond B.
    """
    B, W = 48, 16
    runs = {name: (c.rankings, c.updated) for name, c in counted().items()}
    evidence = ", ".join(f"{n} {ranked} rankings, {u} updates" for n, (ranked, u) in runs.items())
    each_step, lagged = W * (B + 1), sum(B + step for step in range(1, W + 1))
    claimed = {"H2O": (W, each_step), "TOVA": (W, 0), "RaaS": (W, each_step)}
    return measured(runs == claimed | {"LazyEviction": (1, lagged)}, evidence)


@PAPER.printed("LE-12a", "§5.1 on Tables 1 and 2", Verdict.REFUTED)
def method_is_best_everywhere() -> Finding:
    """LazyEviction is better than every other method on all data sets, consistently."""
    models = ("DS-Llama-8B", "DS-Qwen-7B", "Qwen3-4B", "QwQ-32B")
    baselines = ("RaaS", "H2O", "TOVA", "R-KV")
    worse, total, ahead = [], 0, 0
    for task, table in TABLES["accuracy"].items():
        ours, others = np.array(table["Ours"]), np.array([table[name] for name in baselines])
        for i in np.flatnonzero(ours <= others.max(axis=0)):
            name = baselines[others[:, i].argmax()]
            worse.append(f"{task}, {models[i]}: {ours[i]} against {others[:, i].max()} of {name}")
        total += len(ours)
        ahead += bool((ours.mean() > others.mean(axis=1)).all())
    better = total - len(worse)
    true_statement = (
        f"it is in {better} of {total} cases, and on {ahead} of {len(TABLES['accuracy'])} data "
        "sets in the mean over their models"
    )
    mostly = better > 0.8 * total
    return tabulated(worse, total, "cases have LazyEviction ahead", true_statement, mostly)


@PAPER.ours(
    "LE-21",
    "Eq. 2, and TriAttention (arXiv 2604.04921, as its authors' code has it)",
    Verdict.VERIFIED,
)
def triattention_is_a_mean_of_future_logits() -> Finding:
    """TriAttention's score has two terms. The first is the logit (times √d) of the key, averaged
    over sample queries and over the distances Δ + 1, Δ + 2, Δ + 4, …; the second,
    Σ (E|q| − |E q|)|k|, is never negative, and zero for queries that are all alike.

    Two channels that turn together are one complex number, before RoPE. So the score asks for no
    attention: what LazyEviction counts while the model writes is computed from samples beforehand.
    """
    offsets = 2.0 ** np.arange(17)  # at which its authors average: 1, 2, 4, … 65,536
    rng, worst = np.random.default_rng(21), 0.0
    for _ in range(100):
        pairs, count, gap = (int(rng.integers(1, most)) for most in (5, 9, 400))
        omega = 10_000.0 ** -(np.arange(pairs) / pairs)
        size = (count + 1, pairs)
        key, *queries = rng.normal(size=size) + 1j * rng.normal(size=size)
        center, lengths = np.mean(queries, axis=0), np.abs(queries)
        turned = np.exp(1j * omega * (gap + offsets[:, None]))
        phase = np.angle(turned) + np.angle(center * np.conj(key))
        first = (np.abs(center) * np.abs(key) * np.cos(phase)).sum(axis=1).mean()
        logits = [(turned * query * np.conj(key)).real.sum(axis=1).mean() for query in queries]
        second, alike = (
            (x.mean(axis=0) - np.abs(mean)) @ np.abs(key)
            for x, mean in ((lengths, center), (lengths[:1], queries[0]))
        )
        worst = max(worst, abs(first - np.mean(logits)), -second, abs(alike))
    return measured(worst < 1e-12 * len(offsets), f"100 random samples: off by {worst:.1e} at most")


PAPER.claims.extend(table_claims("lazy_eviction"))
