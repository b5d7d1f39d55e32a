"""AhaKV's claims (arXiv 2506.03762), as its public summaries state them.

The paper itself could not be read: what is called refuted here is refuted as summarised. Logits are
modelled as the paper does, as independent Gaussians of variance s²; a softmax over i of them is a
random energy model with i levels.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise, permutations
from math import exp, log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import mpmath
import numpy as np
import sympy
from jaxtyping import Float

from kvlab.reference.notation import Array
from kvlab.reference.proofs.algebra import identity
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    asymptotic,
    exhaustive,
    refuted,
    verified,
)
from kvlab.reference.proofs.observed import observe
from kvlab.reference.proofs.ranks import spearman

PAPER = Paper("ahakv", "AhaKV", "arXiv 2506.03762, as summarised")

STANDARD_ERRORS = 4
"""How far a sampled mean may be off: a false alarm once in 16,000 comparisons."""
ROUNDING = 1e-9
"""Two float64 computations of one quantity in another order, relative."""

Formula = Callable[[float, float], float]


# --- definitions ---------------------------------------------------------------------------------


def softmax(logits: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """e^x divided by its sum over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def entropies(logits: Float[Array, "draws i"]) -> Float[Array, " draws"]:
    """Entropy in nats of every row's softmax."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    return np.log(total) - (weights * shifted).sum(axis=-1) / total


@cache
def gaussians(i: int, draws: int) -> Float[Array, "draws i"]:
    """Independent standard normals, the same at every call."""
    return np.random.default_rng(i).normal(size=(draws, i))


def mean_entropy(i: int, deviation: float, draws: int = 400) -> tuple[float, float]:
    """Monte Carlo mean of the entropy of i Gaussian logits, and its standard error."""
    found = entropies(deviation * gaussians(i, draws))
    return float(found.mean()), float(found.std(ddof=1) / sqrt(draws))


def step_gain(i: int, k: int) -> float:
    """Deviation of SG-softmax's logits: λ√d = √(2 ln(i/k)), for keys and queries of variance 1."""
    return sqrt(2 * log(i / k))


def frozen_exponent(i: int, s: float) -> float:
    """Exponent μ of the Poisson-Dirichlet weights of i Gaussian logits of deviation s."""
    return NormalDist().inv_cdf(1 - 1 / i) / s


def frozen_mean(mu: float) -> float:
    """Mean entropy ψ(1) − ψ(1 − μ) of Poisson-Dirichlet weights; infinite from μ = 1 on."""
    return float(mpmath.digamma(1) - mpmath.digamma(1 - mu)) if mu < 1 else np.inf


def harmonic(n: int) -> Fraction:
    """1 + 1/2 + … + 1/n."""
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


def expected_attention(weights: Sequence[int], gain: int = 1) -> list[Fraction]:
    """Mean attention to every position over all orders of one row of weights e^x, at a gain."""
    sharp = [w**gain for w in weights]
    orders = list(permutations(sharp))
    return [
        sum((Fraction(order[j], sum(sharp)) for order in orders), Fraction(0)) / len(orders)
        for j in range(len(weights))
    ]


def expected_score(n: int, first_row: int, j: int) -> Fraction:
    """Σ of 1/i over the rows from ``first_row`` to n that see position j (from 1)."""
    return sum((Fraction(1, i) for i in range(max(first_row, j), n + 1)), Fraction(0))


# --- §4.1: positional bias -----------------------------------------------------------------------


@PAPER.claim("AK-1", "Eq. 4", Verdict.EXHAUSTIVE)
def accumulated_attention_falls_with_position(
    *, difference: Callable[[int], Fraction] = lambda j: Fraction(-1, j), largest: int = 40
) -> Finding:
    """If the logits of a row are exchangeable, the expected accumulated attention S_j falls with
    every position, by exactly E[S_j+1] − E[S_j] = −1/j.

    Averaging a row of any weights over all orders gives 1/i at each position; the rest is a sum.
    """
    rng = np.random.default_rng(0)
    for i in range(1, 7):
        weights = rng.integers(1, 50, size=i).tolist()
        if expected_attention(weights) != [Fraction(1, i)] * i:
            return refuted(f"a row of weights {weights} does not average to 1/{i}")
    for n in range(2, largest + 1):
        scores = [expected_score(n, 1, j) for j in range(1, n + 1)]
        for j in range(1, n):
            if scores[j] - scores[j - 1] != difference(j):
                return refuted(
                    f"n = {n}, j = {j}: the difference is {scores[j] - scores[j - 1]}, "
                    f"{difference(j)} is claimed"
                )
    return exhaustive(
        f"exact: rows of 1 to 6 over all orders, sums for every n up to {largest}; n = 4: "
        + ", ".join(str(expected_score(4, 1, j)) for j in range(1, 5))
    )


@PAPER.claim("AK-1b", "Eq. 4, against a usual remedy", Verdict.EXHAUSTIVE)
def averaging_keeps_the_bias(
    *, rows: Callable[[int, int], Any] = lambda n, j: n - j + 1, largest: int = 120
) -> Finding:
    """Dividing S_j by the number of rows that saw entry j, n − j + 1, does not remove the bias: the
    expected mean still falls with every position.
    """
    sums = [harmonic(m) for m in range(largest + 1)]
    for n in range(2, largest + 1):
        means = [(sums[n] - sums[j - 1]) / rows(n, j) for j in range(1, n + 1)]
        rising = next((j for j in range(1, n) if not means[j] < means[j - 1]), None)
        if rising is not None:
            return refuted(f"n = {n}: position {rising} has {means[rising - 1]}, the next as much")
    return exhaustive(f"exact fractions for every n up to {largest}")


@PAPER.claim("AK-2", "Eq. 5", Verdict.EXHAUSTIVE)
def recent_rows_have_no_bias(
    *, first_row: Callable[[int, int], int] = lambda n, r: n - r + 1, largest: int = 30
) -> Finding:
    """Summed over the last r rows alone, all candidates j ≤ n − r + 1 have the same expected score.

    It is H_n − H_(n−r), H being harmonic numbers.
    """
    for n in range(2, largest + 1):
        for r in range(1, n):
            expected = harmonic(n) - harmonic(n - r)
            for j in range(1, n - r + 2):
                score = expected_score(n, first_row(n, r), j)
                if score != expected:
                    return refuted(f"n = {n}, r = {r}, j = {j}: {score} instead of {expected}")
    return exhaustive(f"exact fractions for every n up to {largest} and every r below n")


@PAPER.claim("AK-2b", "Eq. 5 and its text", Verdict.REFUTED, ("rows summed",))
def recent_sum_has_r_rows(
    *,
    first_row: Callable[[int, int], int] = lambda n, r: n - r,
    reading: Callable[[int, int], int] = lambda n, r: n - r + 1,
) -> Finding:
    """The printed sum over i = n − r … n has r terms, r being the number of recent tokens."""
    sizes = [(n, r) for n in range(2, 12) for r in range(1, n)]
    wrong = next(((n, r) for n, r in sizes if n - first_row(n, r) + 1 != r), None)
    if wrong is None:
        return verified(f"{len(sizes)} sizes")
    n, r = wrong
    holds = all(n - reading(n, r) + 1 == r for n, r in sizes)
    return refuted(
        f"n = {n}, r = {r}: rows {first_row(n, r)} to {n} are {n - first_row(n, r) + 1}",
        f"counted for {len(sizes)} sizes; either way all candidates get equally many terms",
        "the sum starts at i = n − r + 1" if holds else "",
    )


@PAPER.claim("AK-2c", "Mechanism 1 and abstract", Verdict.REFUTED)
def sharpening_lessens_the_bias(
    *,
    expectation: Callable[[Sequence[int], int], list[Fraction]] = expected_attention,
    spread_rises: bool = True,
) -> Finding:
    """A sharper softmax lessens the positional bias of accumulated attention.

    Exact averages over all orders of rows of up to five weights, at gains 1, 2 and 3.
    """
    rows = [(1, 2), (1, 2, 5), (1, 3, 4, 9), (2, 3, 5, 7, 11)]
    changed = next(
        (row for row in rows for g in (2, 3) if expectation(row, g) != expectation(row, 1)), None
    )
    if changed is not None:
        return verified(f"weights {changed}: the expected attention changes with the gain")
    spreads = [[_second_moment(row, g) for g in (1, 2, 3)] for row in rows]
    holds = all((a < b < c) == spread_rises for a, b, c in spreads)
    return refuted(
        f"weights {rows[1]}: every position has 1/3 at gains 1, 2 and 3",
        f"exact, {len(rows)} rows of 2 to 5 weights",
        "sharpening changes how much single scores scatter, not what is expected; recent "
        "accumulation alone removes the bias"
        if holds
        else "",
    )


def _second_moment(weights: Sequence[int], gain: int) -> Fraction:
    """Mean square of the attention to a position over all orders: to an entry, by symmetry."""
    sharp = [w**gain for w in weights]
    return sum((Fraction(w, sum(sharp)) ** 2 for w in sharp), Fraction(0)) / len(sharp)


@PAPER.claim("AK-10", "Eq. 4's assumption", Verdict.REFUTED)
def positions_are_exchangeable(*, model: Path, tolerance: float = 0.25, falls: int = -1) -> Finding:
    """All entries that a token sees can expect the same attention, wherever they stand.

    Measured on the embedded model: the attention of its last 60 rows to the quarters of the first
    two thirds of the text, relative to equal shares, mean over heads.
    """
    shares, correlations = [], []
    for head in observe(model):
        rows = head.attention()
        t = len(rows)
        equal = np.tril(np.ones((t, t))) / np.arange(1, t + 1)[:, None]
        quarters = np.array_split(np.arange(2 * t // 3), 4)
        recent, fair = rows[-60:].mean(axis=0), equal[-60:].mean(axis=0)
        shares.append([recent[q].sum() / fair[q].sum() for q in quarters])
        correlations.append(spearman(np.arange(t), rows.sum(axis=0)))
    mean, correlation = np.mean(shares, axis=0), float(np.mean(correlations))
    evidence = (
        f"{len(shares)} heads: quarters get {', '.join(f'{x:.2f}' for x in mean)} of an equal "
        f"share; rank correlation of accumulated attention with position {correlation:.2f} "
        f"({min(correlations):.2f} to {max(correlations):.2f})"
    )
    figures = {"quarters": mean.tolist(), "correlation": correlation}
    if (abs(mean - 1) <= tolerance).all():
        return verified(evidence, **figures)
    worst = int(abs(mean - 1).argmax())
    return refuted(
        f"quarter {worst + 1} gets {mean[worst]:.2f} of an equal share",
        evidence,
        "accumulated attention falls with position all the same, but not by Eq. 4's law"
        if falls * correlation > 0.2
        else "",
        **figures,
    )


# --- §4.2: entropy -------------------------------------------------------------------------------


@PAPER.claim("AK-3", "§4.2, E[H] and its proof", Verdict.ASYMPTOTIC)
def entropy_of_gaussian_logits(
    *, formula: Formula = lambda i, s2: log(i) - s2 / 2, draws: int = 400
) -> Finding:
    """The expected entropy of a softmax over i Gaussian logits of variance s² is ln i − s²/2.

    The model has two phases that meet at s² = 2 ln i. Inside the first, the error shrinks with i;
    the claim is held to 0.03 nats up to s² = ¼ ln i, to 0.1 up to ½ ln i.
    """
    errors: dict[str, float] = {}
    for i in (256, 1024, 4096):
        for part, allowed in ((0.1, 0.03), (0.25, 0.03), (0.5, 0.1)):
            s2 = part * log(i)
            mean, error = mean_entropy(i, sqrt(s2), draws)
            off = mean - formula(i, s2)
            errors[f"i = {i}, s² = {part} ln i"] = off
            if abs(off) > allowed + STANDARD_ERRORS * error:
                return refuted(f"i = {i}, s² = {s2:.3f}: {mean:.3f}, formula {formula(i, s2):.3f}")
    at_half = [errors[f"i = {i}, s² = 0.5 ln i"] for i in (256, 1024, 4096)]
    beyond = {part: mean_entropy(4096, sqrt(part * log(4096)), draws)[0] for part in (1.0, 2.0)}
    gaps = {part: beyond[part] - formula(4096, part * log(4096)) for part in beyond}
    return asymptotic(
        f"Monte Carlo, {draws} draws: off by at most {max(map(abs, errors.values())):.3f} nats; at "
        f"s² = ½ ln i by {', '.join(f'{x:.3f}' for x in at_half)} for i = 256, 1024, 4096. It "
        f"breaks towards s² = 2 ln i: at i = 4096 off by {gaps[1.0]:.2f} at s² = ln i and by "
        f"{gaps[2.0]:.2f} at s² = 2 ln i",
        errors=errors,
    )


@PAPER.claim("AK-3b", "§4.2, the other phase", Verdict.ASYMPTOTIC)
def frozen_entropy(
    *,
    exponent: Callable[[int, float], float] = frozen_exponent,
    draws: int = 400,
) -> Finding:
    """Beyond s² = 2 ln i few logits share all attention: the weights are Poisson-Dirichlet, and
    E[H] = ψ(1) − ψ(1 − μ) with μ = Φ⁻¹(1 − 1/i)/s at finite i.

    Held to 8 % from s² = 6 ln i on.
    """
    worst = 0.0
    for i in (256, 1024, 4096):
        for part in (6, 10):
            s = sqrt(part * log(i))
            mean, error = mean_entropy(i, s, draws)
            claimed = frozen_mean(exponent(i, s))
            worst = max(worst, abs(claimed - mean) / mean)
            if abs(claimed - mean) > 0.08 * mean + STANDARD_ERRORS * error:
                return refuted(f"i = {i}, s² = {part} ln i: {mean:.3f}, formula {claimed:.3f}")
    return asymptotic(
        f"Monte Carlo, {draws} draws, i = 256 to 4096, s² = 6 and 10 ln i: within {worst:.1%}"
    )


@PAPER.claim("AK-3c", "§4.2, E[H] = log i − d/2", Verdict.REFUTED, ("what λ multiplies",))
def entropy_of_unscaled_products(
    *,
    deviation: Callable[[int], float] = lambda d: sqrt(d),
    formula: Formula = lambda i, d: log(i) - d / 2,
    reading: Formula = lambda i, d: log(i) - 0.5,
    i: int = 4096,
    d: int = 64,
) -> Finding:
    """With query and key entries of variance 1, the expected entropy is log i − d/2.

    That is AK-3 with s² = d, the variance of q·k without 1/√d. i = 4096, d = 64.
    """
    mean, error = mean_entropy(i, deviation(d))
    if abs(mean - formula(i, d)) <= 0.1 + STANDARD_ERRORS * error:
        return verified(f"i = {i}, d = {d}: measured {mean:.3f}")
    scaled, scaled_error = mean_entropy(i, 1.0)
    holds = abs(scaled - reading(i, d)) <= 0.03 + STANDARD_ERRORS * scaled_error
    return refuted(
        f"i = {i}, d = {d}: the formula gives {formula(i, d):.2f}, an entropy cannot be negative; "
        f"measured {mean:.2f}",
        f"Monte Carlo; unscaled logits are frozen for every i below e^(d/2) = {np.exp(d / 2):.1e}; "
        f"scaled by 1/√d: {scaled:.3f}",
        "with logits q·k/√d it is log i − 1/2" if holds else "",
    )


@PAPER.claim("AK-4", "Eq. 12", Verdict.PROVED)
def lambda_solves_for_the_budget(
    *, scale: Callable[[Any, Any, Any], Any] = lambda i, k, d: sympy.sqrt(2 * sympy.log(i / k) / d)
) -> Finding:
    """λ = √(2 log(i/k)/d) makes log i − λ²d/2 equal to log k, for i > k.

    It is the only positive solution: the left side falls strictly in λ > 0.
    """
    i, k, d = sympy.symbols("i k d", positive=True)
    left = sympy.expand_log(sympy.log(i) - scale(i, k, d) ** 2 * d / 2)
    return identity(left, sympy.log(k), "i, k and d are any positive numbers with i > k")


@PAPER.claim("AK-4b", "Eq. 12 on the usual logits", Verdict.REFUTED, ("what λ multiplies",))
def lambda_multiplies_the_scaled_logits(
    *,
    deviation: Formula = lambda gain, d: gain / sqrt(d),
    reading: Formula = lambda gain, d: gain,
    i: int = 3600,
    k: int = 720,
    d: int = 128,
) -> Finding:
    """λ times the usual logits q·k/√d brings exp(E[H]) to k tokens.

    i = 3600, k = 720, d = 128, the paper's setting.
    """
    gain = step_gain(i, k)
    mean, _ = mean_entropy(i, deviation(gain, d), draws=200)
    if abs(mean - log(k)) <= 0.15:
        return verified(f"exp(E[H]) = {np.exp(mean):.0f} at k = {k}")
    other, _ = mean_entropy(i, reading(gain, d), draws=200)
    holds = abs(other - log(k)) <= 0.15
    return refuted(
        f"the logits' deviation becomes {deviation(gain, d):.2f}: exp(E[H]) = {np.exp(mean):.0f} "
        f"of {i} tokens, flatter than before",
        f"Monte Carlo; with λ in place of 1/√d: {np.exp(other):.0f} tokens for k = {k}",
        "λ replaces 1/√d: the usual logits are multiplied by λ√d = √(2 log(i/k))" if holds else "",
    )


BIAS_SIZES = ((1024, 720), (8192, 720), (4096, 500), (4096, 256), (4096, 64), (4096, 16))


@PAPER.claim("AK-5", "§4.2, what the gain achieves", Verdict.ASYMPTOTIC)
def gain_reaches_the_budget(
    *, gain: Callable[[int, int], float] = step_gain, trusted: float = 60, draws: int = 200
) -> Finding:
    """Under SG-softmax exp(E[H]) approaches k as k²/i grows.

    k²/i is the collision number 1/Σp²: below it, too few samples carry the weight. Held to 0.1
    nats where k²/i is at least 60, and to a bias that rises as k²/i falls.
    """
    biases = {}
    for i, k in BIAS_SIZES:
        mean, error = mean_entropy(i, gain(i, k), draws)
        biases[i, k] = mean - log(k)
        if k * k / i >= trusted and abs(biases[i, k]) > 0.1 + STANDARD_ERRORS * error:
            return refuted(f"i = {i}, k = {k}: off by {biases[i, k]:.3f} nats")
    ordered = [biases[size] for size in sorted(BIAS_SIZES, key=lambda s: -(s[1] ** 2) / s[0])]
    if any(later < earlier - 0.02 for earlier, later in pairwise(ordered)):
        return refuted(f"the bias does not rise as k²/i falls: {ordered}")
    return asymptotic(
        "bias in nats by (i, k; k²/i): "
        + ", ".join(f"({i}, {k}; {k * k / i:.3g}) {bias:.2f}" for (i, k), bias in biases.items()),
        biases={f"{i},{k}": bias for (i, k), bias in biases.items()},
    )


@PAPER.claim("AK-5b", "Eq. 12 with small budgets", Verdict.REFUTED)
def exponential_of_entropy_counts_the_budget(
    *,
    gain: Callable[[int, int], float] = step_gain,
    sizes: Sequence[tuple[int, int]] = ((4096, 16),),
    least: float = 8.0,
    draws: int = 600,
) -> Finding:
    """At the λ of Eq. 12, exp(E[H]) is k, whatever i and k.

    i = 4096, k = 16. The weight of a softmax sits near s standard deviations above the mean, s
    being the logits' deviation; if the largest of i samples lies there, too, half of it is missing.
    """
    for i, k in sizes:
        mean, error = mean_entropy(i, gain(i, k), draws)
        if abs(mean - log(k)) <= 0.1 + STANDARD_ERRORS * error:
            continue
        largest, s = float(gaussians(i, draws).max(axis=1).mean()), gain(i, k)
        missing = 1 - NormalDist(s).cdf(largest)
        return refuted(
            f"i = {i}, k = {k}: exp(E[H]) = {np.exp(mean):.1f} (± {np.exp(mean) * error:.1f})",
            f"Monte Carlo, {draws} draws: the weight is centred {s:.2f} deviations above the mean, "
            f"the largest of {i} samples is {largest:.2f}: {missing:.0%} of it has no sample",
            f"within 0.1 nats for k ≥ {least:g}·√i" if _trusted(least) else "",
            tokens=float(np.exp(mean)),
        )
    return verified(f"{len(sizes)} sizes within 0.1 nats")


def _trusted(least: float) -> bool:
    sizes = [(i, int(np.ceil(least * sqrt(i)))) for i in (256, 1024, 4096)]
    return all(
        abs(mean_entropy(i, step_gain(i, k), 200)[0] - log(k)) <= 0.1 for i, k in sizes if k < i
    )


@PAPER.claim("AK-5c", "§4.2, collision number", Verdict.ASYMPTOTIC)
def collision_number(
    *, claimed: Formula = lambda i, k: k * k / i, largest_error: float = 0.1
) -> Finding:
    """Under SG-softmax 1/E[Σp²] approaches k²/i as that grows, far below the entropy's k.

    Held to 10 % where k²/i is at least 240.
    """
    found = {}
    for i, k in ((1024, 720), (4096, 1000), (8192, 1000)):
        p = softmax(step_gain(i, k) * gaussians(i, 800))
        found[i, k] = float(1 / (p**2).sum(axis=1).mean())
        off = found[i, k] / claimed(i, k) - 1
        if k * k / i >= 240 and abs(off) > largest_error:
            return refuted(f"i = {i}, k = {k}: {found[i, k]:.1f}, claimed {claimed(i, k):.1f}")
    return asymptotic(
        "Monte Carlo, 800 draws, measured for k²/i: "
        + ", ".join(
            f"{x:.0f} for {k * k / i:.0f} (i = {i}, k = {k})" for (i, k), x in found.items()
        )
    )


@PAPER.claim("AK-6", "Break condition, heavy tails", Verdict.REFUTED, ("variance of the logits",))
def any_logits_of_unit_variance_will_do(
    *,
    samplers: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] | None = None,
    reading_deviation: float = 1.0,
    i: int = 4096,
    k: int = 720,
) -> Finding:
    """The gain brings exp(E[H]) to k for logits of variance 1, whatever their distribution."""
    rng = np.random.default_rng(0)
    found = {
        name: float(entropies(step_gain(i, k) * sample(rng, (100, i))).mean())
        for name, sample in (samplers or UNIT_VARIANCE).items()
    }
    evidence = f"E[H] at i = {i}, k = {k}, ln k = {log(k):.2f}: " + ", ".join(
        f"{name} {mean:.2f}" for name, mean in found.items()
    )
    off = {name: mean for name, mean in found.items() if abs(mean - log(k)) > 0.2}
    if not off:
        return verified(evidence, **found)
    gaussian, _ = mean_entropy(i, reading_deviation * step_gain(i, k), 100)
    worst = max(off, key=lambda name: abs(off[name] - log(k)))
    return refuted(
        f"{worst}: exp(E[H]) = {np.exp(off[worst]):.1f} instead of {k}",
        evidence,
        "it does for Gaussian logits" if abs(gaussian - log(k)) <= 0.1 else "",
        **found,
    )


UNIT_VARIANCE: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "Student t, 5 degrees": lambda rng, shape: rng.standard_t(5, size=shape) / sqrt(5 / 3),
    "Laplace": lambda rng, shape: rng.laplace(scale=1 / sqrt(2), size=shape),
    "uniform": lambda rng, shape: rng.uniform(-sqrt(3), sqrt(3), size=shape),
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
}


@PAPER.claim("AK-6b", "Eq. 12, assumed variance", Verdict.REFUTED, ("variance of the logits",))
def gain_does_not_depend_on_the_variance(
    *,
    gain: Callable[[Array, float], float] = lambda x, target: target,
    reading: Callable[[Array, float], float] = lambda x, target: target / float(x.std()),
    i: int = 4096,
    k: int = 1000,
) -> Finding:
    """The gain √(2 log(i/k)) brings exp(E[H]) to k whatever scale and mean the model's logits have.

    Gaussian logits a·x + b.
    """
    target, draws = step_gain(i, k), gaussians(i, 100)

    def tokens(rule: Callable[[Array, float], float], a: float, b: float) -> float:
        rows = a * draws + b
        return float(np.exp(np.mean([entropies(rule(x, target) * x[None])[0] for x in rows])))

    maps = ((1.0, 0.0), (2.0, 0.0), (0.5, 3.0))
    found = [tokens(gain, a, b) for a, b in maps]
    if max(abs(np.log(x / k)) for x in found) <= 0.1:
        return verified(f"{', '.join(f'{x:.0f}' for x in found)} tokens for k = {k}")
    measured = [tokens(reading, a, b) for a, b in maps]
    return refuted(
        f"i = {i}, k = {k}: logits twice as wide leave {found[1]:.0f} tokens",
        f"scale and mean {maps}: {', '.join(f'{x:.0f}' for x in found)} tokens; with the measured "
        f"deviation {', '.join(f'{x:.0f}' for x in measured)}",
        "it does if divided by the row's measured deviation (gain=measured)"
        if max(abs(np.log(x / k)) for x in measured) <= 0.1
        else "",
    )


@PAPER.claim("AK-8", "Mechanism 1, 'counteracts flattening'", Verdict.REFUTED, ("gain below 1",))
def gain_always_sharpens(
    *,
    gain: Callable[[Any, Any], Any] = lambda i, k: sympy.sqrt(2 * sympy.log(i / k)),
    least_ratio: float = exp(0.5),
    k: int = 720,
) -> Finding:
    """For every i above k, SG-softmax is sharper than the ordinary softmax: its gain exceeds 1."""
    flat = [i for i in range(k + 1, 3 * k) if float(gain(sympy.Integer(i), k)) <= 1]
    if not flat:
        return verified(f"k = {k}, every i from {k + 1} to {3 * k}")
    holds = all((i < least_ratio * k) == (i in flat) for i in range(k + 1, 3 * k))
    return refuted(
        f"k = {k}, i = {flat[0]}: gain {float(gain(sympy.Integer(flat[0]), k)):.4f}; below 1 up to "
        f"i = {flat[-1]}",
        f"every i from {k + 1} to {3 * k}",
        "the gain exceeds 1 from i = √e·k = 1.65·k on" if holds else "",
    )


@PAPER.claim("AK-9", "Eq. 12 while decoding", Verdict.REFUTED, ("i while decoding",))
def budget_stays_effective_while_decoding(
    *,
    tokens: Formula = lambda t, B: B,
    reading: Formula = lambda t, B: B * B / t,
    budget: int = 720,
    draws: int = 300,
) -> Finding:
    """With i the absolute position t, exp(E[H]) stays at k = B tokens while a cache of B entries
    decodes.

    Only B entries compete, whatever t is.
    """
    found = {
        t: float(np.exp(mean_entropy(budget, step_gain(t, budget), draws)[0]))
        for t in (1000, 2048, 4096, 32768)
    }
    evidence = ", ".join(f"t = {t}: {x:.0f} tokens" for t, x in found.items())
    wrong = [t for t in found if abs(log(found[t] / tokens(t, budget))) > 0.1]
    if not wrong:
        return verified(evidence)
    holds = all(abs(log(found[t] / reading(t, budget))) <= 0.1 for t in (1000, 2048, 4096))
    return refuted(
        f"B = {budget}, t = {wrong[0]}: {found[wrong[0]]:.0f} tokens",
        f"Monte Carlo, B = {budget}: {evidence}",
        "about B²/t tokens stay effective while t ≪ B²; the attention sharpens ever more"
        if holds
        else "",
        **{f"t={t}": x for t, x in found.items()},
    )


# --- §4.3: the value prior -----------------------------------------------------------------------


def value_prior(
    values: Float[Array, "n d"], kernel: int = 5, power: float = 2
) -> Float[Array, " n"]:
    """γ̄ of Eq. 13-14: smoothed norms, divided by their maximum; borders average what is there."""
    norms = np.linalg.norm(values, axis=1) ** power
    half = kernel // 2
    smooth = np.array([norms[max(0, j - half) : j + half + 1].mean() for j in range(len(norms))])
    return smooth / smooth.max()


@PAPER.claim("AK-7", "Eq. 13-15", Verdict.VERIFIED, ("value prior",))
def value_prior_has_no_scale(
    *,
    prior: Callable[[Array], Array] = value_prior,
    draws: int = 300,
) -> Finding:
    """The value prior lies in (0, 1], reaches 1, and does not change when all values are scaled."""
    rng = np.random.default_rng(0)
    for _ in range(draws):
        values = rng.normal(size=(int(rng.integers(1, 40)), int(rng.integers(1, 9))))
        factor = float(np.exp(3 * rng.normal()))
        found, scaled = prior(values), prior(factor * values)
        if not ((found > 0).all() and abs(found.max() - 1) <= ROUNDING):
            return refuted(f"{len(values)} values: from {found.min():.3g} to {found.max():.3g}")
        if abs(found - scaled).max() > ROUNDING:
            return refuted(
                f"values scaled by {factor:.3g} change it by {abs(found - scaled).max()}"
            )
    return verified(f"{draws} random caches of 1-39 entries, scales e^(3·N(0, 1))")


@PAPER.claim("AK-7b", "Eq. 13 and its text", Verdict.REFUTED, ("value prior",))
def square_and_norm_agree(
    *, powers: tuple[float, float] = (2, 1), reading_kernel: int = 1, draws: int = 200
) -> Finding:
    """Squared norms, as the formula has them, and norms, as the text says, rank entries alike."""
    rng = np.random.default_rng(1)
    caches = [rng.normal(size=(n, 1)) for n in range(2, 8) for _ in range(draws)]
    differ = next((v for v in caches if not _rank_alike(v, powers, 5)), None)
    if differ is None:
        return verified(f"{len(caches)} random caches of 2-7 entries")
    holds = all(_rank_alike(v, powers, reading_kernel) for v in caches)
    squares, norms = (np.argsort(value_prior(differ, 5, power)).tolist() for power in powers)
    return refuted(
        f"values {np.round(differ[:, 0], 3).tolist()}: in rising order {squares} by squares, "
        f"{norms} by norms",
        f"{len(caches)} random caches of 2-7 entries of one channel, kernel 5",
        "they do without smoothing (kernel 1), as far as the prior alone decides" if holds else "",
    )


def _rank_alike(values: Array, powers: tuple[float, float], kernel: int) -> bool:
    first, second = (np.argsort(value_prior(values, kernel, power)) for power in powers)
    return bool((first == second).all())
