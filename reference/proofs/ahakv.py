"""AhaKV's claims (arXiv 2506.03762), as a public summary states them.

The paper itself could not be read: what is called printed here is printed in the summary. Logits
are modelled as there, as independent Gaussians of variance s²; a softmax over i of them is a random
energy model with i levels.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise, permutations
from math import exp, log, sqrt
from statistics import NormalDist, mean
from typing import Any

import mpmath
import numpy as np
import sympy
from jaxtyping import Float
from scipy.special import softmax
from scipy.stats import entropy

from kvlab.reference.models import reasoner_directory
from kvlab.reference.notation import Array
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    asymptotic,
    exhaustive,
    judged,
    measured,
    refuted,
)
from kvlab.reference.proofs.definitions import ROUNDING, identity, random_caches, spearman, steps
from kvlab.reference.simulator.observed import observe_heads, surprise

PAPER = Paper("ahakv", "AhaKV", "arXiv 2506.03762, as summarised")
MODEL = reasoner_directory()

STANDARD_ERRORS = 4
"""How far a sampled mean may be off: a false alarm once in 16,000 comparisons."""


def entropies(logits: Float[Array, "draws i"]) -> Float[Array, " draws"]:
    """Entropy in nats of every row's softmax."""
    return np.asarray(entropy(softmax(logits, axis=1), axis=1))


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


def expected_score(n: int, first_row: int, j: int) -> Fraction:
    """Σ of 1/i over the rows from ``first_row`` to n that see position j (from 1)."""
    return sum((Fraction(1, i) for i in range(max(first_row, j), n + 1)), Fraction(0))


def gaussian_entropy() -> tuple[Any, Any]:
    """ln(i·E[eˣ]) − E[x·eˣ]/E[eˣ] from the moments of a Gaussian of variance s², and what it is."""
    x = sympy.symbols("x", real=True)
    s, i = sympy.symbols("s i", positive=True)
    density = sympy.exp(-(x**2) / (2 * s**2)) / (s * sympy.sqrt(2 * sympy.pi))
    mean, weighted = (
        sympy.simplify(sympy.integrate(density * f, (x, -sympy.oo, sympy.oo)).rewrite(sympy.erf))
        for f in (sympy.exp(x), x * sympy.exp(x))
    )
    return sympy.expand_log(sympy.log(i * mean)) - weighted / mean, sympy.log(i) - s**2 / 2


@PAPER.printed("AK-1", "Mechanism 2, Eq. 4", Verdict.PROVED)
def accumulated_attention_falls_with_position() -> Finding:
    """The expected accumulated attention S_j falls with every position, because earlier tokens take
    part in more rows: if the logits of a row are exchangeable, E[S_j+1] − E[S_j] = −1/j.
    """
    i, j, each = sympy.symbols("i j each", positive=True)
    (share,) = sympy.solve(i * each - 1, each)
    row_of_j_alone = share.subs(i, j)  # S_j and S_j+1 sum the same shares of all later rows
    return steps(
        "the i expectations of row i are equal and sum to 1: every n, every j",
        row=(1 / i, share),
        difference=(-1 / j, -row_of_j_alone),
    )


@PAPER.ours("AK-1b", "Eq. 4, against a usual remedy", Verdict.EXHAUSTIVE)
def averaging_keeps_the_bias() -> Finding:
    """Dividing S_j by the number of rows that saw entry j, n − j + 1, does not remove the bias: the
    expected mean still falls with every position.
    """
    H = [expected_score(m, 1, 1) for m in range(121)]
    for n in range(2, 121):
        means = [(H[n] - H[j - 1]) / (n - j + 1) for j in range(1, n + 1)]
        if any(later >= earlier for earlier, later in pairwise(means)):
            return refuted(f"n = {n}: means {', '.join(map(str, means))}")
    return exhaustive("exact fractions for every n up to 120")


@PAPER.printed("AK-2", "Mechanism 2, Eq. 5", Verdict.EXHAUSTIVE)
def recent_rows_have_no_bias() -> Finding:
    """Summed over the last r rows alone, every token adds up r rows and no position is favoured: in
    Eq. 4's model all candidates j ≤ n − r + 1 have the same expected score.
    """
    for n in range(2, 31):
        for r in range(1, n):
            scores = {expected_score(n, n - r + 1, j) for j in range(1, n - r + 2)}
            if len(scores) > 1:
                return refuted(f"n = {n}, r = {r}: scores {', '.join(map(str, scores))}")
    return exhaustive("exact fractions for every n up to 30 and every r below n")


@PAPER.printed("AK-2b", "Mechanism 2, Eq. 5", Verdict.REFUTED, "rows summed")
def recent_sum_has_r_rows() -> Finding:
    """The sum over i = n − r … n adds up exactly r rows, r being the number of recent tokens."""
    sizes = [(n, r) for n in range(2, 12) for r in range(1, n)]
    printed = [(range(n - r, n + 1), n, r) for n, r in sizes]
    reading = [(range(n - r + 1, n + 1), n, r) for n, r in sizes]
    wrong = [
        f"n = {n}, r = {r}: rows {rows[0]} to {rows[-1]} are {len(rows)}"
        for rows, n, r in printed
        if len(rows) != r
    ]
    return judged(
        next(iter(wrong), ""),
        f"counted for {len(sizes)} sizes; either way all candidates get equally many terms",
        "the sum starts at i = n − r + 1",
        all(len(rows) == r for rows, _, r in reading),
    )


@PAPER.printed("AK-2c", "Executive Summary", Verdict.REFUTED)
def sharpening_lessens_the_bias() -> Finding:
    """SG-softmax, a sharper softmax, and the size of values as a prior mitigate the positional bias
    of accumulated attention. (The sentence names these two; Confidence names recent accumulation
    beside SG-softmax.)

    In Eq. 4's own model. Where a row gives all its positions the same, what accumulates still
    depends on the number of rows alone.
    """
    favoured, shown, scattered = False, [], []
    for weights in ((1, 2), (1, 2, 5), (1, 3, 4, 9), (2, 3, 5, 7, 11)):
        moments = []
        for gain in (1, 2, 3):
            attention = [Fraction(w**gain, sum(x**gain for x in weights)) for w in weights]
            scores = [a / (1 + j) for j, a in enumerate(attention)]  # priors 1, 1/2, 1/3, …
            by_position = [mean(position) for position in zip(*permutations(scores), strict=True)]
            favoured |= len(set(by_position)) > 1
            if weights == (1, 2, 5):
                shown.append(str(by_position[0]))
            moments.append(mean([a**2 for a in attention]))
        scattered.append(moments[0] < moments[1] < moments[2])
    same = (
        f"weights (1, 2, 5), priors 1, 1/2, 1/3: each position expects {', '.join(shown[:2])} and "
        f"{shown[2]} at gains 1, 2 and 3"
    )
    return judged(
        "" if favoured else same,
        "exact, 4 rows of 2 to 5 weights, in all orders",
        "sharpening changes how much single scores scatter, and priors change which entries are "
        "kept, but neither changes which positions are favoured; recent accumulation alone removes "
        "the bias",
        all(scattered),
    )


@PAPER.ours("AK-10", "Eq. 4's model against real attention", Verdict.VERIFIED)
def positions_are_not_exchangeable() -> Finding:
    """The attention that an entry can expect depends on its position, which Eq. 4's proof excludes;
    but accumulated attention falls with position all the same.
    """
    shares, correlations = [], []
    for head in observe_heads(MODEL):
        rows = head.attention()
        t = len(rows)
        equal = np.tril(np.ones((t, t))) / np.arange(1, t + 1)[:, None]
        quarters = np.array_split(np.arange(2 * t // 3), 4)
        recent, fair = rows[-60:].mean(axis=0), equal[-60:].mean(axis=0)
        shares.append([recent[q].sum() / fair[q].sum() for q in quarters])
        correlations.append(spearman(np.arange(t), rows.sum(axis=0)))
    mean, correlation = np.mean(shares, axis=0), float(np.mean(correlations))
    return measured(
        abs(mean - 1).max() > 0.25 and correlation < -0.2,
        f"{len(shares)} heads: quarters get {', '.join(f'{x:.2f}' for x in mean)} of an equal "
        f"share; rank correlation of accumulated attention with position {correlation:.2f} "
        f"({min(correlations):.2f} to {max(correlations):.2f})",
    )


@PAPER.ours("AK-11", "Open question 2, top-k accumulators", Verdict.EXHAUSTIVE)
def largest_rows_keep_the_bias() -> Finding:
    """Summing the r largest terms of every token, instead of those of the last r rows, gives all
    tokens equally many terms, too, but keeps the positional bias.
    """
    for n in range(2, 31):
        for r in range(1, n):
            terms = [[Fraction(1, i) for i in range(j, n + 1)] for j in range(1, n - r + 2)]
            scores = [sum(sorted(each)[-r:], Fraction(0)) for each in terms]
            if any(later >= earlier for earlier, later in pairwise(scores)):
                return refuted(f"n = {n}, r = {r}: scores {', '.join(map(str, scores))}")
    return exhaustive("every n up to 30: the scores fall with every position")


@PAPER.ours("AK-3", "E[H] for logits of any variance", Verdict.ASYMPTOTIC)
def entropy_of_gaussian_logits() -> Finding:
    """The expected entropy of a softmax over i Gaussian logits of variance s² is ln i − s²/2.

    H is ln Z − Σxeˣ/Z, with Z = Σeˣ near i·E[eˣ]. The model has two phases that meet at
    s² = 2 ln i. Inside the first, the error shrinks with i; the claim is held to 0.03 nats up to
    s² = ¼ ln i, to 0.1 up to ½ ln i, and at i = 4096 to less than at i = 256.
    """
    if (derived := steps("", moments=gaussian_entropy())).verdict.fails:
        return derived
    off: dict[tuple[int, float], float] = {}
    allowed = {0.1: 0.03, 0.25: 0.03, 0.5: 0.1, 1.0: np.inf, 2.0: np.inf}
    for i in (256, 1024, 4096):
        for part, tolerance in allowed.items():
            s2 = part * log(i)
            mean, error = mean_entropy(i, sqrt(s2))
            formula = log(i) - s2 / 2
            off[i, part] = mean - formula
            if abs(off[i, part]) > tolerance + STANDARD_ERRORS * error:
                return refuted(f"i = {i}, s² = {s2:.3f}: {mean:.3f}, formula {formula:.3f}")
    if grown := [part for part in (0.1, 0.25, 0.5) if abs(off[4096, part]) >= abs(off[256, part])]:
        return refuted(f"the error does not shrink with i at s² = {grown[0]} ln i")
    most = max(abs(x) for (_, part), x in off.items() if part <= 0.5)
    return asymptotic(
        f"a Gaussian's moments (SymPy); Monte Carlo, 400 draws: off by at most {most:.3f} nats; at "
        f"s² = ½ ln i by {', '.join(f'{off[i, 0.5]:.3f}' for i in (256, 1024, 4096))} for i = 256, "
        f"1024, 4096. It breaks towards s² = 2 ln i: at i = 4096 off by {off[4096, 1.0]:.2f} at "
        f"s² = ln i and by {off[4096, 2.0]:.2f} at s² = 2 ln i"
    )


@PAPER.ours("AK-3b", "E[H], the other phase", Verdict.ASYMPTOTIC)
def frozen_entropy() -> Finding:
    """Beyond s² = 2 ln i few logits share all attention: the weights are Poisson-Dirichlet, and
    E[H] = ψ(1) − ψ(1 − μ) with μ = Φ⁻¹(1 − 1/i)/s at finite i.
    """
    worst = 0.0
    for i in (256, 1024, 4096):
        for part in (6, 10):
            s = sqrt(part * log(i))
            mean, error = mean_entropy(i, s)
            claimed = frozen_mean(frozen_exponent(i, s))
            worst = max(worst, abs(claimed - mean) / mean)
            if abs(claimed - mean) > 0.08 * mean + STANDARD_ERRORS * error:
                return refuted(f"i = {i}, s² = {part} ln i: {mean:.3f}, formula {claimed:.3f}")
    return asymptotic(
        f"Monte Carlo, 400 draws, i = 256 to 4096, s² = 6 and 10 ln i: within {worst:.1%}"
    )


@PAPER.printed("AK-3c", "Mechanism 1", Verdict.REFUTED, "what λ multiplies")
def entropy_of_unscaled_products() -> Finding:
    """With Gaussian logits, the expected entropy of an ordinary softmax is log i − d/2 at the
    lengths that the paper has.

    That is AK-3 with s² = d, the variance of q·k without 1/√d, if their entries have variance 1.
    i = 3600 and d = 128, as in the summary's first check of LLaMA2-7B.
    """
    i, d = 3600, 128
    printed, (mean, error) = log(i) - d / 2, mean_entropy(i, sqrt(d))
    reading, (scaled, scaled_error) = log(i) - 1 / 2, mean_entropy(i, 1.0)
    wrong = (
        f"i = {i}, d = {d}: the formula gives {printed:.2f}, an entropy cannot be negative; "
        f"measured {mean:.2f}"
    )
    return judged(
        wrong if abs(mean - printed) > 0.1 + STANDARD_ERRORS * error else "",
        f"Monte Carlo; unscaled logits are frozen for every i below e^(d/2) = {np.exp(d / 2):.1e}; "
        f"scaled by 1/√d: {scaled:.3f}",
        "with logits q·k/√d it is log i − 1/2",
        abs(scaled - reading) <= 0.03 + STANDARD_ERRORS * scaled_error,
    )


@PAPER.printed("AK-4", "Mechanism 1, Eq. 12", Verdict.PROVED)
def lambda_solves_for_the_budget() -> Finding:
    """λ = √(2 log(i/k)/d) brings log i − λ²d/2 to log k, for i > k.

    It is the only positive solution: the left side falls strictly in λ > 0.
    """
    i, k, d = sympy.symbols("i k d", positive=True)
    lam = sympy.sqrt(2 * sympy.log(i / k) / d)
    free = sympy.symbols("lambda", positive=True)
    left = sympy.log(i) - free**2 * d / 2
    if not (slope := sympy.diff(left, free)).is_negative:
        return refuted(f"the slope {slope} need not be negative: other λ may solve it, too")
    at_lambda = sympy.expand_log(left.subs(free, lam))
    return identity(at_lambda, sympy.log(k), f"any positive i > k and d; the slope is {slope} < 0")


@PAPER.reading("AK-4b", "Eq. 12", Verdict.VERIFIED, "what λ multiplies")
def lambda_replaces_the_scale() -> Finding:
    """λ brings exp(E[H]) to k tokens if it takes the place of 1/√d, so that the usual logits are
    multiplied by λ√d = √(2 log(i/k)); on top of 1/√d it would flatten attention.
    """
    i, k, d = 3600, 720, 128
    deviation = sqrt(2 * log(i / k) / d) * sqrt(d)
    mean, _ = mean_entropy(i, deviation, draws=200)
    evidence = f"logits of deviation {deviation:.2f}: exp(E[H]) = {np.exp(mean):.0f} for k = {k}"
    return measured(abs(mean - log(k)) <= 0.15, evidence)


@PAPER.ours("AK-5", "Eq. 12, what the gain achieves", Verdict.ASYMPTOTIC)
def gain_reaches_the_budget() -> Finding:
    """Under SG-softmax exp(E[H]) approaches k as k²/i grows.

    k²/i is the collision number 1/Σp²: below it, too few samples carry the weight. Held to 0.1
    nats where k²/i is at least 60, and to a bias that rises as k²/i falls.
    """
    biases = {}
    for i, k in ((1024, 720), (8192, 720), (4096, 500), (4096, 256), (4096, 64), (4096, 16)):
        mean, error = mean_entropy(i, step_gain(i, k), 200)
        biases[i, k] = mean - log(k)
        if k * k / i >= 60 and abs(biases[i, k]) > 0.1 + STANDARD_ERRORS * error:
            return refuted(f"i = {i}, k = {k}: off by {biases[i, k]:.3f} nats")
    ordered = [biases[i, k] for i, k in sorted(biases, key=lambda size: -(size[1] ** 2) / size[0])]
    if any(later < earlier - 0.02 for earlier, later in pairwise(ordered)):
        return refuted(f"the bias does not rise as k²/i falls: {ordered}")
    return asymptotic(
        "bias in nats by (i, k; k²/i): "
        + ", ".join(f"({i}, {k}; {k * k / i:.3g}) {bias:.2f}" for (i, k), bias in biases.items())
    )


@PAPER.ours("AK-5b", "Eq. 12 with small budgets", Verdict.VERIFIED)
def small_budgets_are_missed() -> Finding:
    """At the λ of Eq. 12 exp(E[H]) is within 0.1 nats of k for k ≥ 8√i, and misses small k by far:
    the weight of a softmax sits near s standard deviations above the mean, s being the logits'
    deviation; if the largest of i samples lies there, too, half of the weight has no sample.
    """
    draws, reached = 200, [(i, int(np.ceil(8 * sqrt(i)))) for i in (256, 1024, 4096)]

    def off(i: int, k: int) -> float:
        return abs(mean_entropy(i, step_gain(i, k), draws)[0] - log(k))

    i, k = 4096, 16
    largest = float(gaussians(i, draws).max(axis=1).mean())
    missing = 1 - NormalDist(step_gain(i, k)).cdf(largest)
    return measured(
        off(i, k) > 0.5 and all(off(*size) <= 0.1 for size in reached),
        f"Monte Carlo, {draws} draws, i = {i}, k = {k}: exp(E[H]) is off by {off(i, k):.2f} nats; "
        f"the weight is centred at {step_gain(i, k):.2f}, the largest sample lies at "
        f"{largest:.2f}: {missing:.0%} has none",
    )


@PAPER.ours("AK-12", "Next check 2, λ times 0.5 to 2", Verdict.VERIFIED)
def scaled_lambda_aims_elsewhere() -> Finding:
    """c times λ aims at i·(k/i)^(c²) tokens. For k = 720 of i = 3,600, half of λ aims at 2,407
    tokens, and twice λ at 6, which small numbers of samples do not reach.
    """
    i, k = 3600, 720
    found = {c: mean_entropy(i, c * step_gain(i, k), 200)[0] for c in (0.5, 1.0, 2.0)}
    aims = {c: i * (k / i) ** (c * c) for c in found}
    evidence = ", ".join(
        f"{c:g}·λ: {np.exp(h):.0f} of {aims[c]:.0f} tokens" for c, h in found.items()
    )
    return measured(all(abs(found[c] - log(aims[c])) <= 0.1 for c in (0.5, 1.0)), evidence)


@PAPER.ours("AK-5c", "Eq. 12, collision number", Verdict.ASYMPTOTIC)
def collision_number() -> Finding:
    """Under SG-softmax 1/E[Σp²] approaches k²/i as that grows, far below the entropy's k."""
    shown, off = [], []
    for i, k in ((1024, 720), (4096, 1000), (8192, 1000)):
        p = softmax(step_gain(i, k) * gaussians(i, 800), axis=1)
        found, claimed = float(1 / (p**2).sum(axis=1).mean()), k * k / i
        shown.append(f"{found:.0f} for {k * k / i:.0f} (i = {i}, k = {k})")
        off.append(abs(found / claimed - 1))
    if off[0] > 0.03 or off != sorted(off):
        return refuted(f"off by {', '.join(f'{x:.1%}' for x in off)}, measured {', '.join(shown)}")
    return asymptotic(f"Monte Carlo, 800 draws, measured for k²/i: {', '.join(shown)}")


@PAPER.printed("AK-6", "Mechanism 1, break condition", Verdict.VERIFIED, "variance of the logits")
def other_distributions_miss_the_target() -> Finding:
    """If the logits are far from Gaussian, λ overshoots or undershoots, and attention gets too
    sparse or stays too flat.
    """
    rng, i, k = np.random.default_rng(0), 4096, 720
    samples = {
        "Student t, 5 degrees": rng.standard_t(5, size=(100, i)) / sqrt(5 / 3),
        "Laplace": rng.laplace(scale=1 / sqrt(2), size=(100, i)),
        "uniform": rng.uniform(-sqrt(3), sqrt(3), size=(100, i)),
        "Gaussian": rng.normal(size=(100, i)),
    }
    found = {name: float(entropies(step_gain(i, k) * x).mean()) for name, x in samples.items()}
    too_sparse = max(found["Student t, 5 degrees"], found["Laplace"]) < log(k) - 0.2
    too_flat = found["uniform"] > log(k) + 0.2
    evidence = f"E[H] at i = {i}, k = {k}, ln k = {log(k):.2f}: "
    evidence += ", ".join(f"{name} {mean:.2f}" for name, mean in found.items())
    return measured(too_sparse and too_flat, evidence)


@PAPER.ours("AK-6b", "Eq. 12, assumed variance", Verdict.VERIFIED, "variance of the logits")
def gain_depends_on_the_variance() -> Finding:
    """The gain √(2 log(i/k)) brings exp(E[H]) to k for logits of deviation 1 only; logits twice as
    wide leave 42 of 1000 tokens. Divided by the row's measured deviation (gain=measured) it does so
    for any scale and mean.
    """
    i, k, maps = 4096, 1000, ((1.0, 0.0), (2.0, 0.0), (0.5, 3.0))
    fixed, adapted = [], []
    for a, b in maps:
        logits = a * gaussians(i, 100) + b
        fixed_gain = np.full((100, 1), step_gain(i, k))
        adapted_gain = step_gain(i, k) / logits.std(axis=1, keepdims=True)
        fixed.append(float(np.exp(entropies(fixed_gain * logits).mean())))
        adapted.append(float(np.exp(entropies(adapted_gain * logits).mean())))
    text = [", ".join(f"{x:.0f}" for x in each) for each in (fixed, adapted)]
    return measured(
        fixed[1] < 100 and max(abs(log(x / k)) for x in adapted) <= 0.1,
        f"scale and mean {maps}: {text[0]} tokens; with the measured deviation {text[1]}",
    )


@PAPER.ours("AK-8", "Eq. 12 just above the budget", Verdict.VERIFIED, "gain below 1")
def gain_flattens_just_above_the_budget() -> Finding:
    """Between i = k and √e·k = 1.65·k the gain is below 1: there SG-softmax is flatter than the
    ordinary softmax. Beyond, it is sharper.
    """
    k = 720
    lengths = range(k + 1, 3 * k)
    flat = [i for i in lengths if step_gain(i, k) <= 1]
    evidence = f"k = {k}, every i from {lengths[0]} to {lengths[-1]}: gain below 1 up to "
    evidence += str(flat[-1] if flat else "none")
    return measured(flat == [i for i in lengths if i < exp(0.5) * k], evidence)


@PAPER.ours("AK-9", "Eq. 12 while decoding", Verdict.VERIFIED, "i while decoding")
def attention_sharpens_while_decoding() -> Finding:
    """With i the position t and k = B, a cache of B entries keeps about B²/t effective tokens while
    it decodes, not B, because only B entries compete: attention gets ever sharper.
    """
    B, lengths = 720, (1000, 2048, 4096, 32768)
    found = {t: mean_entropy(B, step_gain(t, B), 200)[0] for t in lengths}
    evidence = ", ".join(f"t = {t}: {np.exp(h):.0f} tokens" for t, h in found.items())
    off = [abs(h - log(B * B / t)) for t, h in found.items() if t <= 4096]
    return measured(max(off) <= 0.1, evidence)


@PAPER.ours("AK-14", "Open question 4, SG-softmax in the model's attention", Verdict.VERIFIED)
def gain_harms_the_models_own_attention() -> Finding:
    """In the model's own attention SG-softmax does harm: the embedded model's loss on the right
    tokens rises more than a hundredfold. So we read it as part of the eviction score alone.
    """
    plain, found = surprise(MODEL, lambda i: 1.0), {}
    for k in (105, 150):
        found[k] = surprise(MODEL, lambda i, k=k: step_gain(i, k) if i > k else 1.0)
    losses = ", ".join(f"k = {k}: {x:.3f}" for k, x in found.items())
    return measured(min(found.values()) > 100 * plain, f"mean −ln p {plain:.5f}; {losses}")


def value_prior(
    values: Float[Array, "n d"], kernel: int = 5, power: float = 2
) -> Float[Array, " n"]:
    """γ̄ of Eq. 13-14: smoothed norms, divided by their maximum; at borders means of fewer norms."""
    norms = np.linalg.norm(values, axis=1) ** power
    half = kernel // 2
    smooth = np.array([norms[max(0, j - half) : j + half + 1].mean() for j in range(len(norms))])
    return smooth / smooth.max()


@PAPER.ours("AK-7", "Eq. 13-15", Verdict.VERIFIED, "value prior")
def value_prior_has_no_scale() -> Finding:
    """The value prior lies in (0, 1], reaches 1, and does not change when all values are scaled."""
    rng, low, off = np.random.default_rng(0), 1.0, 0.0
    for _, values in random_caches(0, 300, (1, 40)):
        scale = float(np.exp(3 * rng.normal()))
        found, scaled = (value_prior(v) for v in (values, scale * values))
        low = min(low, float(found.min()))
        off = max(off, float(abs(found - scaled).max()), abs(float(found.max()) - 1))
    evidence = f"300 random caches of 1-39 entries, scales e^(3·N(0, 1)): off by {off:.1e} at most"
    return measured(low > 0 and off <= ROUNDING, evidence)


@PAPER.ours("AK-7b", "Eq. 13 and its text", Verdict.VERIFIED, "value prior")
def square_and_norm_differ() -> Finding:
    """Eq. 13 squares what its text calls a norm. After smoothing, squares and norms can rank
    entries differently; without smoothing they cannot.
    """
    rng, differ = np.random.default_rng(1), {5: 0, 1: 0}
    caches = [rng.normal(size=(n, 1)) for n in range(2, 8) for _ in range(200)]
    for kernel in differ:
        for values in caches:
            squares, norms = (value_prior(values, kernel, power).argsort() for power in (2, 1))
            differ[kernel] += bool((squares != norms).any())
    return measured(
        differ[5] > 0 and differ[1] == 0,
        f"{differ[5]} of {len(caches)} caches with smoothing, {differ[1]} without",
    )


@PAPER.ours("AK-13", "Limitations and next check 3, quantised values", Verdict.VERIFIED)
def value_prior_survives_quantised_values() -> Finding:
    """The value prior hardly changes if values are quantised: its ranks correlate by at least 0.99
    at 8 and 4 bits and by at least 0.9 at 2 bits.
    """
    least, found = {8: 0.99, 4: 0.99, 2: 0.9}, {}
    for bits in least:
        correlations = []
        for head in observe_heads(MODEL):
            low = head.values.min(axis=1, keepdims=True)
            step = (head.values.max(axis=1, keepdims=True) - low) / (2**bits - 1)
            stored = low + np.round((head.values - low) / step) * step
            correlations.append(spearman(value_prior(head.values), value_prior(stored)))
        found[bits] = min(correlations)
    evidence = ", ".join(f"{bits} bits: {x:.3f}" for bits, x in found.items())
    return measured(all(found[bits] >= least[bits] for bits in least), evidence)


def scores(
    queries: Float[Array, "t d"],
    keys: Float[Array, "t d"],
    values: Float[Array, "t d"],
    k: int,
    r: int,
) -> Float[Array, " t"]:
    """Ŝ of Eq. 5 and 12-15, row by row."""
    t, d = keys.shape
    total = np.zeros(t)
    for i in range(t - r + 1, t + 1):
        logits = keys[:i] @ queries[i - 1] / np.sqrt(d)
        total[:i] += softmax(logits * (step_gain(i, k) if i > k else 1.0))
    return total * value_prior(values)


def kept_in_common(first: Array, second: Array, room: int) -> float:
    """Share of the ``room`` best entries by one score that are also best by another."""
    kept = [set(np.argsort(x)[-room:].tolist()) for x in (first, second)]
    return len(kept[0] & kept[1]) / room


@PAPER.ours("AK-15", "Eq. 12, k = B or B_s, and query groups", Verdict.VERIFIED)
def open_choices_matter_little() -> Finding:
    """Two open choices matter little. Whether k is the whole budget B or the selected part B_s
    changes at most a twentieth of the kept entries; whether a group of query heads joins its scores
    by their mean or their maximum changes at most a tenth.
    """
    B, r, by_budget = 100, 16, []
    groups: dict[tuple[int, int], list[Any]] = {}
    for head in observe_heads(MODEL):
        qkv = head.queries, head.keys, head.values
        whole, selected = (scores(*qkv, k, r)[:-r] for k in (B, B - r))
        by_budget.append(kept_in_common(whole, selected, B - r))
        groups.setdefault((head.layer, head.kv_head), []).append(whole)
    by_join = [
        kept_in_common(np.mean(group, axis=0), np.max(group, axis=0), B - r)
        for group in groups.values()
    ]
    budget_choice, join_choice = float(np.mean(by_budget)), float(np.mean(by_join))
    evidence = f"kept in common: B and B_s {budget_choice:.3f}, mean and maximum {join_choice:.3f}"
    return measured(budget_choice >= 0.95 and join_choice >= 0.9, evidence)
