"""DesireKV's claims (AAAI 2026, vol. 40): sensitivity, importance, memory and its tables.

Quartiles are those of linear interpolation, the usual rule; a block is a list of numbers of one
key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, permutations
from math import floor
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import sympy

from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    asymptotic,
    exhaustive,
    proved,
    refuted,
    verified,
)
from kvlab.reference.proofs.observed import Head, observe
from kvlab.reference.proofs.ranks import spearman

PAPER = Paper("desirekv", "DesireKV", "AAAI 2026, vol. 40, pp. 20518-20526")

Block = Sequence[Fraction]
Score = Callable[[Block], Fraction]


# --- definitions ---------------------------------------------------------------------------------


def quantile(block: Block, share: Fraction) -> Fraction:
    """Linear interpolation between the sorted values."""
    ordered, place = sorted(block), share * (len(block) - 1)
    low = floor(place)
    high = min(low + 1, len(block) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def outliers(block: Block, factor: Fraction = Fraction(3, 2)) -> list[int]:
    """Places of the values beyond the fences, Eq. 6."""
    first, third = (quantile(block, Fraction(q, 4)) for q in (1, 3))
    reach = factor * (third - first)
    return [j for j, x in enumerate(block) if x < first - reach or x > third + reach]


def mean(block: Block) -> Fraction:
    """Sum over number."""
    return sum(block, Fraction(0)) / len(block)


def outlier_score(block: Block) -> Fraction:
    """Mean distance of the outliers from the block's mean; 0 without outliers."""
    beyond = outliers(block)
    return mean([abs(block[j] - mean(block)) for j in beyond]) if beyond else Fraction(0)


def outlier_mass(block: Block) -> Fraction:
    """The outliers' distances from the block's mean, summed and divided by the block's length."""
    distances = (abs(block[j] - mean(block)) for j in outliers(block))
    return sum(distances, Fraction(0)) / len(block)


def quantized(block: Block, bits: int, rounding: Fraction = Fraction(1, 2)) -> list[Fraction]:
    """Asymmetric uniform codes between minimum and maximum, and back."""
    low, step = min(block), (max(block) - min(block)) / (2**bits - 1)
    if step == 0:
        return list(block)
    return [low + floor((x - low) / step + rounding) * step for x in block]


def small_blocks(length: int, largest: int) -> Iterable[Block]:
    """All multisets of whole numbers from 0."""
    for values in combinations_with_replacement(range(largest + 1), length):
        yield [Fraction(v) for v in values]


# --- §4.1: memory --------------------------------------------------------------------------------


@PAPER.claim("DE-1", "§4.1, text before Eq. 2", Verdict.REFUTED)
def memory_grows_quadratically(
    *,
    memory: Callable[[Any], Any] = lambda t: (t - 1) * sympy.Symbol("c"),
    reading: Callable[[Any], Any] = lambda t: (t - 1) * sympy.Symbol("c"),
) -> Finding:
    """Without compression, the memory of Eq. 2 grows quadratically with the sequence's length.

    Second differences in t; c stands for layers, channels and bits, which do not depend on t.
    """
    t, T = sympy.symbols("t T", positive=True, integer=True)
    second = sympy.simplify(memory(t + 1) - 2 * memory(t) + memory(t - 1))
    if second != 0:
        return proved(f"SymPy: the second difference of M_t is {second}")
    total = sympy.summation(reading(t), (t, 1, T))
    growth = sympy.simplify(total.subs(T, T + 2) - 2 * total.subs(T, T + 1) + total)
    linear = sympy.simplify(reading(t + 1) - 2 * reading(t) + reading(t - 1)) == 0
    return refuted(
        "M_2 − M_1 = M_3 − M_2 = c: every token adds the same",
        f"SymPy: the second difference of M_t is 0, that of the sum over all steps {growth}",
        "memory grows linearly (as §5.3 says); what grows quadratically is the traffic, the sum of "
        "M_t over all steps"
        if linear and growth != 0
        else "",
    )


LAYERS, KV_HEADS, CHANNELS = 32, 8, 128
"""Llama-3.1-8B, and its distillation by DeepSeek-R1."""


@PAPER.claim("DE-1b", "§1 and Fig. 1: 32.8 GB", Verdict.REFUTED)
def memory_of_the_example(
    *,
    printed: float = 32.8,
    reading: float = 34.36,
    tokens: int = 32768,
    batch: int = 8,
) -> Finding:
    """The 16-bit cache of Llama-8B holds 32.8 GB at 32,768 tokens and a batch of 8."""
    found = 2 * LAYERS * KV_HEADS * CHANNELS * 2 * tokens * batch
    if abs(found / 1e9 / printed - 1) < 0.005:
        return verified(f"{found / 1e9:.2f} GB")
    return refuted(
        f"{LAYERS} layers · {KV_HEADS} heads · {CHANNELS} channels · 2 · 2 bytes · {tokens} · "
        f"{batch} = {found / 1e9:.2f} GB = {found / 2**30:.1f} GiB",
        "one product; the printed figure is eight times a rounded 4.1 GB",
        f"{reading} GB" if abs(found / 1e9 / reading - 1) < 0.005 else "",
        gigabytes=found / 1e9,
    )


@PAPER.claim("DE-1c", "§5.3: 55 % of the memory", Verdict.VERIFIED)
def saving_of_the_whole(*, bits: float = 3.0, printed: float = 0.55) -> Finding:
    """Weights included, 3.0 bits instead of 16 save 55 % of 48.3 GB, 32.8 of which are cache."""
    saved = 1 - (15.5 + 32.8 * bits / 16) / 48.3
    if abs(saved - printed) > 0.005:
        return refuted(f"{bits} bits save {saved:.1%}")
    return verified(f"(15.5 + 32.8·{bits:g}/16)/48.3 leaves {1 - saved:.1%}: {saved:.1%} are saved")


@PAPER.claim("DE-1d", "§5.3: 49.7 % and 11.6 %", Verdict.VERIFIED)
def savings_add_up(
    *, first: float = 0.497, further: float = 0.116, printed: float = 0.55
) -> Finding:
    """RPC's 49.7 % and another 11.6 % of what it leaves are the printed 55 % together, as far as
    three rounded figures can tell.
    """
    totals = [1 - (1 - first - a) * (1 - further - b) for a in (-5e-4, 5e-4) for b in (-5e-4, 5e-4)]
    if not min(totals) - 0.005 <= printed <= max(totals) + 0.005:
        return refuted(f"together they are {min(totals):.2%} to {max(totals):.2%}")
    return verified(
        f"together {min(totals):.2%} to {max(totals):.2%}, by how the two were rounded: "
        "55 % below 55.5 %, and 56 % above"
    )


# --- §4.2: importance ----------------------------------------------------------------------------


@PAPER.claim("DE-6", "Eq. 4", Verdict.REFUTED, ("Eq. 4",))
def printed_smoothing_depends_on_the_token(
    *,
    printed: Callable[[Sequence[Fraction], int, int], Fraction] = (
        lambda x, i, w: (
            sum((x[t] for t in range(-w, w + 1) if 0 <= t < len(x)), Fraction(0)) / (2 * w + 1)
        )
    ),
    reading: Callable[[Sequence[Fraction], int, int], Fraction] = (
        lambda x, i, w: (
            sum((x[i + t] for t in range(-w, w + 1) if 0 <= i + t < len(x)), Fraction(0))
            / (2 * w + 1)
        )
    ),
    w: int = 3,
) -> Finding:
    """Eq. 4, the mean of I_t over t = −w … w, gives each token i a smoothed importance of its own.

    A unit of importance at every place of a window of 15 tokens, w = 3.
    """
    n = 15
    units = [[Fraction(int(j == at)) for j in range(n)] for at in range(n)]
    varies = any(len({printed(x, i, w) for i in range(n)}) > 1 for x in units)
    if varies:
        return proved(f"exact: units at each of {n} places")
    interior = range(w, n - w)
    kept = all(sum(reading(units[at], i, w) for i in range(n)) == 1 for at in interior)
    own = all(reading(units[at], at, w) == Fraction(1, 2 * w + 1) for at in interior)
    return refuted(
        f"importance 1 at the first token: every token of {n} gets {printed(units[0], 0, w)}",
        f"exact: units at each of {n} places",
        "the mean is over I_{i+t}; what lies w or more from the border is conserved"
        if kept and own
        else "",
    )


# --- §4.3: sensitivity ---------------------------------------------------------------------------


@PAPER.claim("DE-2", "Eq. 6 and the score below it", Verdict.EXHAUSTIVE)
def fences_follow_scale_and_shift(
    *,
    marked: Callable[[Block], list[int]] = outliers,
    score: Score = outlier_score,
    power: int = 1,
) -> Finding:
    """Scaling and shifting a block, x → a·x + b with a ≠ 0, keeps its outliers and multiplies its
    score by |a|.

    Exact, for all blocks of six whole numbers up to 5 and four maps.
    """
    blocks = list(small_blocks(6, 5))
    for block in blocks:
        for a, b in ((2, 0), (1, -3), (-1, 1), (Fraction(-1, 3), 7)):
            moved = [a * x + b for x in block]
            if marked(moved) != marked(block):
                return refuted(f"{_numbers(block)} under {a}·x + {b}: other outliers")
            if score(moved) != abs(Fraction(a)) ** power * score(block):
                return refuted(f"{_numbers(block)} under {a}·x + {b}: score {score(moved)}")
    found = sum(bool(marked(block)) for block in blocks)
    return exhaustive(f"exact fractions: {len(blocks)} blocks, {found} of them with outliers")


def _numbers(block: Block) -> str:
    return ", ".join(map(str, block))


@PAPER.claim("DE-3", "§4.3, 'magnitude and frequency'", Verdict.REFUTED, ("frequency of outliers",))
def score_counts_outliers(
    *, score: Score = outlier_score, reading: Score = outlier_mass, length: int = 64
) -> Finding:
    """The sensitivity score of a block rises with the number of its outliers.

    Blocks of 64 values, of which two, four or eight are ±10, the others small and symmetric.
    """
    blocks = [_with_outliers(length, pairs) for pairs in (1, 2, 4)]
    scores, readings = ([rule(b) for b in blocks] for rule in (score, reading))
    if scores[0] < scores[1] < scores[2]:
        return verified(f"2, 4 and 8 outliers: {', '.join(f'{float(x):.3f}' for x in scores)}")
    return refuted(
        f"2, 4 and 8 outliers at ±10 of {length} values: scores {', '.join(map(str, scores))}",
        "exact fractions; counts enter only through blocks without any outlier, which score 0",
        "with the sum divided by the block's length it does (outlier_mean=block): "
        + ", ".join(f"{float(x):.3f}" for x in readings)
        if readings[0] < readings[1] < readings[2]
        else "",
    )


def _with_outliers(length: int, pairs: int) -> Block:
    rest = length - 2 * pairs
    small = [Fraction(2 * j - rest + 1, rest) for j in range(rest)]
    return [*small, *[Fraction(10)] * pairs, *[Fraction(-10)] * pairs]


@PAPER.claim("DE-3b", "Eq. 6, 'extreme values'", Verdict.ASYMPTOTIC)
def gaussian_values_beyond_the_fences(
    *,
    rate: Callable[[float], float] = lambda factor: (
        2 * NormalDist().cdf(-(1 + 2 * factor) * NormalDist().inv_cdf(0.75))
    ),
    factor: float = 1.5,
) -> Finding:
    """Of Gaussian values 2Φ(−4·Φ⁻¹(¾)) = 0.70 % lie beyond the fences, as a block grows.

    In blocks of 64 more do, because their quartiles scatter.
    """
    rng, found = np.random.default_rng(0), {}
    for g in (64, 1024, 16384):
        x = rng.normal(size=(2**22 // g, g))
        first, third = np.quantile(x, (0.25, 0.75), axis=1, keepdims=True)
        reach = factor * (third - first)
        beyond = (x < first - reach) | (x > third + reach)
        found[g] = float(beyond.mean()), float((~beyond.any(axis=1)).mean())
    claimed = rate(factor)
    if abs(found[16384][0] / claimed - 1) > 0.03:
        return refuted(f"blocks of 16,384: {found[16384][0]:.3%}, claimed {claimed:.3%}")
    return asymptotic(
        f"limit {claimed:.3%}; blocks of 64, 1024, 16384: "
        + ", ".join(f"{share:.3%}" for share, _ in found.values())
        + f"; {found[64][1]:.1%} of blocks of 64 have no outlier, {(1 - claimed) ** 64:.1%} if "
        "values were judged independently"
    )


@PAPER.claim("DE-4", "§4.3, quantisation error", Verdict.EXHAUSTIVE)
def error_is_at_most_half_a_step(
    *,
    bound: Fraction = Fraction(1, 2),
    rounding: Fraction = Fraction(1, 2),
    bits: Sequence[int] = (2, 3, 4),
) -> Finding:
    """Asymmetric uniform quantisation changes no value by more than half a step, keeps minimum and
    maximum, and changes nothing when applied again.

    Exact, for all blocks of five whole numbers up to 9. The step is (max − min)/(2^b − 1): one
    outlier widens it for the whole block.
    """
    reached = Fraction(0)
    for block in small_blocks(5, 9):
        for b in bits:
            codes, step = quantized(block, b, rounding), (max(block) - min(block)) / (2**b - 1)
            error = max(abs(x - y) for x, y in zip(block, codes, strict=True))
            if step and error > bound * step:
                return refuted(f"{_numbers(block)} at {b} bits: off by {error / step} of a step")
            if (min(codes), max(codes)) != (min(block), max(block)):
                return refuted(f"{_numbers(block)} at {b} bits: the extremes move")
            if quantized(codes, b, rounding) != codes:
                return refuted(f"{_numbers(block)} at {b} bits: not idempotent")
            reached = max(reached, error / step if step else reached)
    return exhaustive(
        f"exact fractions: every block of five values from 0 to 9 at {', '.join(map(str, bits))} "
        f"bits; the largest error is {reached} of a step"
    )


@PAPER.claim("DE-4b", "Fig. 2", Verdict.VERIFIED)
def outlier_score_tells_the_error(
    *, model: Path, at_least: float = 0.3, bits: int = 4, score: Score = outlier_score
) -> Finding:
    """A key's outlier score correlates positively with its quantisation error.

    Keys of the embedded model, one block of 32 channels each: Spearman's correlation of the score
    with the root mean square error at 4 bits, per KV head.
    """
    correlations, without = [], []
    for head in _kv_heads(model):
        blocks = [[Fraction(float(x)).limit_denominator(10**6) for x in k] for k in head.keys[::3]]
        scores = np.array([float(score(b)) for b in blocks])
        errors = [_root_mean_square(b, quantized(b, bits)) for b in blocks]
        correlations.append(spearman(scores, np.array(errors)))
        without.append(float((scores == 0).mean()))
    evidence = (
        f"{len(correlations)} KV heads: {min(correlations):.2f} to {max(correlations):.2f}, mean "
        f"{np.mean(correlations):.2f}; {np.mean(without):.0%} of the keys have no outlier"
    )
    if np.mean(correlations) < at_least:
        return refuted(f"mean correlation {np.mean(correlations):.2f}", evidence)
    return verified(evidence, correlations=correlations)


def _kv_heads(model: Path) -> list[Head]:
    first: dict[tuple[int, int], Head] = {}
    for head in observe(model):
        first.setdefault((head.layer, head.kv_head), head)
    return list(first.values())


def _root_mean_square(block: Block, other: Block) -> float:
    return float(mean([(x - y) ** 2 for x, y in zip(block, other, strict=True)])) ** 0.5


@PAPER.claim("DE-7b", "§3.2 and Fig. 3: R² = 0.018", Verdict.VERIFIED)
def importance_and_sensitivity_are_unrelated(
    *, model: Path, at_most: float = 0.2, recent: int = 32
) -> Finding:
    """How important a token is says little about how sensitive it is: R² is near zero.

    The embedded model, per KV head: mean attention of the last 32 queries against the outlier
    score, over all older tokens.
    """
    found = []
    for head in _kv_heads(model):
        importance = head.attention()[-recent:, :-recent].mean(axis=0)
        keys = head.keys[:-recent]
        scores = [
            float(outlier_score([Fraction(float(x)).limit_denominator(10**6) for x in k]))
            for k in keys
        ]
        found.append(float(np.corrcoef(importance, scores)[0, 1] ** 2))
    evidence = f"{len(found)} KV heads: R² {min(found):.3f} to {max(found):.3f}"
    if np.mean(found) > at_most:
        return refuted(f"mean R² {np.mean(found):.3f}", evidence)
    return verified(f"{evidence}, mean {np.mean(found):.3f}", r_squared=found)


@PAPER.claim("DE-7", "§3.2 and Fig. 3: quadrants", Verdict.EXHAUSTIVE, ("thresholds",))
def medians_balance_opposite_quadrants(
    *,
    balanced: Callable[[Mapping[str, int]], bool] = lambda q: (
        q["Q1"] == q["Q3"] and q["Q2"] == q["Q4"]
    ),
    largest: int = 6,
) -> Finding:
    """With both thresholds at the medians of an even number of distinct scores, opposite quadrants
    hold equally many tokens: Q1 = Q3 and Q2 = Q4.

    All orders of two, four and six tokens.
    """
    for n in range(2, largest + 1, 2):
        for sensitivity in permutations(range(n)):
            high = [s >= n // 2 for s in sensitivity]
            important = [i >= n // 2 for i in range(n)]
            counts = _quadrants(important, high)
            if sum(counts.values()) != n or not balanced(counts):
                return refuted(f"{n} tokens, ranks {sensitivity}: {counts}")
    return exhaustive(
        f"every order of {', '.join(map(str, range(2, largest + 1, 2)))} tokens; half of them are "
        "above each median"
    )


def _quadrants(important: Sequence[bool], sensitive: Sequence[bool]) -> dict[str, int]:
    names = {(False, False): "Q1", (True, False): "Q2", (True, True): "Q3", (False, True): "Q4"}
    counts = dict.fromkeys(names.values(), 0)
    for pair in zip(important, sensitive, strict=True):
        counts[names[pair]] += 1
    return counts


# --- bits ----------------------------------------------------------------------------------------


@PAPER.claim("DE-5a", "Table 3, 'Ave Bit' of DesireKV", Verdict.VERIFIED, ("bits per quadrant",))
def quadrant_bits_give_the_printed_averages(
    *, low: int = 4, high: int = 8, printed: Mapping[float, float] | None = None
) -> Finding:
    """With 4 bits in Q2, 8 in Q3 and half of the tokens evicted, the averages are the printed 3.0
    and 2.9 bits: for equal quadrants, and for the published 27.17 % in Q2.

    The paper states no widths.
    """
    averages = printed or {0.25: 3.0, 0.2717: 2.9}
    found = {share: share * low + (0.5 - share) * high for share in averages}
    off = [share for share in averages if round(found[share], 1) != averages[share]]
    if off:
        return refuted(f"Q2 = {off[0]:.2%}: {found[off[0]]:.3f} bits, {averages[off[0]]} printed")
    other = [share * low + (0.5 - share) * 16 for share in averages]
    return verified(
        f"{', '.join(f'{x:.3f}' for x in found.values())} bits; with 16 bits in Q3 they would be "
        f"{', '.join(f'{x:.2f}' for x in other)}"
    )


@PAPER.claim("DE-5b", "Table 3, 'Ave Bit' of DDKS and K4V4", Verdict.REFUTED)
def bits_are_counted_alike(
    *,
    printed: Mapping[str, tuple[float, float]] | None = None,
    overhead: Callable[[int], float] = lambda g: 32 / g,
) -> Finding:
    """Table 3 counts the bits of a method in the same way for both models.

    Payload: DDKS a quarter at 16 and the rest at 2, K4V4 4. Overhead: 32 bits of scale and zero
    point per group of g.
    """
    table = printed or {"DDKS": (5.9, 5.5), "K4V4": (4.3, 4.0)}
    apart = {name: pair for name, pair in table.items() if pair[0] != pair[1]}
    if not apart:
        return verified(f"{len(table)} methods have one figure for both models")
    with_scales = {"DDKS": 4 + 0.75 * (2 + overhead(64)), "K4V4": 4 + overhead(128)}
    without = {"DDKS": 4 + 0.75 * 2, "K4V4": 4.0}
    holds = all(
        abs(pair[0] - with_scales[name]) <= 0.051 and abs(pair[1] - without[name]) <= 0.051
        for name, pair in apart.items()
    )
    return refuted(
        "; ".join(
            f"{name}: {qwen} for Qwen, {llama} for Llama" for name, (qwen, llama) in apart.items()
        ),
        f"payload {without['DDKS']} and {without['K4V4']}; with scales {with_scales['DDKS']:.3f} "
        f"(g = 64) and {with_scales['K4V4']:.3f} (g = 128)",
        "Qwen's figures count scales and zero points, Llama's do not" if holds else "",
    )


@PAPER.claim("DE-5c", "Table 1: 57.5 %", Verdict.VERIFIED)
def protective_sampling_saves(
    *, overhead: float = 32 / 64, printed: tuple[float, ...] = (0.574, 0.576)
) -> Finding:
    """A fifth of the tokens at 16 bits and the rest at 4 save about 57.5 %, scales of groups of 64
    counted.
    """
    saved = 1 - (0.2 * 16 + 0.8 * (4 + overhead)) / 16
    if not min(printed) - 5e-4 <= saved <= max(printed) + 5e-4:
        return refuted(f"{saved:.1%} are saved")
    return verified(f"1 − (0.2·16 + 0.8·{4 + overhead:g})/16 = {saved:.1%}")


@PAPER.claim("DE-5d", "§5.2: 'over 5.5×'", Verdict.REFUTED)
def compression_exceeds_five_and_a_half(
    *, bits: Mapping[str, float] | None = None, claimed: float = 5.5, reading: float = 5.3
) -> Finding:
    """The cache is compressed by more than 5.5 times on both models."""
    ratios = {name: 16 / b for name, b in (bits or {"Qwen-7B": 3.0, "Llama-8B": 2.9}).items()}
    below = {name: ratio for name, ratio in ratios.items() if not ratio > claimed}
    evidence = ", ".join(
        f"{name} 16/{16 / ratio:.1f} = {ratio:.2f}" for name, ratio in ratios.items()
    )
    if not below:
        return verified(evidence)
    return refuted(
        "; ".join(f"{name}: {ratio:.2f}" for name, ratio in below.items()),
        evidence,
        f"by more than {reading:g} times" if min(ratios.values()) > reading else "",
    )


# --- tables --------------------------------------------------------------------------------------

Row = tuple[tuple[float, float], ...]
"""Score and printed loss in percent, on GSM8K, MATH, AIME and GPQA."""
BASELINE: Mapping[str, tuple[float, ...]] = {
    "Qwen": (0.8915, 0.9185, 0.5417, 0.4785),
    "Llama": (0.8836, 0.8705, 0.4667, 0.4759),
}
TABLE_3: Mapping[str, tuple[Row, float]] = {  # scores and losses, printed average loss
    "Qwen K8V4": (((0.8811, 1.2), (0.9123, 0.7), (0.5333, 1.5), (0.4600, 3.9)), 1.8),
    "Qwen K4V4": (((0.8795, 1.4), (0.9031, 1.7), (0.5042, 6.9), (0.4558, 4.7)), 3.7),
    "Qwen RPC": (((0.8574, 3.8), (0.8885, 3.3), (0.4250, 21.5), (0.4431, 7.4)), 9.0),
    "Qwen DDKS": (((0.8698, 2.4), (0.8925, 2.8), (0.4750, 10.9), (0.4407, 7.9)), 6.0),
    "Qwen Ours": (((0.8797, 1.3), (0.9028, 1.7), (0.5343, 1.3), (0.4760, 0.5)), 1.2),
    "Llama K8V4": (((0.8762, 0.8), (0.8595, 1.3), (0.4583, 1.8), (0.4691, 1.4)), 1.3),
    "Llama K4V4": (((0.8624, 2.4), (0.8505, 2.3), (0.3586, 23.2), (0.4141, 13.0)), 10.2),
    "Llama RPC": (((0.8697, 1.6), (0.8425, 3.2), (0.4333, 7.2), (0.4015, 15.6)), 6.9),
    "Llama DDKS": (((0.8561, 3.1), (0.8325, 4.4), (0.3375, 27.7), (0.4047, 15.0)), 12.6),
    "Llama Ours": (((0.8811, 0.3), (0.8595, 1.3), (0.4625, 0.9), (0.4684, 1.6)), 1.0),
}
TASKS = ("GSM8K", "MATH", "AIME", "GPQA")


@PAPER.claim("DE-5e", "Table 3, losses", Verdict.REFUTED)
def losses_follow_from_the_scores(
    *, table: Mapping[str, tuple[Row, float]] = TABLE_3, tolerance: float = 0.11
) -> Finding:
    """Every printed loss is the score's distance from the baseline's, in percent of it.

    A tenth of a point more or less is taken for rounding.
    """
    off = []
    for name, (row, _) in table.items():
        baseline = BASELINE[name.split()[0]]
        for task, (score, printed), full in zip(TASKS, row, baseline, strict=True):
            loss = 100 * (1 - score / full)
            if abs(loss - printed) > tolerance:
                off.append(
                    f"{name} {task}: {score} of {full} is a loss of {loss:.1f}, not {printed}"
                )
    entries = 4 * len(table)
    if not off:
        return verified(f"{entries} losses")
    return refuted("; ".join(off), f"{entries} losses recomputed, {entries - len(off)} agree")


@PAPER.claim("DE-5g", "Table 3, average losses", Verdict.REFUTED)
def average_losses_are_averages(
    *, table: Mapping[str, tuple[Row, float]] = TABLE_3, tolerance: float = 0.11
) -> Finding:
    """Every printed average loss is the mean of the row's four losses, taken from its scores."""
    off = []
    for name, (row, printed) in table.items():
        baseline = BASELINE[name.split()[0]]
        losses = [100 * (1 - score / full) for (score, _), full in zip(row, baseline, strict=True)]
        if abs(np.mean(losses) - printed) > tolerance:
            off.append(f"{name}: {np.mean(losses):.2f}, not {printed}")
    if not off:
        return verified(f"{len(table)} rows")
    return refuted("; ".join(off), f"{len(table)} rows recomputed, {len(table) - len(off)} agree")


@PAPER.claim("DE-5f", "Tables 1-4, AIME", Verdict.REFUTED)
def aime_scores_lie_on_the_grid(
    *, samples: int = 240, corrected: Mapping[float, float] | None = None
) -> Finding:
    """AIME scores are multiples of 1/240: 30 problems, 8 samples of each."""
    table = [row[2][0] for row, _ in TABLE_3.values()]
    scores = [*table, *(row[2] for row in BASELINE.values()), 0.4375, 0.4292, 0.4583, 0.4625]
    changed = [(corrected or {}).get(score, score) for score in scores]
    off = [s for s in dict.fromkeys(changed) if abs(round(s * samples) / samples - s) > 6e-5]
    evidence = f"{len(scores)} scores, {len(scores) - len(off)} of them on the grid"
    if not off:
        return verified(evidence)
    nearest = [round(round(s * samples) / samples, 4) for s in off]
    few = len(off) <= 2
    return refuted(
        "; ".join(f"{s}, the nearest is {n}" for s, n in zip(off, nearest, strict=True)),
        evidence,
        "all others are, so these two look like misprints" if few else "",
    )
