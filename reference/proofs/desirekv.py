"""DesireKV's claims (AAAI 2026, vol. 40): sensitivity, importance, memory and its tables.

Quartiles are those of linear interpolation, the usual rule; a block is a list of numbers of one
key.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import floor
from statistics import mean, quantiles
from typing import Any

import numpy as np
import sympy

from kvlab.reference.proofs.claim import Finding, Paper, Verdict, judged, measured, over_models
from kvlab.reference.proofs.definitions import MODEL, spearman, steps
from kvlab.reference.proofs.ledger import on_smollm2
from kvlab.reference.proofs.tables import table_claims
from kvlab.reference.simulator.observed import key_heads, observe_heads

PAPER = Paper("desirekv", "DesireKV", "AAAI 2026, vol. 40, pp. 20518-20526")

Block = Sequence[Fraction]


def outliers(block: Block) -> list[int]:
    """Places of the values beyond the fences, Eq. 6."""
    first, _, third = quantiles(block, n=4, method="inclusive")
    reach = Fraction(3, 2) * (third - first)
    return [j for j, x in enumerate(block) if x < first - reach or x > third + reach]


def outlier_score(block: Block) -> Fraction:
    """Mean distance of the outliers from the block's mean; 0 without outliers."""
    distances = [abs(block[j] - mean(block)) for j in outliers(block)]
    return mean(distances) if distances else Fraction(0)


def quantized(block: Block, bits: int) -> list[Fraction]:
    """Asymmetric uniform codes between minimum and maximum, and back."""
    low, step = min(block), (max(block) - min(block)) / (2**bits - 1)
    if step == 0:
        return list(block)
    return [low + floor((x - low) / step + Fraction(1, 2)) * step for x in block]


@PAPER.printed("DE-1", "§1 and §4.1, text before Eq. 2", Verdict.REFUTED)
def memory_grows_quadratically() -> Finding:
    """Without compression the memory of the cache, Eq. 2, grows quadratically with the length."""
    L, d_k, d_v = sympy.symbols("L d_k d_v", positive=True, integer=True)
    layer, i, s, t = sympy.symbols("l i s t", positive=True, integer=True)
    memory: Any = sympy.summation((d_k + d_v) * 16, (i, 1, t - 1), (layer, 1, L))
    traffic = sympy.summation(memory.subs(t, s), (s, 1, t))
    series: tuple[Any, ...] = (memory, traffic)
    second, total = (
        sympy.factor(sympy.simplify(x.subs(t, t + 1) - 2 * x + x.subs(t, t - 1))) for x in series
    )
    first = sympy.factor(memory.subs(t, 3) - memory.subs(t, 2))
    return judged(
        "" if second else f"M_3 − M_2 = M_2 − M_1 = {first}: every token adds the same",
        f"SymPy: the second difference of M_t is {second}, that of the sum over all steps {total}",
        "memory grows linearly, as §5.3 says; the traffic, the sum of M_t over all steps, grows "
        "quadratically",
        total != 0,
    )


@PAPER.printed("DE-6", "Eq. 4", Verdict.REFUTED, "Eq. 4")
def printed_smoothing_depends_on_the_token() -> Finding:
    """Eq. 4, the mean of I_t over t = −w … w, gives each token i a smoothed importance of its
    own.
    """
    n, w = 15, 3
    printed, centred = (
        [[Fraction(int(at in places(i)), 2 * w + 1) for i in range(n)] for at in range(n)]
        for places in (lambda i: range(-w, w + 1), lambda i: range(i - w, i + w + 1))
    )
    differ = any(len(set(smoothed)) > 1 for smoothed in printed)
    kept = all(sum(centred[at]) == 1 for at in range(w, n - w))
    own = all(centred[at][at] == Fraction(1, 2 * w + 1) for at in range(w, n - w))
    return judged(
        ""
        if differ
        else f"importance 1 at the first token: every token of {n} gets {printed[0][0]}",
        f"exact: units at each of {n} places",
        "the mean is over I_{i+t}; what lies w or more from the border is conserved",
        kept and own,
    )


@PAPER.printed("DE-3", "§4.3, block score", Verdict.REFUTED, "frequency of outliers")
def score_counts_outliers() -> Finding:
    """A block's score quantifies both magnitude and frequency of its outliers: more change it."""
    scores, masses, one_sided = [], [], []
    for pairs in (1, 2, 4):
        rest = 64 - 2 * pairs
        small = [Fraction(2 * j - rest + 1, rest) for j in range(rest)]
        block = [*small, *[Fraction(10)] * pairs, *[Fraction(-10)] * pairs]
        scores.append(outlier_score(block))
        masses.append(outlier_score(block) * len(outliers(block)) / len(block))
        one_sided.append(f"{float(outlier_score([*small, *[Fraction(10)] * 2 * pairs])):.3f}")
    alike = f"2, 4 and 8 outliers at ±10 of 64 values: scores {', '.join(map(str, scores))}"
    return judged(
        alike if len(set(scores)) < len(scores) else "",
        "exact fractions; where all lie at +10, the block's mean follows them, and more of them "
        f"score less: {', '.join(one_sided)}",
        "with the sum divided by the block's length it does (outlier_mean=block): "
        + ", ".join(f"{float(x):.3f}" for x in masses),
        masses[0] < masses[1] < masses[2],
    )


@PAPER.printed("DE-13", "§4.3, blocks of a key", Verdict.REFUTED)
def smaller_samples_are_more_stable() -> Finding:
    """Blocks give more stable estimates, because they are smaller samples: a token's sensitivity,
    the mean over blocks of 64, varies less than the score of its whole key. (Keys of 1,024
    independent numbers; spread over 2,000 keys, relative to the mean.)
    """
    rng, spreads = np.random.default_rng(13), {}
    for name, draw in (("normal", rng.normal), ("Laplace", rng.laplace)):
        keys = draw(size=(2000, 1024))
        spreads[name] = [_spread(keys, length) for length in (64, 256, 1024)]
    shown = "; ".join(
        f"{name} numbers: {blocks:.3f} by blocks of 64, {quarter:.3f} of 256, {whole:.3f} whole"
        for name, (blocks, quarter, whole) in spreads.items()
    )
    less_stable = any(blocks > whole for blocks, _, whole in spreads.values())
    return judged(
        shown if less_stable else "",
        "relative standard deviation of a token's score, seed 13",
        "the larger the block, the less a token's score varies",
        all(blocks > quarter > whole for blocks, quarter, whole in spreads.values()),
    )


def _spread(keys: Any, length: int) -> float:
    """Relative standard deviation of Eq. 7's sensitivity, Eq. 6 in floating point."""
    blocks = keys.reshape(len(keys), -1, length)
    first, third = np.quantile(blocks, (0.25, 0.75), axis=-1, keepdims=True)
    beyond = np.abs(blocks - (first + third) / 2) > 2 * (third - first)
    distances = np.abs(blocks - blocks.mean(axis=-1, keepdims=True)) * beyond
    scores = (distances.sum(axis=-1) / np.maximum(beyond.sum(axis=-1), 1)).mean(axis=-1)
    return float(scores.std() / scores.mean())


@PAPER.ours("DE-4c", "§4.3, outliers and approximation errors", Verdict.VERIFIED)
def neighbours_of_outliers_suffer() -> Finding:
    """§4.3 says that outliers suffer larger errors, for quantisers made for typical values. Under a
    quantiser that spans minimum to maximum, as KIVI's does, the other values of their block suffer
    larger errors on average. (Blocks of 64 draws of Student's t of 3 degrees, at 4 bits.)
    """
    rng, found = np.random.default_rng(1), []
    for block in rng.standard_t(3, size=(2000, 64)):
        first, third = np.quantile(block, (0.25, 0.75))
        beyond = np.abs(block - (first + third) / 2) > 2 * (third - first)
        step = (block.max() - block.min()) / 15
        error = np.abs((block - block.min() + step / 2) % step - step / 2)
        if beyond.any():
            found.append((error[beyond].mean(), error[~beyond].mean()))
    own, others = np.transpose(found)
    evidence = f"{len(own)} blocks with outliers, mean error: {own.mean():.3f} for these, "
    evidence += f"{others.mean():.3f} beside them, larger in {(others > own).mean():.0%} of blocks"
    return measured(np.mean(others) > np.mean(own), evidence)


@PAPER.printed("DE-4b", "§3.1 and Fig. 2", Verdict.EMBEDDED_ALONE)
def outlier_score_tells_the_error() -> Finding:
    """A token's outlier score has a strong positive correlation with its quantisation error. (A
    rank correlation of at least 0.5 at 4 bits, mean over the KV heads, is taken as strong.)
    """
    correlations, without = [], []
    for head in key_heads(MODEL):
        scores, errors = [], []
        for block in map(exact, head.keys[::3]):
            squares = [(x - y) ** 2 for x, y in zip(block, quantized(block, 4), strict=True)]
            scores.append(float(outlier_score(block)))
            errors.append(float(mean(squares)) ** 0.5)
        correlations.append(spearman(np.array(scores), np.array(errors)))
        without.append(scores.count(0) / len(scores))
    evidence = (
        f"{len(correlations)} KV heads: {min(correlations):.2f} to {max(correlations):.2f}, mean "
        f"{np.mean(correlations):.2f}; {np.mean(without):.0%} of the keys have no outlier"
    )
    names = [f"{text}: outlier score and error at 4 bits" for text in ("written", "novel")]
    found = [mean for mean, _, _ in on_smollm2("desirekv", "Fig. 2", *names)]
    told = f"mean {found[0]:.2f}, and {found[1]:.2f} in a novel"
    return over_models((np.mean(correlations) >= 0.5, evidence), (min(found) >= 0.5, told))


def exact(key: Any) -> Block:
    """A key's values as fractions."""
    return [Fraction(float(x)).limit_denominator(10**6) for x in key]


@PAPER.interpretation("DE-8", "Eq. 8", Verdict.VERIFIED)
def normalised_sensitivity_reaches_one_once() -> Finding:
    """Eq. 8 prints a maximum over j of S_{i,l}, in which no j occurs; read as S_{j,l}, over the
    tokens of the window, as the text below says, one token has 1 and the others less.

    Embedded model, first layer, tokens with an outlier. With no j all of them would have 1.
    """
    S = _sensitivities()[0]
    S = S[S > 0]
    ones = int((S / S.max() == 1).sum())
    return measured(ones == 1, f"{len(S)} tokens, {ones} with 1")


@PAPER.printed("DE-7b", "§3.2 and Fig. 3", Verdict.VERIFIED)
def importance_and_sensitivity_are_unrelated() -> Finding:
    """A token's importance and its sensitivity are nearly uncorrelated: R² = 0.018. (At
    most a twentieth of the variance in common is taken as near. This is not independence, of which
    the paper speaks: that asks for more than no correlation.)
    """
    found, w = [], 3
    for layer, sensitivity in _sensitivities().items():
        rows = [head.attention() for head in observe_heads(MODEL) if head.layer == layer]
        raw = np.mean(rows, axis=0)[-32:, :-32].mean(axis=0)
        importance = np.convolve(raw, np.ones(2 * w + 1) / (2 * w + 1), "same")
        found.append(float(np.corrcoef(importance, sensitivity[:-32])[0, 1] ** 2))
    evidence = f"layers: R² {', '.join(f'{x:.3f}' for x in found)}, mean {np.mean(found):.4f}"
    names = [f"{text}: R² of importance and sensitivity" for text in ("written", "novel")]
    there = [mean for mean, _, _ in on_smollm2("desirekv", "Fig. 3", *names)]
    told = f"R² {there[0]:.3f}, and {there[1]:.3f} in a novel"
    return over_models((np.mean(found) <= 0.05, evidence), (max(there) <= 0.05, told))


@cache
def _sensitivities() -> dict[int, Any]:
    """Eq. 7 of every token by layer, mean over its KV heads."""
    layers: dict[int, list[list[float]]] = {}
    for head in key_heads(MODEL):
        scores = [float(outlier_score(exact(key))) for key in head.keys]
        layers.setdefault(head.layer, []).append(scores)
    return {layer: np.mean(heads, axis=0) for layer, heads in layers.items()}


@PAPER.interpretation("DE-7", "§3.2, quadrants at medians", Verdict.PROVED, "thresholds")
def medians_balance_opposite_quadrants() -> Finding:
    """With both thresholds at the medians of an even number of distinct scores, opposite quadrants
    hold equally many tokens: Q1 = Q3 and Q2 = Q4.
    """
    half, Q3 = sympy.symbols("half Q3", nonnegative=True)
    Q2, Q4 = half - Q3, half - Q3  # above one median, and not above the other
    Q1 = 2 * half - Q2 - Q3 - Q4
    scope = "half of the tokens are above either median: every even number"
    return steps(scope, Q1=(Q1, Q3), Q2=(Q2, Q4))


PAPER.claims.extend(table_claims("desirekv"))
