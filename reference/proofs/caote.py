"""CAOTE's claims (arXiv 2504.14051).

Everything here starts from the definitions in ``outputs.py``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import sympy
from jaxtyping import Bool, Float

from kvlab.reference.files import printed_tables
from kvlab.reference.notation import Array
from kvlab.reference.proofs.algebra import identity
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    exhaustive,
    false,
    measured,
    proved,
    refuted,
    right,
    tabulated,
    verified,
)
from kvlab.reference.proofs.counting import operations
from kvlab.reference.proofs.outputs import (
    ROUNDING,
    exact_error,
    exact_output,
    output_without,
    random_caches,
    softmax,
)
from kvlab.reference.proofs.ranks import spearman
from kvlab.reference.simulator.observed import observe_heads

PAPER = Paper("caote", "CAOTE", "arXiv 2504.14051")
TABLES = printed_tables("caote")

FLOAT32 = 2e-6
"""Relative error of a float32 formula without cancellation: some thirty roundings of 6e-8."""

Activation = Callable[[Array], Array]
Error = Callable[[Any, Any], Any]
"""A score as a function of α_j and ‖X − v_j‖."""


# --- definitions ---------------------------------------------------------------------------------


def equation_8(alpha: Any, distance: Any) -> Any:
    """CAOTE's score of α_j and ‖X − v_j‖."""
    return alpha / (1 - alpha) * distance


def squared_norm(x: Array) -> float:
    """What the text calls the mean square error, times the number of channels."""
    return float((x**2).sum())


# --- §3.1: the score is the eviction error -------------------------------------------------------


@PAPER.printed("CA-1", "Theorem 3.1, Eq. 12-15", Verdict.PROVED)
@false("it becomes α_i/(1 + α_j)", after=lambda own, evicted: own / (1 + evicted))
@false("it stays α_i", after=lambda own, evicted: own)
def renormalised_attention(*, after: Error = lambda own, evicted: own / (1 - evicted)) -> Finding:
    """When entry j is evicted, the attention αᵢ to every other entry becomes αᵢ/(1 − α_j)."""
    own, evicted, others = sympy.symbols("e_i e_j e_others", positive=True)
    total = own + evicted + others
    return identity(
        after(own / total, evicted / total),
        own / (own + others),
        "e are exponentials of logits, those of all other entries enter by their sum: every n",
    )


@PAPER.printed("CA-2", "Theorem 3.2, Eq. 8-11 and 16-19", Verdict.PROVED)
@false("the factor is α_j", factor=lambda a: a)
@false("the factor is α_j²/(1 − α_j)", factor=lambda a: a**2 / (1 - a))
def eviction_changes_the_output(*, factor: Callable[[Any], Any] = lambda a: a / (1 - a)) -> Finding:
    """Evicting entry j changes the attention output by X − X' = α_j/(1 − α_j)·(v_j − X).

    A vector identity, channel by channel: so the score α_j/(1 − α_j)·‖X − v_j‖ is the error in any
    norm.
    """
    alpha, value, others = sympy.symbols("alpha_j v_j Y")
    output = alpha * value + others
    return identity(
        factor(alpha) * (value - output),
        output - others / (1 - alpha),
        "Y is the weighted sum of all other values: every n, every channel",
    )


@PAPER.printed("CA-2b", "§3.1, text after Eq. 19", Verdict.VERIFIED)
@false("the factor is α_j", score=lambda a, distance: a * distance)
@false("the distance is squared", score=lambda a, distance: equation_8(a, distance**2))
def score_is_the_error_in_any_norm(*, score: Error = equation_8) -> Finding:
    """Any norm can be used: α_j/(1 − α_j)·‖X − v_j‖_p equals ‖X − X'‖_p for every p.

    X' is computed by a softmax over the entries that stay.
    """
    norms, worst = (1, 2, 3, np.inf), 0.0
    for logits, values in random_caches(0, 300, (2, 13)):
        alpha = softmax(logits)
        for j, p in product(range(len(alpha)), norms):
            change = alpha @ values - output_without(logits, values, [j])
            claimed = score(alpha[j], np.linalg.norm(alpha @ values - values[j], p))
            gap = abs(claimed - np.linalg.norm(change, p)) / np.abs(values).max()
            worst = max(worst, float(gap))
    return measured(
        worst <= ROUNDING,
        f"300 random caches of 2-12 entries, every eviction, p in {norms}: largest difference "
        f"{worst:.1e} of the values' size",
    )


@PAPER.printed("CA-2c", "§3.1, text before Eq. 9", Verdict.REFUTED)
@right("the error is a norm", measure=lambda x: float(np.linalg.norm(x)))
@false("squaring turns the order round", same_order=lambda x: float(-np.linalg.norm(x)))
def error_is_a_mean_square(
    *,
    measure: Callable[[Array], float] = lambda x: squared_norm(x) / len(x),
    same_order: Callable[[Array], float] = squared_norm,
) -> Finding:
    """The eviction error of Eq. 9 is the mean square error between the outputs before and after.

    The search takes one channel and whole values, as small as possible.
    """
    sets = np.random.default_rng(0).normal(size=(200, 8, 4))
    alike = all(
        (np.argsort([same_order(x) for x in each]) == np.linalg.norm(each, axis=1).argsort()).all()
        for each in sets
    )
    for w, v in product(product((1, 2), repeat=2), product(range(3), repeat=2)):
        error = float(exact_error(w, v, [0]))
        mean_square = measure(np.array([error]))
        if abs(mean_square - error) > ROUNDING:
            return refuted(
                f"attention weights {w[0]}:{w[1]}, values {v[0]} and {v[1]}, first entry evicted: "
                f"Eq. 9 gives {error:.4g}, the mean square is {mean_square:.4g}",
                f"200 random sets of 8 changes: both rank {'alike' if alike else 'differently'}",
                "Eq. 9 is an unsquared norm; squaring it keeps the order of entries",
                alike,
            )
    return verified("all caches of two entries, weights 1-2, values 0-2")


@PAPER.ours("CA-3", "Eq. 8 in float32", Verdict.VERIFIED, "α → 1")
@false("the printed form is accurate", formula=lambda e, v: stable_float32(e, v))
@false("the other form breaks, too", stable=lambda e, v: printed_float32(e, v))
def printed_formula_breaks_in_float32(
    *,
    formula: Callable[[Array, Array], np.floating] = lambda e, v: printed_float32(e, v),
    stable: Callable[[Array, Array], np.floating] = lambda e, v: stable_float32(e, v),
) -> Finding:
    """Computed in float32 as printed, α_j/(1 − α_j)·‖X − v_j‖ loses its digits as α_j nears 1, and
    ends in infinity and NaN. The same number is α_j·‖X' − v_j‖, X' the output of the others, which
    stays accurate.

    Five entries, one of whose logits exceeds the others' by a growing gap.
    """
    gaps = range(1, 41)
    errors = [relative_error(formula, gap) for gap in gaps]
    other = max(relative_error(stable, gap) for gap in gaps)
    broken = next((gap for gap, error in zip(gaps, errors, strict=True) if not error < 1e-3), None)
    evidence = (
        f"logit gaps up to 40: beyond a thousandth from a gap of {broken} on, {errors[-1]} at 40; "
        f"the other form is off by {other:.1e} at most"
    )
    return measured(broken is not None and other <= FLOAT32, evidence)


FIVE_VALUES = np.array([[3.0, 1], [1, 2], [0, 1], [2, 0], [1, 1]])


def relative_error(compute: Callable[[Array, Array], np.floating], gap: int) -> float:
    """Return the relative error of a float32 score of the first of five entries.

    Its logit stands ``gap`` above the others', which are equal.
    """
    values = FIVE_VALUES
    logits = np.array([float(gap), 0, 0, 0, 0])
    others = values[1:].mean(axis=0)
    mass = 4 * np.exp(-float(gap))
    exact = np.linalg.norm(others - values[0]) / (1 + mass)
    with np.errstate(all="ignore"):
        found = compute(logits.astype(np.float32), values.astype(np.float32))
    return float(abs(found - exact) / exact)


def printed_float32(logits: Array, values: Array) -> np.floating:
    """Eq. 8 of the first entry, in the inputs' number format."""
    alpha = softmax(logits)
    return alpha[0] / (1 - alpha[0]) * np.linalg.norm(alpha @ values - values[0])


def stable_float32(logits: Array, values: Array) -> np.floating:
    """The same through the output of the others, without a difference that cancels."""
    alpha, others = softmax(logits), softmax(logits[1:])
    return alpha[0] * np.linalg.norm(others @ values[1:] - values[0])


@PAPER.ours("CA-7", "Eq. 8", Verdict.PROVED)
@false("the factor is h·(1 − h)", factor=lambda h: h * (1 - h))
def score_rises_with_attention(*, factor: Callable[[Any], Any] = lambda h: h / (1 - h)) -> Finding:
    """Where all values lie at the same distance from the output, CAOTE ranks entries by attention.

    Because h/(1 − h) rises strictly on [0, 1).
    """
    h = sympy.symbols("h", nonnegative=True)
    slope = sympy.factor(sympy.diff(factor(h), h))
    minimum = sympy.calculus.util.minimum(slope, h, sympy.Interval.Ropen(0, 1))
    if minimum > 0:
        return proved(f"SymPy: the derivative is {slope}, at least {minimum} on [0, 1)")
    return refuted(f"the derivative is {slope}, its least value on [0, 1) {minimum}")


@PAPER.printed("CA-7b", "§1", Verdict.VERIFIED)
@false("attention is the score", score=lambda alpha, distance: alpha)
def attention_and_caote_disagree(*, score: Error = equation_8) -> Finding:
    """Evicting by attention alone may be suboptimal, because it does not look at values: the entry
    with the least attention is not always the one whose eviction changes the output least.

    The smallest example in whole numbers: three entries of one channel, none attended alike.
    """
    for weights, values in product(permutations(range(1, 5), 3), product(range(4), repeat=3)):
        alpha = [Fraction(w, sum(weights)) for w in weights]
        output = exact_output(weights, values, range(3))
        scores = [score(a, abs(output - v)) for a, v in zip(alpha, values, strict=True)]
        errors = [exact_error(weights, values, [j]) for j in range(3)]
        least, chosen = alpha.index(min(alpha)), scores.index(min(scores))
        if errors[chosen] < errors[least]:
            return verified(
                f"weights {weights}, values {values}: attention evicts entry {least + 1} (error "
                f"{errors[least]}), CAOTE entry {chosen + 1} (error {errors[chosen]})"
            )
    return refuted("none among weights up to 4 and values up to 3")


@PAPER.reading("CA-9", "Eq. 8, where the paper leaves heads out", Verdict.VERIFIED, "heads")
@false("the scores add", join=lambda scores: float(scores.sum()))
@false("the largest score counts", join=lambda scores: float(scores.max()))
def grouped_heads_add_in_squares(
    *, join: Callable[[Array], float] = lambda scores: float(np.linalg.norm(scores))
) -> Finding:
    """For query heads that share an entry, the change of their concatenated outputs is the L2 norm
    of the heads' own scores.

    The change is computed by attending again without the entry, head by head.
    """
    rng, worst = np.random.default_rng(10), 0.0
    for _ in range(200):
        heads, n, d = (int(rng.integers(2, most)) for most in (5, 10, 6))
        logits, values = 2 * rng.normal(size=(heads, n)), rng.normal(size=(n, d))
        alpha, j = softmax(logits), int(rng.integers(n))
        without = [output_without(row, values, [j]) for row in logits]
        change = np.linalg.norm(np.concatenate(alpha @ values) - np.concatenate(without))
        scores = equation_8(alpha[:, j], np.linalg.norm(alpha @ values - values[j], axis=1))
        worst = max(worst, abs(join(scores) - change) / change)
    return measured(worst <= ROUNDING, f"200 random groups: off by {worst:.1e} at most")


# --- relatives -----------------------------------------------------------------------------------


@PAPER.ours("CA-17", "Eq. 8, and DropKV (kvpress issue 284)", Verdict.VERIFIED)
@false("the factor is α_j", factor=lambda alpha: alpha)
@false("it is the sum of the errors", join=lambda scores: float(scores.sum()))
def dropkv_is_caote_over_a_window(
    *,
    factor: Callable[[Array], Array] = lambda alpha: alpha / (1 - alpha),
    join: Callable[[Array], float] = lambda scores: float(np.linalg.norm(scores)),
) -> Finding:
    """DropKV's score Σ_i (p_ij/(1 − p_ij))²‖v_j − o_i‖² over the queries i of a window is the
    square of the L2 norm of CAOTE's scores, one per query; for one query both order alike.

    As its authors print it in the request to add it to kvpress; its paper was not at hand. CAOTE's
    paper rates an entry by one row of retention scores and not by several rows of attention.
    """
    rng, worst = np.random.default_rng(17), 0.0
    for _ in range(200):
        queries, n, d = (int(rng.integers(2, most)) for most in (5, 10, 6))
        logits, values = 2 * rng.normal(size=(queries, n)), rng.normal(size=(n, d))
        alpha, j = softmax(logits), int(rng.integers(n))
        distance = np.linalg.norm(alpha @ values - values[j], axis=1)
        dropkv = float((factor(alpha[:, j]) ** 2 * distance**2).sum())
        without = np.array([output_without(row, values, [j]) for row in logits])
        errors = np.linalg.norm(alpha @ values - without, axis=1)
        worst = max(worst, abs(np.sqrt(dropkv) - join(errors)) / join(errors))
    return measured(worst <= ROUNDING, f"200 random windows: off by {worst:.1e} at most")


@PAPER.ours(
    "CA-18", "Eq. 8, and CriticalKV (arXiv 2502.03805, as kvpress has it)", Verdict.VERIFIED
)
@false(
    "distance from the output counts there, too",
    score=lambda alpha, away, size: equation_8(alpha, away),
)
def criticalkv_looks_at_no_output(
    *, score: Callable[[Fraction, Fraction, Fraction], Any] = lambda alpha, away, size: alpha * size
) -> Finding:
    """CriticalKV's second stage rates an entry by attention times ‖W_o·v_j‖₁ and not by how far the
    value lies from the output: it can evict an entry whose loss costs more than that of another.

    The smallest example in whole numbers with W_o = 1: three entries of one channel.
    """
    for weights, values in product(permutations(range(1, 5), 3), product(range(4), repeat=3)):
        alpha = [Fraction(w, sum(weights)) for w in weights]
        output = exact_output(weights, values, range(3))
        scores = [
            score(a, abs(output - v), Fraction(abs(v))) for a, v in zip(alpha, values, strict=True)
        ]
        errors = [exact_error(weights, values, [j]) for j in range(3)]
        chosen, least = scores.index(min(scores)), errors.index(min(errors))
        if errors[chosen] > errors[least]:
            return verified(
                f"weights {weights}, values {values}: CriticalKV evicts entry {chosen + 1} (error "
                f"{errors[chosen]}), CAOTE entry {least + 1} (error {errors[least]})"
            )
    return refuted("none among weights up to 4 and values up to 3")


# --- several entries at once ---------------------------------------------------------------------


@PAPER.ours("CA-4a", "Appendix A, several evictions", Verdict.PROVED)
@false("nothing is divided by", claimed=lambda s, a, x: s - a * x)
@false("the output is not subtracted", claimed=lambda s, a, x: s / (1 - a))
def joint_eviction_in_closed_form(
    *, claimed: Callable[[Any, Any, Any], Any] = lambda s, a, x: (s - a * x) / (1 - a)
) -> Finding:
    """Evicting a whole set E changes the output by X − X' = Σ_E α_j(v_j − X)/(1 − Σ_E α_j).

    The version that we have calls this non-trivial and leaves it out; version 6 prints a formula.
    """
    pulled, mass, others = sympy.symbols("S A Y")
    output = pulled + others
    return identity(
        claimed(pulled, mass, output),
        output - others / (1 - mass),
        "S and A are Σα_jv_j and Σα_j over E, Y is Σα_iv_i over the rest: every n, every E",
    )


@PAPER.ours("CA-4b", "Appendix A, several evictions", Verdict.VERIFIED)
@false("half of that bounds it, too", factor=0.5)
def joint_error_is_bounded(*, factor: float = 1.0) -> Finding:
    """The joint error is at most Σ_E (1 − α_j)c_j/(1 − Σ_E α_j), c_j being the single scores."""
    rng, closest = np.random.default_rng(1), 0.0
    for logits, values in random_caches(1, 500, (3, 12)):
        n = len(logits)
        evicted = rng.choice(n, int(rng.integers(1, n)), replace=False).tolist()
        alpha = softmax(logits)
        output = alpha @ values
        single = equation_8(alpha, np.linalg.norm(output - values, axis=1))
        error = np.linalg.norm(output - output_without(logits, values, evicted))
        bound = factor * ((1 - alpha) * single)[evicted].sum() / (1 - alpha[evicted].sum())
        closest = max(closest, float(error / bound))
    return measured(
        closest <= 1 + ROUNDING,
        f"500 random caches of 3-11 entries, any number evicted: the error reaches {closest:.4g} "
        "of the bound at most",
    )


@PAPER.ours("CA-4c", "Appendix A", Verdict.EXHAUSTIVE, "several victims at once")
@false("single scores miss the best single eviction", evictions=lambda n: (1,))
@false("they find the best pair", exact=(2,))
def independent_scores_can_miss_the_best_set(
    *,
    evictions: Callable[[int], Sequence[int]] = lambda n: range(2, n),
    exact: Sequence[int] = (1,),
) -> Finding:
    """Evicting the k > 1 entries with the smallest single scores need not change the output least;
    Appendix A says that it scores them one by one, as an approximation.

    All caches of up to five equally attended entries with whole values from −2 to 2, smallest
    first; of tied choices the best one counts.
    """
    worse = _independent_is_worse(evictions)
    if worse is None or _independent_is_worse(lambda n: exact):
        return refuted("every cache of up to five equal weights and values −2 to 2")
    values, k, chosen, error, best, optimum = worse
    return exhaustive(
        f"equal weights, values {values}, {k} evicted: the smallest scores take the entries "
        f"{_one_based(chosen)} (error {error}), the entries {_one_based(best)} cost {optimum}; a "
        "single eviction is always the best"
    )


def _independent_is_worse(
    evictions: Callable[[int], Sequence[int]],
) -> tuple[Any, ...] | None:
    for n in range(2, 6):
        weights = [1] * n
        for values in combinations_with_replacement(range(-2, 3), n):
            single = [exact_error(weights, values, [j]) for j in range(n)]
            for k in evictions(n):
                found = [(exact_error(weights, values, s), s) for s in combinations(range(n), k)]
                least = sorted(single)[:k]
                alike = [(e, s) for e, s in found if sorted(single[j] for j in s) == least]
                (error, chosen), (optimum, best) = min(alike), min(found)
                if error > optimum:
                    return values, k, chosen, error, best, optimum
    return None


def _one_based(chosen: Iterable[int]) -> str:
    return " and ".join(str(j + 1) for j in chosen)


@PAPER.ours("CA-4d", "Appendix A", Verdict.VERIFIED, "several victims at once")
@false("it is below the best set's", at_most=0.99)
def gap_of_several_evictions(*, model: Path, at_most: float = 1.05) -> Finding:
    """Independent scores come close to the best set where attention is uneven: on the embedded
    model their joint error is, in the median, at most 1.05 times the smallest possible.

    Four of twelve entries leave; the best set is found by trying all 495. Real: the last twelve
    entries that every head of the embedded model sees, at several queries. Random: Gaussian logits
    and values; equal: the same values, all attended alike.
    """
    windows = {
        "real": _real_windows(model),
        "random": _random_windows(spread=1.0),
        "equal": _random_windows(spread=0.0),
    }
    ratios = {
        where: np.quantile([_over_the_best(*each) for each in chosen], (0.5, 0.9)).tolist()
        for where, chosen in windows.items()
    }
    evidence = "joint error over the best set's, median and 90 % quantile: " + ", ".join(
        f"{where} {median:.2f} and {high:.2f}" for where, (median, high) in ratios.items()
    )
    return measured(ratios["real"][0] <= at_most, evidence, **ratios)


def _real_windows(model: Path) -> Iterable[tuple[Array, Array]]:
    for head in observe_heads(model):
        for query in range(60, len(head.queries), 30):
            seen = slice(query + 1 - 12, query + 1)
            logits = head.keys[seen] @ head.queries[query] / np.sqrt(head.keys.shape[1])
            yield logits, head.values[seen]


def _random_windows(spread: float) -> Iterable[tuple[Array, Array]]:
    rng = np.random.default_rng(2)
    for _ in range(100):
        yield spread * rng.normal(size=12), rng.normal(size=(12, 32))


FOUR_OF_TWELVE = np.array([[j in each for j in range(12)] for each in combinations(range(12), 4)])


def _over_the_best(logits: Array, values: Array) -> float:
    """Joint error of the four entries with the smallest scores, over that of the best four."""
    alpha = softmax(logits)
    single = joint_errors(alpha, values, np.eye(12, dtype=bool))
    chosen = np.isin(np.arange(12), np.argsort(single)[:4])
    best = joint_errors(alpha, values, FOUR_OF_TWELVE).min()
    return float(joint_errors(alpha, values, chosen[None])[0] / best)


def joint_errors(
    alpha: Float[Array, " n"], values: Float[Array, "n d"], evicted: Bool[Array, "sets n"]
) -> Float[Array, " sets"]:
    """‖X − X'‖ for each set, by attending to the rest."""
    stays = np.where(evicted, 0.0, alpha)
    left = stays @ values / stays.sum(axis=1, keepdims=True)
    return np.linalg.norm(alpha @ values - left, axis=1)


# --- §3.2: any score -----------------------------------------------------------------------------


@PAPER.printed("CA-6", "§3.2, text before Eq. 20", Verdict.PROVED)
@false("any factor will do", positive=None)
@false("the square of a score keeps the order, too", power=2)
def affine_maps_keep_the_order_of_scores(
    *, positive: bool | None = True, power: int = 1
) -> Finding:
    """Normalising retention scores by an affine map, h → a·h + b with a > 0, does not change their
    order.
    """
    slope = sympy.Symbol("a", real=True, positive=positive)
    shift, low = sympy.symbols("b h_1", real=True)
    gap = sympy.symbols("delta", positive=True)
    change = sympy.factor(slope * (low + gap) ** power + shift - slope * low**power - shift)
    if not change.is_positive:
        return refuted(f"scores δ > 0 apart end up {change} apart, which need not be positive")
    return proved(f"SymPy: scores δ > 0 apart end up {change} apart, which is positive")


@PAPER.ours("CA-6b", "§3.2, text before Eq. 20", Verdict.EXHAUSTIVE)
@false("a factor changes the choice", transform=lambda h, c: h * c)
@false("no shift is needed for that", factor=lambda h, c: h + Fraction(c, 2))
def affine_maps_change_the_choice(
    *,
    transform: Callable[[Fraction, int], Fraction] = lambda h, c: h + c,
    factor: Callable[[Fraction, int], Fraction] = lambda h, c: h * c,
) -> Finding:
    """Adding a constant to the retention scores keeps their order, but can change which entry CAOTE
    evicts. Dividing them by their sum, Eq. 22, cannot.

    All caches of three entries with scores and values up to 3, and constants 1 to 3.
    """
    found = _choice_changes(transform)
    if found is None or _choice_changes(factor):
        return refuted("every cache of three entries, scores 1-3, values 0-3, constants 1-3")
    scores, values, constant, before, after = found
    return exhaustive(
        f"scores {scores}, values {values}: entry {before + 1} goes; with {constant} added, entry "
        f"{after + 1}; positive factors 1 to 3 change no choice"
    )


def _choice_changes(transform: Callable[[Fraction, int], Fraction]) -> tuple[Any, ...] | None:
    for scores in product(range(1, 4), repeat=3):
        for values in product(range(4), repeat=3):
            before = _victims([Fraction(h) for h in scores], values)
            for constant in (1, 2, 3):
                after = _victims([transform(Fraction(h), constant) for h in scores], values)
                if before.isdisjoint(after):
                    return scores, values, constant, min(before), min(after)
    return None


def _victims(scores: Sequence[Fraction], values: Sequence[int]) -> set[int]:
    """Entries with the smallest error once the scores are divided by their sum."""
    h = [score / sum(scores) for score in scores]
    output = sum(a * v for a, v in zip(h, values, strict=True))
    errors = [equation_8(a, abs(output - v)) for a, v in zip(h, values, strict=True)]
    return {j for j, error in enumerate(errors) if error == min(errors)}


@PAPER.printed("CA-5", "Theorem B.1, Eq. 24-34", Verdict.EXHAUSTIVE, "H2O")
@false("they sum to b", total=lambda b: b)
@false("they sum to 1", total=lambda b: 1)
def h2o_scores_sum_to_their_number(*, total: Callable[[int], int] = lambda b: b + 1) -> Finding:
    """When b + 1 tokens pass the model at once, their H2O scores sum to b + 1, which is above 1.

    SymPy, with a symbol for every entry of the causal attention matrix before its normalisation.
    """
    for b in range(1, 6):
        rows = [sympy.symbols(f"e{i}_1:{i + 2}", positive=True) for i in range(b + 1)]
        attention = [[e / sum(row) for e in row] for row in rows]
        scores = [sum(row[j] for row in attention if j < len(row)) for j in range(b + 1)]
        found: Any = sympy.simplify(sympy.Add(*scores))
        if found != total(b) or not total(b) > 1:
            return refuted(f"b = {b}: the scores sum to {found}")
    return exhaustive("any weights, every b up to 5; each further row of attention adds 1")


@PAPER.reading("CA-13", "Eq. 33", Verdict.EXHAUSTIVE)
@false("the second sum starts at i", second=lambda i: i)
@false("the second sum starts at i + 2", second=lambda i: i + 2)
def split_sum_covers_every_column(*, second: Callable[[int], int] = lambda i: i + 1) -> Finding:
    """Eq. 33 splits the sum over columns j at row i; its second part prints j as its own lower
    limit. If that starts at i + 1, both parts together take every column once.
    """
    for b in range(1, 13):
        for i in range(1, b + 2):
            columns = [*range(1, i + 1), *range(second(i), b + 2)]
            if columns != list(range(1, b + 2)):
                return refuted(f"b = {b}, i = {i}: columns {columns}")
    return exhaustive("every row for every b up to 12")


def _overflows() -> Iterable[tuple[int, int, Fraction, Fraction]]:
    """H2O's scores whenever the cache is one entry above its budget; then the largest score leaves.

    Yields budget, tokens so far, sum of the scores, sum of the scores that left before.
    """
    rng = np.random.default_rng(4)
    for budget in (1, 2, 3, 5, 8):
        scores, gone = [], Fraction(0)
        for tokens in range(1, 31):
            weights = rng.integers(1, 9, size=len(scores) + 1).tolist()
            rows = zip([*scores, Fraction(0)], weights, strict=True)
            scores = [score + Fraction(w, sum(weights)) for score, w in rows]
            if len(scores) > budget:
                yield budget, tokens, sum(scores, Fraction(0)), gone
                gone += scores.pop(scores.index(max(scores)))


@PAPER.printed("CA-5b", "§3.2, CAOTE for H2O", Verdict.VERIFIED, "H2O")
@false("the sum is above 1.2", above=Fraction(6, 5))
def h2o_scores_exceed_one_while_generating(*, above: Fraction = Fraction(1)) -> Finding:
    """While generating, H2O's scores of the b + 1 entries sum to more than 1.

    Exact fractions, random weights, 30 tokens; the worst case is evicted, the largest score.
    """
    smallest = min(total for _, _, total, _ in _overflows())
    return measured(smallest > above, f"the smallest sum is {float(smallest):.4f}")


@PAPER.ours("CA-5d", "Theorem B.1 after evictions", Verdict.VERIFIED, "H2O")
@false("it is b + 1", claimed=lambda b, t, gone: b + 1)
@false("it is t", claimed=lambda b, t, gone: t)
def h2o_scores_after_evictions(
    *, claimed: Callable[[int, int, Fraction], Any] = lambda b, t, gone: t - gone
) -> Finding:
    """The sum b + 1 of Theorem B.1, which assumes that nothing was evicted, becomes t − Σ of the
    scores that left, t being the tokens so far.
    """
    found = list(_overflows())
    for b, t, total, gone in found:
        if claimed(b, t, gone) != total:
            return refuted(f"b = {b}, token {t}: the sum is {total}")
    return verified(f"exact fractions, {len(found)} overflows, b up to 8")


@PAPER.reading("CA-5c", "§2, score functions", Verdict.EXHAUSTIVE, "H2O")
@false("a block's scores sum to m + 1", total=lambda m: m + 1)
@false("they exceed 1 for m = 1, too", exceeds_from=1)
def block_scores_sum_to_the_block(
    *, total: Callable[[int], int] = lambda m: m, exceeds_from: int = 2
) -> Finding:
    """H2O's scores as §2 prints them, over the current block's m queries, sum to m. While
    generating, m is 1: the scores are TOVA's, and their sum is not above 1 as §3.2 needs it. So H2O
    has to accumulate, as §3.2 and Theorem B.1 say in words.

    Exact fractions: two older entries, blocks of 1 to 3 queries, all whole weights up to 3 in each
    of their rows.
    """
    added = [
        {
            sum((Fraction(w, sum(row)) for w in row), Fraction(0))
            for row in product((1, 2, 3), repeat=n)
        }
        for n in (3, 4, 5)
    ]
    for m in (1, 2, 3):
        least, most = (sum(pick(row) for row in added[:m]) for pick in (min, max))
        if not least == most == total(m) or (m >= exceeds_from) != (least > 1):
            return refuted(f"m = {m}: the scores sum to {least}")
    return exhaustive("every row adds 1: the sum is m, and for m = 1 there is one row, as in TOVA")


@PAPER.printed("CA-14", "Eq. 6", Verdict.REFUTED, "who may go")
@right("it searches 1 … b + m", candidates=lambda b, m: b + m)
@false("it should search the new ones alone", reading=lambda b, m: m)
def eviction_chooses_by_scores(
    *,
    candidates: Callable[[int, int], int] = lambda b, m: b,
    reading: Callable[[int, int], int] = lambda b, m: b + m,
) -> Finding:
    """Of the b + m entries the b with the best scores are retained; Eq. 6 searches j in 1 … b. (For
    ease of notation the paper assumes that no new entry leaves.)

    All orders of the scores of up to five entries: all of them, and those that meet the assumption.
    """
    cases = [(b, m) for b in range(1, 4) for m in range(1, 3)]
    wrong, assumed = (_wrong_choice(cases, candidates, new_stay) for new_stay in (False, True))
    if wrong is None:
        return verified(f"{len(cases)} sizes")
    b, m, scores = wrong
    as_assumed = "it holds" if assumed is None else "b = {}, m = {}, scores {}".format(*assumed)
    return refuted(
        f"b = {b}, m = {m}, scores {scores}: the first {b} stay, whatever their scores",
        f"all orders of the scores for {len(cases)} sizes; where all new entries are among the "
        f"best, as assumed: {as_assumed}",
        "it does if it searches 1 … b + m",
        _wrong_choice(cases, reading) is None,
    )


def _wrong_choice(
    cases: Sequence[tuple[int, int]], among: Callable[[int, int], int], new_stay: bool = False
) -> tuple[Any, ...] | None:
    """Find scores for which the best b of the first ``among`` entries are not the best b of all.

    ``new_stay``: only scores for which all m new entries, which come last, are among the best.
    """
    for b, m in cases:
        for scores in permutations(range(b + m)):
            best = set(sorted(range(b + m), key=lambda j: -scores[j])[:b])
            if new_stay and not best.issuperset(range(b, b + m)):
                continue
            if best != set(sorted(range(among(b, m)), key=lambda j: -scores[j])[:b]):
                return b, m, scores
    return None


# --- §3.3: FastCAOTE -----------------------------------------------------------------------------


@PAPER.ours("CA-8a", "Eq. 23", Verdict.EXHAUSTIVE)
@false("so it is for any attention", weights=(1, 2))
@false("the mean divides by n + 1", mean=lambda v: sum(v, Fraction(0)) / (len(v) + 1))
def fast_score_is_exact_for_equal_attention(
    *,
    mean: Callable[[Sequence[Fraction]], Fraction] = lambda v: sum(v, Fraction(0)) / len(v),
    weights: Sequence[int] = (1,),
) -> Finding:
    """Where all entries get equal attention, FastCAOTE's score of every entry, Eq. 23, is its
    eviction error.

    Exact fractions: one channel, all caches of two to five entries with values 0 to 3.
    """
    for n in range(2, 6):
        for e, values in product(product(weights, repeat=n), product(range(4), repeat=n)):
            alpha = [Fraction(w, sum(e)) for w in e]
            centre = mean([Fraction(v) for v in values])
            for j in range(n):
                fast = equation_8(alpha[j], abs(centre - values[j]))
                if fast != exact_error(e, values, [j]):
                    return refuted(f"weights {e}, values {values}: {fast} for entry {j + 1}")
    return exhaustive("2 to 5 entries: the score is the error of attending to the others")


@PAPER.ours("CA-8b", "Eq. 23", Verdict.VERIFIED)
@false("half of that bounds it, too", factor=0.5)
def fast_score_is_bounded(*, factor: float = 1.0) -> Finding:
    """FastCAOTE's score is off by at most h/(1 − h)·‖X − v̄‖, v̄ the mean of the values."""
    closest = 0.0
    for logits, values in random_caches(7, 400, (2, 20)):
        h = softmax(logits)
        output, mean = h @ values, values.mean(axis=0)
        exact, fast = (
            equation_8(h, np.linalg.norm(centre - values, axis=1)) for centre in (output, mean)
        )
        bound = factor * equation_8(h, np.linalg.norm(output - mean))
        closest = max(closest, float((abs(fast - exact) / bound).max()))
    return measured(
        closest <= 1 + ROUNDING,
        f"400 random caches of 2-19 entries: at most {closest:.4g} of the bound is reached",
    )


@PAPER.ours("CA-8c", "§3.3, FastCAOTE in the place of CAOTE", Verdict.VERIFIED)
@false("the correlation is 0.99", at_least=0.99)
def fast_score_ranks_alike(*, model: Path, at_least: float = 0.8) -> Finding:
    """On the embedded model's attention FastCAOTE ranks entries almost as CAOTE does: Spearman's
    correlation is at least 0.8 in every head. But attention itself does, too.

    Every 20th query, from 40 entries on. (0.8 per layer is what version 6 reports.)
    """
    fast, plain = [], []
    for head in observe_heads(model):
        attention = head.attention()
        per_query = [
            _rank_correlations(attention[t, : t + 1], head.values[: t + 1])
            for t in range(40, len(attention), 20)
        ]
        fast.append(np.mean([each[0] for each in per_query]))
        plain.append(np.mean([each[1] for each in per_query]))
    evidence = (
        f"mean over queries, {len(fast)} heads: FastCAOTE {min(fast):.3f} to {max(fast):.3f}, "
        f"attention alone {min(plain):.3f} to {max(plain):.3f}"
    )
    return measured(min(fast) >= at_least, evidence)


def _rank_correlations(alpha: Array, values: Array) -> tuple[float, float]:
    ratio = alpha / (1 - alpha)
    exact, fast = (
        ratio * np.linalg.norm(x - values, axis=1) for x in (alpha @ values, values.mean(axis=0))
    )
    return spearman(exact, fast), spearman(exact, alpha)


@PAPER.printed("CA-8d", "§3.3, text before Eq. 23", Verdict.REFUTED)
@right("about a fifth is saved", order=lambda d: 0.2)
@false("two multiplications are saved", saved=lambda n, d: 2 * (n - 1) * d)
def fast_score_is_cheaper_by_the_width(
    *,
    order: Callable[[int], float] = lambda d: 1 / d,
    saved: Callable[[int, int], int] = lambda n, d: (n - 1) * d,
) -> Finding:
    """FastCAOTE reduces the computation by an order of 1/d_hidden, d_hidden being the width of the
    model, which is at least that of a value, d.

    Read as the share that is left, or as the share that is saved, each up to a factor of 2. Every
    addition, multiplication and division of both scores is counted.
    """
    counts = {(n, d): _operations(n, d) for n in (8, 64) for d in (32, 128)}
    left = {size: fast / full for size, (full, fast) in counts.items()}
    wrong = [(n, d) for (n, d), share in left.items() if min(share, 1 - share) > 2 * order(d)]
    shares = ", ".join(f"{share:.0%} for n = {n}, d = {d}" for (n, d), share in left.items())
    if not wrong:
        return verified(f"left: {shares}")
    n, d = wrong[0]
    return refuted(
        f"{n} entries of {d} channels: {counts[n, d][1]} operations instead of {counts[n, d][0]}",
        f"what is left of the operations: {shares}",
        "n multiplications per channel become one division; the distances cost most and stay",
        all(full - fast == saved(n, d) for (n, d), (full, fast) in counts.items()),
    )


def _operations(n: int, d: int) -> tuple[int, int]:
    """Operations of CAOTE's and of FastCAOTE's scores; square roots are left out."""

    def score(alpha: Array, values: Array, centre: Array) -> Array:
        gaps = values - centre
        return alpha / (1 - alpha) * (gaps * gaps).sum(axis=1) ** 0.5

    alpha, values = np.full(n, 1 / n), np.random.default_rng(8).normal(size=(n, d))
    return (
        operations(lambda a, v: score(a, v, (a[:, None] * v).sum(axis=0)), alpha, values),
        operations(lambda a, v: score(a, v, v.sum(axis=0) / n), alpha, values),
    )


@PAPER.printed("CA-8e", "§3.3, Tables 2, 3, 7 and 8", Verdict.VERIFIED)
@false("FastCAOTE is never worse", at_most=0.0)
def fast_score_costs_little_accuracy(*, at_most: float = 1.0) -> Finding:
    """FastCAOTE degrades the performance of CAOTE negligibly.

    That is taken for less than a point of the LongBench average.
    """
    gaps = {name: fast - full for name, (_, full, fast) in legible(TABLES["longbench"]).items()}
    worst = min(gaps, key=lambda name: gaps[name])
    return measured(
        gaps[worst] >= -at_most,
        f"{len(gaps)} legible pairs: mean difference {np.mean([*gaps.values()]):+.2f}, worst "
        f"{gaps[worst]:+.2f} ({worst})",
    )


# --- Appendix B.2: what the error does to the logits ---------------------------------------------


class Network:
    """One attention layer as in Appendix B.2: no norms, a linear feed-forward part, a head.

    Random matrices; seven tokens of width 6, heads of 3 channels, 5 words.
    """

    def __init__(self, heads: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.query, self.key, self.value = (rng.normal(size=(heads, 3, 6)) for _ in range(3))
        self.hidden, self.out = rng.normal(size=(7, 6)), rng.normal(size=(6, heads * 3))
        self.feed_forward, self.vocabulary = rng.normal(size=(6, 6)), rng.normal(size=(5, 6))

    def attention_output(self, evicted: Iterable[int] = ()) -> Float[Array, " Hd"]:
        """Concatenated outputs of all heads for the last token."""
        gone = list(evicted)
        outputs = []
        for W_Q, W_K, W_V in zip(self.query, self.key, self.value, strict=True):
            q, keys, values = W_Q @ self.hidden[-1], self.hidden @ W_K.T, self.hidden @ W_V.T
            outputs.append(output_without(keys @ q / np.sqrt(len(q)), values, gone))
        return np.concatenate(outputs)

    def logits(self, activation: Activation | None, evicted: Iterable[int] = ()) -> Array:
        """Logits of the last token; no ``activation`` means no feed-forward part."""
        x = self.hidden[-1] + self.out @ self.attention_output(evicted)
        if activation is not None:
            x = x + activation(self.feed_forward @ x)
        return self.vocabulary @ x


def linear(x: Array) -> Array:
    """No activation function: a feed-forward part that is one matrix."""
    return x


def rectified(x: Array) -> Array:
    """Negative values become 0."""
    return np.maximum(x, 0)


Map = Callable[[Network], Array]
"""The map from the change of the attention output to the change of the logits."""


def _logit_errors(claimed: Map, heads: int, activation: Activation | None) -> tuple[float, str]:
    """Return the largest relative error of the claimed change of the logits, and the cases."""
    worst = 0.0
    for seed in range(50):
        network = Network(heads, seed)
        dense = network.logits(activation)
        for j in range(len(network.hidden)):
            change = network.attention_output([j]) - network.attention_output()
            error = network.logits(activation, [j]) - dense
            size = np.linalg.norm(error)
            if size > 1e-6 * np.linalg.norm(dense):
                off = np.linalg.norm(claimed(network) @ change - error) / size
                worst = max(worst, float(off))
    heads_text = f"{heads} head{'s' * (heads > 1)}"
    return worst, f"50 random networks, {heads_text}, each of 7 tokens evicted: off by"


def _logits_change_by(claimed: Map, heads: int, activation: Activation | None) -> Finding:
    worst, domain = _logit_errors(claimed, heads, activation)
    return measured(worst <= 100 * ROUNDING, f"{domain} {worst:.1e} of the change at most")


@PAPER.printed("CA-10a", "B.2, case 1, Eq. 35-42", Verdict.VERIFIED)
@false("they change by −W_H·W_O·Δ_A", claimed=lambda net: -net.vocabulary @ net.out)
def logit_error_of_one_head(*, claimed: Map = lambda net: net.vocabulary @ net.out) -> Finding:
    """One attention head with its residual: the logits change by W_H·W_O·Δ_A.

    Δ_A is the change of the attention output, a vector, whose length Eq. 9 gives. Eq. 40 and 41
    print the changed logits without their hat.
    """
    return _logits_change_by(claimed, 1, None)


@PAPER.printed("CA-10b", "B.2, case 2", Verdict.VERIFIED)
@false("each head counts three times", claimed=lambda net: 3 * net.vocabulary @ net.out)
def logit_error_of_several_heads(*, claimed: Map = lambda net: net.vocabulary @ net.out) -> Finding:
    """Several heads: the same with Δ_A the concatenation of the heads' changes."""
    return _logits_change_by(claimed, 3, None)


def through_feed_forward(network: Network) -> Array:
    """W_H(I + W_FFN)W_O."""
    identity = np.eye(len(network.feed_forward))
    return network.vocabulary @ (identity + network.feed_forward) @ network.out


@PAPER.printed("CA-10c", "B.2, case 3, Eq. 43-51", Verdict.VERIFIED)
@false("the feed-forward part does not count", claimed=lambda net: net.vocabulary @ net.out)
@false("it has an activation function", activation=rectified)
def logit_error_with_feed_forward(
    *, claimed: Map = through_feed_forward, activation: Activation = linear
) -> Finding:
    """Attention and a feed-forward part that is one matrix, as the paper assumes: the logits change
    by W_H(I + W_FFN)W_O·Δ_A.
    """
    return _logits_change_by(claimed, 1, activation)


@PAPER.ours("CA-10e", "B.2, case 3, with an activation function", Verdict.VERIFIED)
@false("it is linear", activation=linear)
def rectifier_breaks_the_logit_error(*, activation: Activation = rectified) -> Finding:
    """Real models have a non-linear function in the feed-forward part. With a rectifier there, the
    changes that case 3 predicts are off by more than their own size.
    """
    worst, domain = _logit_errors(through_feed_forward, 1, activation)
    return measured(worst > 1, f"{domain} up to {worst:.0%} of the change")


@PAPER.ours("CA-10d", "B.2, first sentence", Verdict.VERIFIED)
@false("multiples of the identity turn the order round", matrices=[(1, 1), (2, 2)])
@false("half of the norm bounds it", bound=lambda W: float(np.linalg.norm(W, 2)) / 2)
def smaller_error_may_change_the_logits_more(
    *,
    bound: Callable[[Array], float] = lambda W: float(np.linalg.norm(W, 2)),
    matrices: Sequence[tuple[int, int]] | None = None,
) -> Finding:
    """As the paper says, a smaller eviction error can change the logits less, but it need not. The
    logits change by at most the map's spectral norm times the eviction error.

    Diagonal maps diag(a, b) with a, b up to 3, changes in whole numbers up to 3, smallest first;
    the bound on 200 random maps and changes.
    """
    rng, norm = np.random.default_rng(9), np.linalg.norm
    samples = [(rng.normal(size=(5, 4)), rng.normal(size=4)) for _ in range(200)]
    bounded = all(norm(M @ c) <= bound(M) * norm(c) * (1 + ROUNDING) for M, c in samples)
    changes = [np.array(x) for x in product(range(4), repeat=2) if any(x)]
    for a, b in matrices or product(range(1, 4), repeat=2):
        W = np.diag([a, b])
        for x, y in permutations(changes, 2):
            if norm(x) < norm(y) and norm(W @ x) > norm(W @ y):
                found = f"map diag({a}, {b}), Δ_A = {tuple(x.tolist())} and {tuple(y.tolist())}"
                sizes = (f"{float(norm(each)):.4g}" for each in (x, y, W @ x, W @ y))
                errors = "errors {} < {}, logit errors {} > {}".format(*sizes)
                return measured(bounded, f"{found}: {errors}")
    return refuted("no example among the maps")


# --- the tables ----------------------------------------------------------------------------------

Scores = Mapping[str, Sequence[float]]
"""Setting and base method → its figure alone, with CAOTE, with FastCAOTE."""
WRAPPERS = ("CAOTE", "FastCAOTE")


def legible(table: Scores) -> dict[str, Sequence[float]]:
    """Rows of which our copy shows all figures."""
    return {name: row for name, row in table.items() if not np.isnan(row).any()}


def regressions(table: Scores, better: int) -> list[str]:
    """Figures that CAOTE or FastCAOTE does not improve; ``better`` is −1 where less is better."""
    return [
        f"{name} with {wrapper}: {row[0]} → {row[1 + i]}"
        for name, row in table.items()
        for i, wrapper in enumerate(WRAPPERS)
        if not better * (row[1 + i] - row[0]) > 0 and not np.isnan([row[0], row[1 + i]]).any()
    ]


def pairs(table: Scores) -> int:
    """Legible pairs of a figure alone and one with CAOTE or FastCAOTE."""
    return sum(not np.isnan([row[0], x]).any() for row in table.values() for x in row[1:])


def improvements(table: Scores, better: int, mostly: float) -> Finding:
    """Judge the claim that every base method improves by CAOTE or by FastCAOTE."""
    worse, total = regressions(table, better), pairs(table)
    neither = [
        name for name in table if sum(each.startswith(f"{name} with") for each in worse) == 2
    ]
    share = f"{total - len(worse)} of {total} figures improve"
    if not neither:
        return verified(share)
    return refuted(
        f"neither improves {', '.join(neither)}",
        f"the paper's own figures; those that do not improve: {'; '.join(worse)}",
        share,
        total - len(worse) > mostly * total,
    )


@PAPER.printed("CA-11a", "Appendix C.2 on Table 9", Verdict.REFUTED)
@right("the figures improve", table={"one": (2.0, 1.0, 1.0)})
@false("the reading says three quarters", mostly=0.75)
def perplexity_always_improves(*, table: Scores | None = None, mostly: float = 0.6) -> Finding:
    """With CAOTE every method's perplexity on the Qwen 2.5 models improves; FastCAOTE counts,
    too.
    """
    return improvements(table or TABLES["perplexity"], -1, mostly)


@PAPER.printed("CA-11b", "Abstract and C.1 on Tables 2, 3, 7, 8", Verdict.REFUTED)
@right("the figures improve", table={"one": (1.0, 2.0, 2.0)})
@false("the reading says all", mostly=1.0)
def longbench_always_improves(*, table: Scores | None = None, mostly: float = 0.9) -> Finding:
    """On LongBench every base method gains accuracy by CAOTE or by FastCAOTE, always.

    All averages of Tables 2, 3, 7 and 8 that our copy shows.
    """
    return improvements(table or TABLES["longbench"], 1, mostly)


@PAPER.printed("CA-11d", "Abstract, §1 and C.3 on Tables 5 and 10", Verdict.REFUTED)
@right("the figures improve", table={"one": (0.1, 0.2, 0.2)})
@false("the reading says all", mostly=1.0)
def needles_always_improve(*, table: Scores | None = None, mostly: float = 0.8) -> Finding:
    """Every base method finds more needles with CAOTE; FastCAOTE counts, too."""
    return improvements(table or TABLES["needle"], 1, mostly)


@PAPER.printed("CA-11g", "§4.2 on Tables 2 and 3", Verdict.VERIFIED)
@false("SnapKV improves as much", base="SnapKV")
def h2o_improves_by_a_third(*, base: str = "H2O") -> Finding:
    """At budgets of 2k and 4k, H2O improves by more than 30 % with CAOTE."""
    rows = {n: r for n, r in TABLES["longbench"].items() if n.endswith(base) and n.split()[1] < "6"}
    gains = [x / row[0] - 1 for row in rows.values() for x in row[1:] if not np.isnan(x / row[0])]
    return measured(min(gains) > 0.3, f"{len(gains)} legible gains, the least {min(gains):.0%}")


@PAPER.printed("CA-11c", "§4.2, §4.4 and Appendix C", Verdict.REFUTED)
@right("the table has one winner", named={"longbench": {"Qwen2.5-7B 2k": "SnapKV+FastCAOTE"}})
def named_winners_are_the_best(*, named: Mapping[str, Mapping[str, str]] | None = None) -> Finding:
    """The methods that the text calls best have the best figure of their table."""
    wrong, total = [], 0
    for table, winners in (named or TABLES["winners"]).items():
        better = -1 if table == "perplexity" else 1
        for setting, winner in winners.items():
            figures = _figures(TABLES[table], setting)
            if winner not in figures:
                continue
            total += 1
            best = max(figures, key=lambda method: better * figures[method])
            if figures[best] != figures[winner]:
                wrong.append(
                    f"{table}, {setting}: {winner} {figures[winner]}, but {best} {figures[best]}"
                )
    return tabulated(wrong, total, "named methods have the best figure")


def _figures(table: Scores, setting: str) -> dict[str, float]:
    """Legible figures of one setting by method."""
    bases = {name.split()[-1]: row for name, row in table.items() if name.startswith(setting)}
    columns = ("", *(f"+{wrapper}" for wrapper in WRAPPERS))
    every = {b + c: x for b, row in bases.items() for c, x in zip(columns, row, strict=True)}
    return {method: x for method, x in every.items() if not np.isnan(x)}


@PAPER.printed("CA-11e", "Tables 2, 3, 7 and 8, column Avg", Verdict.REFUTED)
@right("the table holds the mean", table={"one": [*range(16), 7.5]})
def averages_are_means(*, table: Mapping[str, Sequence[float]] | None = None) -> Finding:
    """The averages of the LongBench tables are the means of their 16 tasks.

    All rows that our copy gives in full.
    """
    rows = table or TABLES["tasks"]
    off = [
        f"{name}: the mean is {np.mean(row[:-1]):.2f}, {row[-1]} is printed"
        for name, row in rows.items()
        if abs(np.mean(row[:-1]) - row[-1]) > 0.016
    ]
    return tabulated(off, len(rows), "averages are the mean of their row")


@PAPER.printed("CA-12", "§4.5 on Table 6", Verdict.REFUTED)
@right("whole prompts are best for TOVA", best=2, methods=("TOVA+CAOTE",))
@false("the reading says that 32 is best in two cells", won=2)
def smaller_blocks_are_better(
    *,
    best: int = 0,
    methods: Sequence[str] = ("H2O+CAOTE", "TOVA+CAOTE", "SnapKV+CAOTE"),
    won: int = 1,
) -> Finding:
    """The smaller the block of the prompt, the better is CAOTE, as blocks of 32 tokens show.

    HotpotQA with the whole prompt in one block is left out: it ran on 114 of the 200 samples.
    """
    cells = {
        f"{m}, {task}": [*row[:2], np.nan] if task == "HotpotQA" else row
        for m in methods
        for task, row in TABLES["blocks"][m].items()
    }
    worse = [
        f"{where}: {row[best]} against {np.nanmax(row)}"
        for where, row in cells.items()
        if row[best] < np.nanmax(row)
    ]
    above_128 = sum(row[0] > row[1] for row in cells.values())
    gains = [_gains(where, row) for where, row in cells.items()]
    most = sum(bool(gain[best] == np.nanmax(gain)) for gain in gains)
    reading = (
        f"32 is best in {won} of {len(cells)} cells, and better than 128 in {above_128}; what "
        f"CAOTE adds to its base method is most for 32 in {most}"
    )
    right = len(cells) - len(worse) == won and most < len(cells)
    return tabulated(worse, len(cells), "cells are best", reading if right else "")


def _gains(where: str, row: Sequence[float]) -> Array:
    """What CAOTE adds to its base method in a cell of Table 6, to two digits, by block size."""
    method, task = where.split(", ")
    return np.round(np.subtract(row, TABLES["blocks"][method.removesuffix("+CAOTE")][task]), 2)


@PAPER.ours("CA-12b", "Table 6 against Table 2", Verdict.VERIFIED)
@false("TOVA's figures agree, too", differ=())
def tables_2_and_6_differ_for_tova(*, differ: Sequence[str] = ("TOVA",)) -> Finding:
    """For the same setting, Llama-3.2-3B with 4k and blocks of 128, Tables 2 and 6 print the same
    figures for H2O and others for TOVA.
    """
    order = {"HotpotQA": 3, "Qasper": 1, "GovReport": 6, "TREC": 9, "LCC": 14}
    off = {
        base: [
            f"{task} {TABLES['blocks'][base][task][1]} and {row[column]}"
            for task, column in order.items()
            if TABLES["blocks"][base][task][1] != row[column]
        ]
        for base in ("H2O", "TOVA")
        if (row := TABLES["tasks"][f"Llama-3.2-3B 4k {base}"])
    }
    text = "; ".join(f"{base}: {', '.join(each)}" for base, each in off.items() if each)
    return measured({base for base, each in off.items() if each} == set(differ), text or "none")
