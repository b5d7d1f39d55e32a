"""AhaKV's claims (arXiv 2506.03762), as a public summary states them.

The paper itself could not be read: what is called printed here is printed in the summary, and
numbers of sections, equations and figures are those that the summary gives. Logits are modelled as
there, as independent Gaussians of variance s²; a softmax over i of them is a random energy model
with i levels.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np
import sympy
from scipy.special import softmax
from scipy.stats import entropy

from kvlab.reference.notation import Array, Float, Rows
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    asymptotic,
    judged,
    measured,
    over_models,
    proved,
    refuted,
)
from kvlab.reference.proofs.definitions import MODEL, identity, spearman, steps
from kvlab.reference.proofs.ledger import on_smollm2
from kvlab.reference.simulator.observed import observe_heads

PAPER = Paper("ahakv", "AhaKV", "arXiv 2506.03762, as summarised")

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
    """The accumulated attention S_j decreases monotonically in expectation, because earlier tokens
    take part in more rows. (The summary names no condition. Here the logits of a row are
    exchangeable, which gives E[S_j+1] − E[S_j] = −1/j.)
    """
    i, j, each = sympy.symbols("i j each", positive=True)
    (share,) = sympy.solve(i * each - 1, each)
    row_of_j_alone = share.subs(i, j)  # S_j and S_j+1 sum the same shares of all later rows
    return steps(
        "the i expectations of row i are equal and sum to 1: every n, every j",
        row=(1 / i, share),
        difference=(-1 / j, -row_of_j_alone),
    )


@PAPER.ours("AK-1b", "Eq. 4, against a usual remedy", Verdict.PROVED)
def averaging_keeps_the_bias() -> Finding:
    """Dividing S_j by the number of rows that saw entry j, n − j + 1, does not remove the bias: the
    expected mean still falls with every position.
    """
    j, rows = sympy.symbols("j rows", positive=True)  # rows after j, up to the last, n
    less = sympy.symbols("less", nonnegative=True)
    later = rows / (j + 1) - less  # Σ of 1/i over these rows: none is above 1/(j + 1)
    fall = sympy.factor((1 / j + later) / (rows + 1) - later / rows)
    if not fall.is_positive:
        return refuted(f"from j to j + 1 the mean falls by {fall}, which need not be positive")
    return proved(f"SymPy: from j to j + 1 the mean falls by {fall} > 0: every j, every n")


@PAPER.printed("AK-2", "Mechanism 2, Eq. 5", Verdict.PROVED)
def recent_rows_have_no_bias() -> Finding:
    """Summed over the last r rows alone, all sums have as many terms, which removes the bias toward
    early tokens. (In AK-1's model: all candidates j ≤ n − r + 1 have the same expected score.)
    """
    i, n, r, before = sympy.symbols("i n r before", integer=True, nonnegative=True)
    j = n - r + 1 - before  # any candidate; row i sees positions 1 … i, and gives each 1/i
    score = sympy.Sum(1 / i, (i, sympy.Max(n - r + 1, j), n))
    if score.has(before):
        return refuted(f"the score {score} depends on the position")
    return proved(f"SymPy: {score}, without j: every n, every r")


@PAPER.printed("AK-2b", "Mechanism 2, Eq. 5", Verdict.REFUTED, "rows summed")
def recent_sum_has_r_rows() -> Finding:
    """The sum over i = n − r … n adds up exactly r rows, r being the number of recent tokens."""
    sizes = [(n, r) for n in range(2, 12) for r in range(1, n)]
    printed = [(range(n - r, n + 1), n, r) for n, r in sizes]
    corrected = [(range(n - r + 1, n + 1), n, r) for n, r in sizes]
    wrong = [
        f"n = {n}, r = {r}: rows {rows[0]} to {rows[-1]} are {len(rows)}"
        for rows, n, r in printed
        if len(rows) != r
    ]
    return judged(
        next(iter(wrong), ""),
        f"counted for {len(sizes)} sizes; either way all candidates get equally many terms",
        "the sum starts at i = n − r + 1",
        all(len(rows) == r for rows, _, r in corrected),
    )


def _leaning(kept: int, sharpened: bool, prior: bool) -> tuple[float, float]:
    """How accumulated attention leans to early ones of 240 tokens with Gaussian logits.

    Rank correlation with position, and the share of the best half that the first half has.
    """
    rng, n, found = np.random.default_rng(2), 240, []
    lengths, visible = np.arange(1, n + 1), np.tri(n, dtype=bool)
    for _ in range(20):
        gain = [step_gain(i, kept) if sharpened and i > kept else 1.0 for i in lengths.tolist()]
        logits = np.where(visible, np.array(gain)[:, None] * rng.normal(size=(n, n)), -np.inf)
        scores = softmax(logits, axis=1).sum(axis=0)
        sizes = value_prior(rng.normal(size=(n, 64)))
        scores = scores * sizes if prior else scores
        best = np.argsort(scores)[n // 2 :]
        found.append((spearman(lengths, scores), (best < n // 2).mean()))
    correlation, share = np.mean(found, axis=0).tolist()
    return correlation, share


@PAPER.printed("AK-2c", "Executive Summary", Verdict.VERIFIED)
def sharpening_lessens_the_bias() -> Finding:
    """SG-softmax, a sharper softmax, and the size of values as a prior mitigate the positional bias
    of accumulated attention. (The sentence is the summary's, and names these two; Confidence names
    recent accumulation beside SG-softmax. Here, with random logits and values, sharpening does so
    weakly, and not where k is half of the tokens; the prior changes next to nothing. The bias
    stays, as the number of rows does.)
    """
    plain, both = _leaning(12, False, False), _leaning(12, True, True)
    alone = _leaning(12, False, True)
    sharpened = {k: _leaning(k, True, False) for k in (12, 48, 120)}
    said = ", ".join(f"{x:.3f} and {y:.1%} (k = {k})" for k, (x, y) in sharpened.items())
    alike = (alone, plain), (both, sharpened[12]), (sharpened[120], plain)
    apart = max(abs(first[0] - second[0]) for first, second in alike)
    return measured(
        plain[0] + 0.02 < sharpened[12][0] < -0.8 and both[1] > 0.8 and apart < 0.02,
        "240 tokens, 20 draws; rank correlation with position, and share of the best half from the "
        f"first half: {plain[0]:.3f} and {plain[1]:.1%}; SG-softmax {said}; the prior "
        f"alone {alone[0]:.3f} and {alone[1]:.1%}, both {both[0]:.3f} and {both[1]:.1%} (k = 12)",
    )


@PAPER.printed("AK-16", "Failure signatures and Next check 1, on Fig. 2c", Verdict.EMBEDDED_ALONE)
def kept_positions_are_more_uniform() -> Finding:
    """H2O keeps early tokens above all, AhaKV keeps a more uniform distribution of positions. (A
    quarter is kept; the newest 32 tokens, which AhaKV protects, do not count; even would be 50 %.)
    """
    r, found = 32, []
    for head in observe_heads(MODEL):
        judged, room = len(head.keys) - r, len(head.keys) // 4 - r
        summed = head.attention().sum(axis=0)
        ahakv = scores(head.queries, head.keys, head.values, room + r, r)
        best = (np.argsort(each[:judged])[-room:] for each in (summed, ahakv))
        found.append([(each < judged / 2).mean() for each in best])
    names = [f"written: kept in the first half by {name}" for name in ("H2O", "AhaKV")]
    there = [mean for mean, _, _ in on_smollm2("ahakv", "Fig. 2c", *names)]
    return over_models(*map(_more_even, (np.mean(found, axis=0).tolist(), there)))


def _more_even(shares: Sequence[float]) -> tuple[bool, str]:
    h2o, ahakv = shares
    even = h2o > 0.5 and abs(ahakv - 0.5) < abs(h2o - 0.5)
    return even, f"from the first half: H2O {h2o:.0%}, AhaKV {ahakv:.0%}"


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


@PAPER.ours("AK-3", "E[H] for logits of variance up to ½ ln i", Verdict.ASYMPTOTIC)
def entropy_of_gaussian_logits() -> Finding:
    """The expected entropy of a softmax over i Gaussian logits of variance s² ≤ ½ ln i approaches
    ln i − s²/2 as i grows.

    H is ln Z − Σxeˣ/Z, with Z = Σeˣ near i·E[eˣ]. At each of three variances the error has to
    shrink from size to size, to a twentieth of a nat at most. Beyond s² = 2 ln i few logits share
    all attention, and the estimate has nothing to do with it.
    """
    if (derived := steps("", moments=gaussian_entropy())).verdict.fails:
        return derived
    shown = []
    for part in (0.1, 0.25, 0.5):
        off = [_off_the_estimate(i, part) for i in (256, 1024, 4096)]
        shown.append(f"s² = {part:g} ln i: {', '.join(f'{x:.3f}' for x in off)}")
        sizes = list(map(abs, off))
        if sizes != sorted(sizes, reverse=True) or sizes[-1] > 0.05:
            return refuted(f"off by {shown[-1]} for i = 256, 1024, 4096")
    far = ", ".join(f"{_off_the_estimate(4096, part):.2f} at {part:g} ln i" for part in (1, 2))
    return asymptotic(
        "a Gaussian's moments (SymPy); Monte Carlo, 400 draws, nats off at i = 256, 1024, 4096: "
        f"{'; '.join(shown)}. It does not hold for any variance: at i = 4096 off by {far}"
    )


def _off_the_estimate(i: int, part: float) -> float:
    s2 = part * log(i)
    return mean_entropy(i, sqrt(s2))[0] - (log(i) - s2 / 2)


@PAPER.printed("AK-3c", "Mechanism 1", Verdict.REFUTED, "what λ multiplies")
def entropy_of_unscaled_products() -> Finding:
    """With Gaussian logits, the expected entropy of an ordinary softmax is log i − d/2 at the
    lengths that the paper has.

    That is AK-3 with s² = d, the variance of q·k without 1/√d, if their entries have variance 1.
    i = 3600, as in the summary's first check, and d = 128, that of LLaMA2-7B, which it names there.
    """
    i, d = 3600, 128
    printed, (mean, error) = log(i) - d / 2, mean_entropy(i, sqrt(d))
    expected, (scaled, scaled_error) = log(i) - 1 / 2, mean_entropy(i, 1.0)
    wrong = (
        f"i = {i}, d = {d}: the formula gives {printed:.2f}, an entropy cannot be negative; "
        f"measured {mean:.2f}"
    )
    return judged(
        wrong if abs(mean - printed) > 0.1 + STANDARD_ERRORS * error else "",
        f"Monte Carlo; unscaled logits are frozen for every i below e^(d/2) = {np.exp(d / 2):.1e}; "
        f"scaled by 1/√d: {scaled:.3f}",
        "with logits q·k/√d it is log i − 1/2",
        abs(scaled - expected) <= 0.03 + STANDARD_ERRORS * scaled_error,
    )


@PAPER.printed("AK-4", "Mechanism 1, Eq. 12", Verdict.PROVED)
def lambda_solves_for_the_budget() -> Finding:
    """λ = √(2 log(i/k)/d) brings log i − λ²d/2 to log k, for i > k.

    It is the only positive solution: the left side falls strictly in λ > 0.
    """
    k, d, more, free = sympy.symbols("k d more lambda", positive=True)
    i = k * (1 + more)
    lam = sympy.sqrt(2 * sympy.log(i / k) / d)
    left = sympy.log(i) - free**2 * d / 2
    if not lam.is_positive:
        return refuted(f"{lam} need not be positive")
    if not (slope := sympy.diff(left, free)).is_negative:
        return refuted(f"the slope {slope} need not be negative: other λ may solve it, too")
    at_lambda = sympy.expand_log(left.subs(free, lam))
    return identity(at_lambda, sympy.log(k), f"any positive d and i > k; the slope is {slope} < 0")


@PAPER.interpretation("AK-4b", "Eq. 12", Verdict.VERIFIED, "what λ multiplies")
def lambda_replaces_the_scale() -> Finding:
    """λ brings exp(E[H]) to k tokens if it takes the place of 1/√d, so that the usual logits are
    multiplied by λ√d = √(2 log(i/k)); on top of 1/√d it would flatten attention.
    """
    i, k, d = 3600, 720, 128
    deviation = sqrt(2 * log(i / k) / d) * sqrt(d)
    mean, _ = mean_entropy(i, deviation, draws=200)
    plain, on_top = (mean_entropy(i, s, draws=200)[0] for s in (1.0, deviation / sqrt(d)))
    evidence = f"logits of deviation {deviation:.2f}: exp(E[H]) = {np.exp(mean):.0f} for k = {k}"
    evidence += f"; of 1: {np.exp(plain):.0f}; on top of 1/√d: {np.exp(on_top):.0f} of {i}"
    return measured(abs(mean - log(k)) <= 0.15 and plain < on_top - 0.4, evidence)


@PAPER.ours("AK-5", "Eq. 12, what the gain achieves", Verdict.ASYMPTOTIC)
def gain_reaches_the_budget() -> Finding:
    """Under SG-softmax exp(E[H]) approaches k as k²/i grows.

    k²/i is the collision number 1/Σp²: below it, too few samples carry the weight. Held to 0.03
    nats where k²/i is at least 60, and to a bias that rises as k²/i falls.
    """
    biases = {}
    for i, k in ((1024, 720), (8192, 720), (4096, 500), (4096, 256), (4096, 64), (4096, 16)):
        mean, error = mean_entropy(i, step_gain(i, k), 200)
        biases[i, k] = mean - log(k)
        if k * k / i >= 60 and abs(biases[i, k]) > 0.03 + STANDARD_ERRORS * error:
            return refuted(f"i = {i}, k = {k}: off by {biases[i, k]:.3f} nats")
    ordered = [biases[i, k] for i, k in sorted(biases, key=lambda size: -(size[1] ** 2) / size[0])]
    if any(later < earlier - 0.02 for earlier, later in pairwise(ordered)):
        return refuted(f"the bias does not rise as k²/i falls: {ordered}")
    return asymptotic(
        "bias in nats by (i, k; k²/i): "
        + ", ".join(f"({i}, {k}; {k * k / i:.3g}) {bias:.2f}" for (i, k), bias in biases.items())
    )


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
    it decodes, not B, because only B entries compete: attention gets ever sharper. (Held to a
    hundredth of a nat up to t = 2048, where AK-3 holds best, and to 0.06 at 4096, for B = 720.)
    """
    B, lengths = 720, (1000, 2048, 4096, 32768)
    found = {t: mean_entropy(B, step_gain(t, B), 200)[0] for t in lengths}
    evidence = ", ".join(f"t = {t}: {np.exp(h):.0f} tokens" for t, h in found.items())
    off = [abs(h - log(B * B / t)) for t, h in found.items() if t <= 4096]
    near = max(off[:2]) <= 0.01 and off[2] <= 0.06
    return measured(near and found[32768] < found[4096], evidence)


def value_prior(values: Float[Array, "n d"]) -> Float[Array, " n"]:
    """γ̄ of Eq. 13-14: squared norms, smoothed over five (at borders fewer), by their maximum."""
    norms = np.linalg.norm(values, axis=1) ** 2
    smooth = np.array([norms[max(0, j - 2) : j + 3].mean() for j in range(len(norms))])
    return smooth / smooth.max()


def scores(queries: Rows, keys: Rows, values: Rows, k: int, r: int) -> Float[Array, " t"]:
    """Ŝ of Eq. 5 and 12-15, row by row."""
    t, d = keys.shape
    total = np.zeros(t)
    for i in range(t - r + 1, t + 1):
        logits = keys[:i] @ queries[i - 1] / np.sqrt(d)
        total[:i] += softmax(logits * (step_gain(i, k) if i > k else 1.0))
    return total * value_prior(values)
