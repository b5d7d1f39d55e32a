"""DesireKV's claims (AAAI 2026, vol. 40): sensitivity, importance, memory and its tables.

Quartiles are those of linear interpolation, the usual rule; a block is a list of numbers of one
key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, permutations
from math import floor, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import sympy

from kvlab.reference.files import printed_tables
from kvlab.reference.proofs.claim import (
    Finding,
    Paper,
    Verdict,
    asymptotic,
    exhaustive,
    false,
    measured,
    proved,
    refuted,
    right,
    sentences,
    tabulated,
    verified,
)
from kvlab.reference.proofs.ranks import spearman
from kvlab.reference.simulator.observed import key_heads, observe_heads

PAPER = Paper("desirekv", "DesireKV", "AAAI 2026, vol. 40, pp. 20518-20526")
TABLES = printed_tables("desirekv")
TASKS = ("GSM8K", "MATH", "AIME2024", "GPQA")

Block = Sequence[Fraction]
Smoothing = Callable[[Sequence[Fraction], int, int], Fraction]
"""A function of the importances, a token's place i and the half-width w."""
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


Memory = Callable[[Any], Any]
"""A number of bits as a function of the step t."""


def equation_2(t: Any, bits: Any = 16) -> Any:
    """Sum over layers l and earlier tokens i of (d_k + d_v)·16 bits."""
    layers, keys, values = sympy.symbols("L d_k d_v", positive=True, integer=True)
    layer, token = sympy.symbols("l i", positive=True, integer=True)
    over_tokens = sympy.summation((keys + values) * bits, (token, 1, t - 1))
    return sympy.summation(over_tokens, (layer, 1, layers))


def traffic(t: Any) -> Any:
    """Bits that are read over all steps up to t."""
    step = sympy.symbols("s", positive=True, integer=True)
    return sympy.summation(equation_2(step), (step, 1, t))


def second_difference(memory: Memory) -> Any:
    """0 for what grows linearly; a constant above 0 for what grows quadratically."""
    t = sympy.symbols("t", positive=True, integer=True)
    return sympy.factor(sympy.simplify(memory(t + 1) - 2 * memory(t) + memory(t - 1)))


@PAPER.printed("DE-1", "§1 and §4.1, text before Eq. 2", Verdict.REFUTED)
@right("every token takes as many bits as it has places before it", memory=lambda t: t * (t - 1))
@false("the memory itself is the traffic", reading=lambda t: equation_2(t))
def memory_grows_quadratically(
    *, memory: Memory = equation_2, reading: Memory = traffic
) -> Finding:
    """Without compression the memory of the cache, Eq. 2, grows quadratically with the length.

    Second differences in t of the printed double sum.
    """
    if (second := second_difference(memory)) != 0:
        return proved(f"SymPy: the second difference of M_t is {second}")
    total = second_difference(reading)
    first = sympy.factor(memory(sympy.Integer(3)) - memory(sympy.Integer(2)))
    return refuted(
        f"M_3 − M_2 = M_2 − M_1 = {first}: every token adds the same",
        f"SymPy: the second difference of M_t is 0, that of the sum over all steps {total}",
        "memory grows linearly, as §5.3 says; the traffic, the sum of M_t over all steps, grows "
        "quadratically",
        total != 0,
    )


LAYERS, KV_HEADS, CHANNELS = 32, 8, 128
"""Llama-3.1-8B, and its distillation by DeepSeek-R1."""


@PAPER.reading("DE-1b", "§1 and Fig. 1: 32.8 GB of cache", Verdict.VERIFIED)
@false("GB are a thousand million bytes", unit=10**9)
@false("GB are GiB", unit=2**30)
def memory_of_the_example(*, unit: int = 1000 * 2**20) -> Finding:
    """The 16-bit cache of the 8B model at 32,768 tokens and a batch of 8 holds the printed 32.8 GB
    if GB are read as thousands of MiB; it is 34.36 GB of 10⁹ bytes, or 32 GiB.
    """
    found = 2 * LAYERS * KV_HEADS * CHANNELS * 2 * 32768 * 8
    return measured(
        abs(found / unit - 32.8) < 0.05,
        f"{LAYERS} layers · {KV_HEADS} heads · {CHANNELS} channels · 2 · 2 bytes · 32,768 · 8 = "
        f"{found:,} bytes = {found / unit:.2f} times {unit:,}",
    )


@PAPER.reading("DE-1c", "§5.3: 55 % of the memory", Verdict.VERIFIED)
@false("4 bits are kept", bits=4.0)
@false("the weights do not count", weights=0.0)
def saving_of_the_whole(*, bits: float = 3.0, weights: float = 15.5) -> Finding:
    """The printed 55 % is the saving of cache and weights together, at 3.0 bits; with the 2.9 bits
    that Table 3 prints for the model of this section, it would be 56 %.
    """
    saved = 1 - (weights + 32.8 * bits / 16) / (weights + 32.8)
    evidence = f"({weights} + 32.8·{bits:g}/16)/{weights + 32.8:.1f}: {saved:.1%} are saved"
    return measured(abs(saved - 0.55) <= 0.005, evidence)


@PAPER.printed("DE-1d", "§5.3: 49.7 %, 11.6 % and 55 %", Verdict.VERIFIED)
@false("the further saving is 20 %", further=0.2)
@false("both are 60 %", both=0.6)
def savings_add_up(*, further: float = 0.116, both: float = 0.55) -> Finding:
    """RPC saves 49.7 %, DesireKV another 11.6 % of what is left, together 55 %.

    As far as three rounded figures can tell.
    """
    totals = [1 - (0.503 - a) * (1 - further - b) for a in (-5e-4, 5e-4) for b in (-5e-4, 5e-4)]
    evidence = f"together {min(totals):.2%} to {max(totals):.2%}, by how the two were rounded"
    return measured(min(totals) < both + 0.005 and max(totals) >= both - 0.005, evidence)


@PAPER.printed("DE-1e", "Abstract and §5.3: 2.93× and 193.1 %", Verdict.VERIFIED)
@false("2.93× is an improvement by 293 %", plus=0.0)
def throughput_is_printed_alike(*, plus: float = 1.0) -> Finding:
    """A throughput of 2.93 times the full cache's is an improvement by 193.1 %."""
    return measured(abs(2.93 - plus - 1.931) < 0.005, f"2.93 − {plus:g} = {2.93 - plus:.2f}")


# --- §4.2: importance ----------------------------------------------------------------------------


@PAPER.ours("DE-9", "Eq. 3 over the entries that attention is over", Verdict.VERIFIED)
@false("it does not depend on the number of entries", total=lambda n: n / 50)
def importances_sum_to_one(
    *, model: Path, total: Callable[[int], float] = lambda n: 1.0
) -> Finding:
    """Eq. 3, a mean over window queries and heads, gives importances that sum to 1 over all
    entries. Their mean is 1/n, so a fixed threshold finds fewer important tokens in a longer text.

    Embedded model, each layer, the last 32 queries of the first 100 and of all tokens.
    """
    sums = {}
    for n in (100, len(observe_heads(model)[0].keys)):
        layers = {head.layer: [] for head in observe_heads(model)}
        for head in observe_heads(model):
            layers[head.layer].append(head.attention()[n - 32 : n, :n].mean(axis=0))
        sums[n] = [float(np.mean(heads, axis=0).sum()) for heads in layers.values()]
    worst = max(abs(x - total(n)) for n, each in sums.items() for x in each)
    return measured(worst < 1e-9, f"n = {', '.join(map(str, sums))}: off by {worst:.1e} at most")


@PAPER.printed("DE-6", "Eq. 4", Verdict.REFUTED, "Eq. 4")
@right("nothing is smoothed", smooth=lambda x, i, w: x[i])
@false("the reading smooths nothing", reading=lambda x, i, w: x[i])
def printed_smoothing_depends_on_the_token(
    *,
    smooth: Smoothing = lambda x, i, w: mean_of(x, range(-w, w + 1)),
    reading: Smoothing = lambda x, i, w: mean_of(x, range(i - w, i + w + 1)),
) -> Finding:
    """Eq. 4, the mean of I_t over t = −w … w, gives each token i a smoothed importance of its own.

    A unit of importance at every place of a window of 15 tokens, w = 3.
    """
    n, w = 15, 3
    units = [[Fraction(int(j == at)) for j in range(n)] for at in range(n)]
    if any(len({smooth(x, i, w) for i in range(n)}) > 1 for x in units):
        return proved(f"exact: units at each of {n} places")
    interior = range(w, n - w)
    kept = all(sum(reading(units[at], i, w) for i in range(n)) == 1 for at in interior)
    own = all(reading(units[at], at, w) == Fraction(1, 2 * w + 1) for at in interior)
    return refuted(
        f"importance 1 at the first token: every token of {n} gets {smooth(units[0], 0, w)}",
        f"exact: units at each of {n} places",
        "the mean is over I_{i+t}; what lies w or more from the border is conserved",
        kept and own,
    )


def mean_of(x: Sequence[Fraction], places: Sequence[int]) -> Fraction:
    """Mean over places; those outside count as 0."""
    return sum((x[t] for t in places if 0 <= t < len(x)), Fraction(0)) / len(places)


# --- §4.3: sensitivity ---------------------------------------------------------------------------


@PAPER.ours("DE-2", "Eq. 6 and the score below it", Verdict.EXHAUSTIVE)
@false("the score scales with a²", power=2)
@false("outliers are above 3", marked=lambda block: [j for j, x in enumerate(block) if x > 3])
@false("1 is added to the score", score=lambda block: outlier_score(block) + 1)
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


@PAPER.printed("DE-3", "§4.3, block score", Verdict.REFUTED, "frequency of outliers")
@right("the sum is divided by the block's length", score=lambda block: outlier_mass(block))
@false("the reading is the printed score", reading=lambda block: outlier_score(block))
def score_counts_outliers(
    *, score: Score = outlier_score, reading: Score = outlier_mass
) -> Finding:
    """The score of a block quantifies both the magnitude and the frequency of its outliers: more
    of them give it another score.

    Blocks of 64 values, of which two, four or eight are ±10, the others small and symmetric.
    """
    blocks = [_with_outliers(64, pairs) for pairs in (1, 2, 4)]
    scores, readings = ([rule(b) for b in blocks] for rule in (score, reading))
    if len(set(scores)) == len(scores):
        return verified(f"2, 4 and 8 outliers: {', '.join(f'{float(x):.3f}' for x in scores)}")
    return refuted(
        f"2, 4 and 8 outliers at ±10 of 64 values: scores {', '.join(map(str, scores))}",
        "exact fractions; counts enter only through blocks without any outlier, which score 0",
        "with the sum divided by the block's length it does (outlier_mean=block): "
        + ", ".join(f"{float(x):.3f}" for x in readings),
        readings[0] < readings[1] < readings[2],
    )


def _with_outliers(length: int, pairs: int) -> Block:
    rest = length - 2 * pairs
    small = [Fraction(2 * j - rest + 1, rest) for j in range(rest)]
    return [*small, *[Fraction(10)] * pairs, *[Fraction(-10)] * pairs]


@PAPER.ours("DE-3b", "Eq. 6 on Gaussian values", Verdict.ASYMPTOTIC)
@false("1 % lie beyond", rate=lambda factor: 0.01)
@false("as many lie beyond fences of 3 IQR", factor=3.0, rate=lambda factor: 0.00698)
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


@PAPER.ours("DE-4", "the quantiser, which §4.3 leaves open", Verdict.EXHAUSTIVE)
@false("a third of a step bounds it", bound=Fraction(1, 3), bits=(2,))
@false("rounding down is as good", rounding=Fraction(0), bits=(2,))
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


@PAPER.ours("DE-4c", "§4.3, outliers and approximation errors", Verdict.VERIFIED)
@false("the outliers themselves suffer", sign=-1)
def neighbours_of_outliers_suffer(*, sign: int = 1) -> Finding:
    """§4.3 says that outliers suffer larger errors, for quantisers made for typical values. Under a
    quantiser that spans minimum to maximum, as KIVI's does, the other values of their block suffer
    larger errors.

    Mean absolute errors at 4 bits in random blocks of 64 heavy-tailed values.
    """
    rng, own, others = np.random.default_rng(1), [], []
    for block in rng.standard_t(3, size=(2000, 64)):
        first, third = np.quantile(block, (0.25, 0.75))
        beyond = np.abs(block - (first + third) / 2) > 2 * (third - first)
        step = (block.max() - block.min()) / 15
        error = np.abs((block - block.min() + step / 2) % step - step / 2)
        if beyond.any():
            own.append(error[beyond].mean())
            others.append(error[~beyond].mean())
    means = float(np.mean(own)), float(np.mean(others))
    evidence = (
        f"{len(own)} blocks with outliers: {means[0]:.3f} for these, {means[1]:.3f} beside them"
    )
    return measured(sign * (means[1] - means[0]) > 0, evidence)


@PAPER.printed("DE-4b", "§3.1 and Fig. 2", Verdict.VERIFIED)
@false("it is above 0.9", strong=0.9)
@false("the score is turned round", score=lambda block: -outlier_score(block))
def outlier_score_tells_the_error(
    *, model: Path, strong: float = 0.5, score: Score = outlier_score
) -> Finding:
    """A token's outlier score has a strong positive correlation with its quantisation error.

    Keys of the embedded model, one block of 32 channels each: Spearman's correlation of the score
    with the root mean square error at 4 bits, mean over the KV heads; from 0.5 on it is strong.
    """
    correlations, without = [], []
    for head in key_heads(model):
        blocks = [exact(key) for key in head.keys[::3]]
        scores = np.array([float(score(b)) for b in blocks])
        errors = [_root_mean_square(b, quantized(b, 4)) for b in blocks]
        correlations.append(spearman(scores, np.array(errors)))
        without.append(float((scores == 0).mean()))
    evidence = (
        f"{len(correlations)} KV heads: {min(correlations):.2f} to {max(correlations):.2f}, mean "
        f"{np.mean(correlations):.2f}; {np.mean(without):.0%} of the keys have no outlier"
    )
    return measured(np.mean(correlations) >= strong, evidence, correlations=correlations)


def exact(key: Any) -> Block:
    """A key's values as fractions."""
    return [Fraction(float(x)).limit_denominator(10**6) for x in key]


def _root_mean_square(block: Block, other: Block) -> float:
    return float(mean([(x - y) ** 2 for x, y in zip(block, other, strict=True)])) ** 0.5


@PAPER.reading("DE-8", "Eq. 8", Verdict.VERIFIED)
@false("it is the maximum over j of S_{i,l} itself", largest=lambda scores: scores)
def normalised_sensitivity_reaches_one_once(
    *, model: Path, largest: Callable[[Any], Any] = lambda scores: scores.max()
) -> Finding:
    """Eq. 8 prints a maximum over j of S_{i,l}, in which no j occurs; read as S_{j,l}, over the
    tokens of the window, as the text below says, one token has 1 and the others less.

    Embedded model, first layer, tokens with an outlier. With no j all of them would have 1.
    """
    scores = _sensitivities(model)[0]
    scores = scores[scores > 0]
    ones = int((scores / largest(scores) == 1).sum())
    return measured(ones == 1, f"{len(scores)} tokens, {ones} with 1")


@PAPER.printed("DE-7b", "§3.2 and Fig. 3", Verdict.VERIFIED)
@false("importance is not smoothed", smoothing=0)
@false("R² is below 0.001", at_most=0.001)
def importance_and_sensitivity_are_unrelated(
    *, model: Path, at_most: float = 0.018, smoothing: int = 3
) -> Finding:
    """A token's importance and its sensitivity are nearly uncorrelated: R² = 0.018.

    Embedded model, mean over the layers: Eq. 3 and 4 over the last 32 queries and all heads, with
    w = 3, against Eq. 7, over all older tokens.
    """
    found = []
    for layer, sensitivity in _sensitivities(model).items():
        rows = [head.attention() for head in observe_heads(model) if head.layer == layer]
        raw = np.mean(rows, axis=0)[-32:, :-32].mean(axis=0)
        window = np.ones(2 * smoothing + 1) / (2 * smoothing + 1)
        importance = np.convolve(raw, window, "same")
        found.append(float(np.corrcoef(importance, sensitivity[:-32])[0, 1] ** 2))
    evidence = f"layers: R² {', '.join(f'{x:.3f}' for x in found)}, mean {np.mean(found):.4f}"
    return measured(np.mean(found) <= at_most, evidence, r_squared=found)


@cache
def _sensitivities(model: Path) -> dict[int, Any]:
    """Eq. 7 of every token by layer, mean over its KV heads."""
    layers: dict[int, list[list[float]]] = {}
    for head in key_heads(model):
        scores = [float(outlier_score(exact(key))) for key in head.keys]
        layers.setdefault(head.layer, []).append(scores)
    return {layer: np.mean(heads, axis=0) for layer, heads in layers.items()}


@PAPER.reading("DE-7", "§3.2, quadrants at medians", Verdict.EXHAUSTIVE, "thresholds")
@false("Q1 and Q2 are equal", balanced=lambda q: q["Q1"] == q["Q2"])
def medians_balance_opposite_quadrants(
    *,
    balanced: Callable[[Mapping[str, int]], bool] = lambda q: (
        q["Q1"] == q["Q3"] and q["Q2"] == q["Q4"]
    ),
) -> Finding:
    """With both thresholds at the medians of an even number of distinct scores, opposite quadrants
    hold equally many tokens: Q1 = Q3 and Q2 = Q4.
    """
    for n in (2, 4, 6):
        for sensitivity in permutations(range(n)):
            high = [s >= n // 2 for s in sensitivity]
            important = [i >= n // 2 for i in range(n)]
            counts = _quadrants(important, high)
            if sum(counts.values()) != n or not balanced(counts):
                return refuted(f"{n} tokens, ranks {sensitivity}: {counts}")
    return exhaustive("every order of 2, 4 and 6 tokens; half of them are above each median")


def _quadrants(important: Sequence[bool], sensitive: Sequence[bool]) -> dict[str, int]:
    names = {(False, False): "Q1", (True, False): "Q2", (True, True): "Q3", (False, True): "Q4"}
    counts = dict.fromkeys(names.values(), 0)
    for pair in zip(important, sensitive, strict=True):
        counts[names[pair]] += 1
    return counts


# --- bits ----------------------------------------------------------------------------------------


@PAPER.reading("DE-5a", "Table 3, bits of DesireKV", Verdict.VERIFIED, "bits per quadrant")
@false("Q3 keeps 16 bits", high=16)
@false("Q2 keeps 2 bits", low=2)
def quadrant_bits_give_the_printed_averages(*, low: int = 4, high: int = 8) -> Finding:
    """With 4 bits in Q2, 8 in Q3 and half of the tokens evicted, the averages are the printed 3.0
    and 2.9 bits: for equal quadrants, and for the published 27.17 % in Q2.

    The paper states no widths.
    """
    averages = {0.25: TABLES["accuracy"]["Qwen"]["Ours"]["bits"]}
    averages[0.2717] = TABLES["accuracy"]["Llama"]["Ours"]["bits"]
    found = {share: share * low + (0.5 - share) * high for share in averages}
    evidence = ", ".join(f"{share:.2%} in Q2: {bits:.3f} bits" for share, bits in found.items())
    return measured(all(round(found[x], 1) == averages[x] for x in averages), evidence)


@PAPER.ours("DE-5b", "Table 3, bits of DDKS and K4V4", Verdict.VERIFIED)
@false("scale and zero point take 64 bits", overhead=64)
@false("both models' figures count them", llama_counts=True)
def bits_are_counted_in_two_ways(*, overhead: int = 32, llama_counts: bool = False) -> Finding:
    """Table 3 prints two averages for one method: 5.9 and 5.5 bits for DDKS, 4.3 and 4.0 for K4V4.
    Qwen's count scales and zero points, Llama's do not.

    DDKS keeps a quarter at 16 bits and the rest at 2 in groups of 64, K4V4 4 bits in groups of 128.
    """

    def bits(counted: bool) -> dict[str, float]:
        extra = overhead if counted else 0
        return {"DDKS": 4 + 0.75 * (2 + extra / 64), "K4V4": 4 + extra / 128}

    models = {"Qwen": bits(True), "Llama": bits(llama_counts)}
    off = [
        abs(TABLES["accuracy"][model][method]["bits"] - x) > 0.051
        for model, methods in models.items()
        for method, x in methods.items()
    ]
    shown = (
        f"{name} {', '.join(f'{m} {x:g}' for m, x in b.items())}" for name, b in models.items()
    )
    return measured(not any(off), f"computed: {'; '.join(shown)}")


@PAPER.reading("DE-5c", "Tables 1 and 2, memory", Verdict.VERIFIED)
@false("no scales are counted", overhead=0.0)
@false("a tenth is kept at 16 bits", share=0.1)
def protective_sampling_saves(*, overhead: float = 32 / 64, share: float = 0.2) -> Finding:
    """A fifth of the tokens at 16 bits and the rest at 4 save the printed 57.4 to 57.6 %, if scale
    and zero point of groups of 64 are counted.
    """
    saved = 100 * (1 - (share * 16 + (1 - share) * (4 + overhead)) / 16)
    figures = [memory for _, memory in TABLES["protection"].values() if memory]
    evidence = f"1 − ({share}·16 + {1 - share}·{4 + overhead:g})/16 = {saved:.1f} %"
    return measured(min(figures) <= saved <= max(figures), evidence)


@PAPER.printed("DE-5d", "§5.2, summary", Verdict.REFUTED)
@right("both models keep 2.9 bits", bits={"both": 2.9})
@false("the reading says more than 5.4 times", reading=5.4)
def compression_exceeds_five_and_a_half(
    *, bits: Mapping[str, float] | None = None, reading: float = 5.3
) -> Finding:
    """The cache is compressed by more than 5.5 times, at losses of 0.3 to 1.7 %, which are those of
    both models. (The conclusion says: up to 5.5 times.)
    """
    given = {model: table["Ours"]["bits"] for model, table in TABLES["accuracy"].items()}
    ratios = {name: 16 / b for name, b in (bits or given).items()}
    below = [f"{name}: {ratio:.2f}" for name, ratio in ratios.items() if not ratio > 5.5]
    least = f"by more than {reading:g} times on both" if min(ratios.values()) > reading else ""
    return tabulated(below, len(ratios), "models have a ratio above 5.5", least)


@PAPER.printed("DE-5h", "Table 3, bits of K8V4", Verdict.VERIFIED)
@false("scales of groups of 64 are counted", overhead=0.5)
def bits_of_k8v4(*, overhead: float = 0.0) -> Finding:
    """K8V4, 8 bits for keys and 4 for values, keeps 6.0 bits on average on both models."""
    bits = (8 + 4) / 2 + overhead
    figures = [table["K8V4"]["bits"] for table in TABLES["accuracy"].values()]
    return measured(all(round(bits, 1) == x for x in figures), f"{bits} and printed {figures}")


# --- tables --------------------------------------------------------------------------------------

Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Model → method → scores, losses, bits and average loss."""


def losses(scores: Sequence[float], full: Sequence[float]) -> list[float]:
    """Losses against the full cache, in percent."""
    return [100 * (1 - score / whole) for score, whole in zip(scores, full, strict=True)]


def put_right(table: Table) -> Table:
    """Table 3 with every loss computed from its scores."""
    return {
        model: {
            method: {**row, "losses": losses(row["scores"], rows["BF16"]["scores"])}
            for method, row in rows.items()
        }
        for model, rows in table.items()
    }


@PAPER.printed("DE-5e", "Table 3, losses", Verdict.REFUTED)
@right("every loss is computed from its score", table=put_right(TABLES["accuracy"]))
def losses_follow_from_the_scores(*, table: Table | None = None) -> Finding:
    """Every loss is the score's distance from the full cache's score, in percent of the full
    cache's score.

    A tenth of a point more or less is taken for rounding.
    """
    off = [
        f"{model} {method} {task}: {score} is a loss of {loss:.1f}, not {printed_loss}"
        for model, rows in (table or TABLES["accuracy"]).items()
        for method, row in rows.items()
        for task, score, loss, printed_loss in zip(
            TASKS,
            row["scores"],
            losses(row["scores"], rows["BF16"]["scores"]),
            row["losses"],
            strict=True,
        )
        if abs(loss - printed_loss) > 0.11
    ]
    return tabulated(off, 40, "losses follow from their score")


@PAPER.printed("DE-5g", "Table 3, average losses", Verdict.VERIFIED)
@false("the losses are put right by DE-5e", table=put_right(TABLES["accuracy"]))
def average_losses_are_averages(*, table: Table | None = None) -> Finding:
    """Every average loss is the mean of the row's four losses, as these are printed.

    One of the losses does not follow from its score (DE-5e), and its average inherits that.
    """
    off = [
        f"{model} {method}: {mean:.2f}, not {row['loss']}"
        for model, rows in (table or TABLES["accuracy"]).items()
        for method, row in rows.items()
        if abs((mean := np.mean(row["losses"])) - row["loss"]) > 0.051
    ]
    return tabulated(off, 10, "averages are the mean of their row")


@PAPER.ours("DE-5f", "Tables 1 to 4, AIME2024", Verdict.VERIFIED)
@false("30 samples are enough", samples=30)
@false("all figures are on the grid", off=())
def aime_scores_lie_on_a_grid(
    *, samples: int = 240, off: Sequence[float] = (0.5343, 0.3586)
) -> Finding:
    """All AIME scores but two are whole numbers of 240 samples, 8 for each of 30 problems. The two,
    0.5343 and 0.3586, look like misprints of 0.5333 and 0.3583.
    """
    scores = [row["scores"][2] for rows in TABLES["accuracy"].values() for row in rows.values()]
    scores += [row[2] for row in TABLES["ablation"].values()]
    found = [s for s in dict.fromkeys(scores) if abs(round(s * samples) / samples - s) > 6e-5]
    evidence = f"{len(scores)} scores; off the grid: {', '.join(map(str, found)) or 'none'}"
    return measured(set(found) == set(off), evidence)


@PAPER.ours("DE-10", "§3.1 and §3.3 on Tables 1 and 2", Verdict.VERIFIED)
@false("2400 samples tell them apart as little", samples=2400)
def protections_differ_by_chance(*, samples: int = 240) -> Finding:
    """With 240 samples, the grid that all scores lie on, neither table shows a difference between
    its two protections: the 95 % intervals of both differences contain 0.

    Two independent shares; the paper does not say which samples belong together.
    """
    table, found = TABLES["protection"], {}
    for better, worse in (
        ("outliers", "a random fifth"),
        ("attention and confidence", "attention"),
    ):
        p, q = (table[name][0] / 100 for name in (better, worse))
        found[f"{better} over {worse}"] = p - q, 1.96 * sqrt((p * (1 - p) + q * (1 - q)) / samples)
    evidence = "; ".join(f"{n}: {gap:+.1%} ± {width:.1%}" for n, (gap, width) in found.items())
    return measured(all(gap <= width for gap, width in found.values()), evidence)


def margins_of_sentences() -> dict[str, list[float]]:
    """By how much the figures support each sentence on Tables 3 and 4."""
    models = TABLES["accuracy"].values()
    own = [(rows["Ours"], rows) for rows in models]
    whole, *parts = (TABLES["ablation"][name] for name in ("DesireKV", "-I", "-S", "-P"))
    others = [parts[0], parts[2]]
    return {
        "§5.2: better than RPC and DDKS on every data set": [
            a - b
            for ours, rows in own
            for name in ("RPC", "DDKS")
            for a, b in zip(ours["scores"], rows[name]["scores"], strict=True)
        ],
        "§5.2: smaller average loss than K8V4": [r["K8V4"]["loss"] - o["loss"] for o, r in own],
        "§5.2: fewer bits than every other method": [
            row["bits"] - ours["bits"]
            for ours, rows in own
            for row in rows.values()
            if row is not ours
        ],
        "§5.4: removing any part costs accuracy": [
            a - b for part in parts for a, b in zip(whole, part, strict=True)
        ],
        "§5.4: removing sensitivity costs most": [
            a - b for part in others for a, b in zip(part, parts[1], strict=True)
        ],
    }


@PAPER.printed("DE-11", "§5.2 and §5.4 on Tables 3 and 4", Verdict.VERIFIED)
@false("every sentence is turned round", turned=-1)
def tables_say_what_the_text_says(*, turned: int = 1) -> Finding:
    """Tables 3 and 4 show what the text says of them: DesireKV is better than RPC and DDKS
    everywhere and than K8V4 on average, with the fewest bits; every part is needed, sensitivity
    most.
    """
    return sentences(margins_of_sentences(), turned)
