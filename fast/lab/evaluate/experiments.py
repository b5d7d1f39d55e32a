"""What the four papers' tables compare, in miniature: the same contrasts on the embedded reasoner.

A contrast is one sentence of a paper about two methods. The printed figures belong to the papers'
models and benchmarks; only the direction can be compared with what is measured here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["more solved", "as many solved", "smaller error"]


@dataclass(frozen=True)
class Contrast:
    """One claim: ``ours`` against ``other``."""

    paper: str
    """The method's name in the registry."""
    source: str
    statement: str
    printed: str
    """Figures of the paper: ours, then the other's."""
    ours: str
    """Registry syntax, like ``other``."""
    other: str
    kind: Kind = "more solved"


@dataclass(frozen=True)
class Untested:
    """What cannot be tested on the embedded reasoner, and why."""

    paper: str
    source: str
    statement: str
    why: str
    instead: str
    """What tests it for who has the means."""


LAZY = "lazy_eviction@window=16,threshold=0.01"
RAAS = "raas@pin_prompt=false,threshold=0.01"
SNAPKV = "snapkv@window=16,schedule=every_block"
AHAKV = "ahakv@recent=16"
WINDOWS = "interval=32,selector=8"
DESIREKV = f"desirekv@{WINDOWS},group=32"
MILD = f"{DESIREKV},importance_quantile=0.2"
"""DesireKV that evicts a fifth of a window instead of half of it."""
MIRROR = {"h1": "H1", "h2": "H2"}


def contrasts() -> Iterator[Contrast]:
    """Yield all of them, paper by paper."""
    yield from lazy_eviction()
    yield from caote()
    yield from desirekv()
    yield from ahakv()


def lazy_eviction() -> Iterator[Contrast]:
    """Tables 1, 3, 4, 5, 9 and 10; windows and thresholds fit texts of 200 tokens."""
    name = "lazy_eviction"
    table_1 = "MATH-500, DS-Llama-8B, half of the cache"
    yield Contrast(
        name,
        "Table 1",
        "about as good as the full cache",
        f"75.2, 74.8: {table_1}",
        LAZY,
        "full",
        "as many solved",
    )
    for other, label, figure in (
        ("h2o", "H2O", 67.2),
        ("tova", "TOVA", 69.6),
        (RAAS, "RaaS", 71.2),
        ("rkv@every=16", "R-KV", 73.2),
    ):
        yield Contrast(
            name, "Table 1", f"better than {label}", f"75.2, {figure}: {table_1}", LAZY, other
        )
    yield Contrast(
        name,
        "§4, choice of W and α",
        "W at the 80 % MRI and an α that tells tokens apart are better than other ones",
        "no figure; here: the paper's own W = 25 and α = 5e-4",
        LAZY,
        "lazy_eviction",
    )
    for base, label, plain, lagged in (
        ("h2o@recent=16", "H2O", 77.16, 78.88),
        ("tova", "TOVA", 72.25, 76.09),
        (RAAS, "RaaS", 78.01, 78.92),
    ):
        window = f"{base}{',' if '@' in base else '@'}every=16"
        yield Contrast(
            name,
            "Table 3",
            f"waiting alone improves {label}",
            f"{lagged}, {plain}: GSM8K, DS-Llama-8B",
            window,
            base,
        )
        yield Contrast(
            name,
            "Table 3",
            f"better than {label} that waits as long",
            f"80.06, {lagged}: GSM8K, DS-Llama-8B",
            LAZY,
            window,
        )
    for part, without in (("h1", 82.78), ("h2", 87.21)):
        yield Contrast(
            name,
            "Table 4",
            f"{MIRROR[part]} is needed",
            f"88.40, {without}: GSM8K, DS-Qwen-7B",
            LAZY,
            f"{LAZY},{part}=none",
        )
    printed = {
        "h1": {"exp": 85.2, "tanh": 85.2, "log": 85.0, "inverse": 85.0},
        "h2": {"exp": 85.4, "tanh": 84.2, "log": 84.8, "inverse": 85.2},
    }
    for part, forms in printed.items():
        for form, figure in forms.items():
            yield Contrast(
                name,
                "Table 5",
                f"{MIRROR[part]} may have the form {form} as well",
                f"85.4, {figure}: MATH-500",
                LAZY,
                f"{LAZY},{part}={form}",
                "as many solved",
            )
    for window, figure in ((4, 75.14), (8, 76.58)):
        yield Contrast(
            name,
            "Table 9",
            f"a window near the 80 % MRI is better than one of {window}",
            f"80.06, {figure}: GSM8K, DS-Llama-8B",
            "lazy_eviction@window=32,threshold=0.01",
            f"lazy_eviction@window={window},threshold=0.01",
        )
    yield Contrast(
        name,
        "Table 10",
        "a larger α is worse",
        "80.06, 79.68: GSM8K, DS-Llama-8B",
        LAZY,
        "lazy_eviction@window=16,threshold=0.1",
    )
    yield Contrast(
        name,
        "Table 10",
        "a smaller α is worse",
        "80.06, 78.97: GSM8K, DS-Llama-8B",
        LAZY,
        "lazy_eviction@window=16,threshold=0.001",
    )


def caote() -> Iterator[Contrast]:
    """Tables 2 and 3, and Fig. 3."""
    average = "LongBench mean, Llama 3.1 8B, 2k"
    pairs = (
        ("H2O", "h2o", "caote:h2o", "33.31, 16.89"),
        ("TOVA per head", "tova@per_head=true", "caote:tova", "38.08, 37.52"),
        ("TOVA per layer", "tova", "caote:tova@heads=layer", "38.08, 37.52"),
        ("SnapKV", SNAPKV, "caote:snapkv@window=16", "40.05, 39.60"),
    )
    for label, base, wrapped, printed in pairs:
        yield Contrast(
            "caote",
            "Tables 2, 3",
            f"improves {label}",
            f"{printed}: {average}",
            wrapped,
            base,
        )
    for label, base, wrapped, _ in pairs:
        yield Contrast(
            "caote",
            "Fig. 3",
            f"{label}: the attention output stays closer to the full one",
            "a curve",
            wrapped,
            base,
            "smaller error",
        )
    for label, base, printed in (
        ("H2O", "h2o", "34.07, 33.31"),
        ("TOVA", "tova", "38.19, 38.08"),
        ("SnapKV", "snapkv@window=16", "40.73, 40.05"),
    ):
        yield Contrast(
            "caote",
            "Tables 2, 3",
            f"FastCAOTE around {label} is about as good as CAOTE",
            f"{printed}: {average}",
            f"fast_caote:{base}",
            f"caote:{base}",
            "as many solved",
        )


def desirekv() -> Iterator[Contrast]:
    """Tables 3 and 4; memory follows from each method's own rule."""
    for other, label, figure in (
        ("full", "the full cache", 0.8705),
        ("kivi@key_bits=4,value_bits=4,residual=32", "K4V4", 0.8505),
        (f"rpc@{WINDOWS}", "RPC", 0.8425),
        (f"ddks@{WINDOWS},group=32", "DDKS", 0.8325),
    ):
        full = other == "full"
        yield Contrast(
            "desirekv",
            "Table 3",
            f"about as good as {label}" if full else f"better than {label}",
            f"0.8595, {figure}: MATH, DS-Llama-8B",
            DESIREKV,
            other,
            "as many solved" if full else "more solved",
        )
    yield Contrast(
        "desirekv",
        "Table 3, evicting a fifth",
        "about as good as the full cache",
        "0.8595, 0.8705: MATH, DS-Llama-8B",
        MILD,
        "full",
        "as many solved",
    )
    for option, label, figure in (
        ("importance=random", "importance", 0.8455),
        ("sensitivity=random", "sensitivity", 0.8260),
        ("protection=none", "protection", 0.8545),
    ):
        yield Contrast(
            "desirekv",
            "Table 4",
            f"{label} is needed; here: the attention output stays closer to the full one",
            f"0.8595, {figure} solved: MATH, DS-Llama-8B",
            DESIREKV,
            f"{DESIREKV},{option}",
            "smaller error",
        )


def ahakv() -> Iterator[Contrast]:
    """Results and ablations, as a summary of the paper tells them."""
    for other, label in (("h2o", "H2O"), (SNAPKV, "SnapKV")):
        yield Contrast(
            "ahakv",
            "results on LongBench",
            f"better than {label}",
            "not in the summary that we have",
            AHAKV,
            other,
        )
    for option, label in (
        ("gain=none", "SG-softmax"),
        ("accumulation=all", "recent accumulation"),
        ("value_prior=none", "the value prior"),
    ):
        yield Contrast(
            "ahakv",
            "ablation",
            f"{label} is needed",
            "not in the summary that we have",
            AHAKV,
            f"{AHAKV},{option}",
        )


UNTESTED = (
    Untested(
        "lazy_eviction",
        "Tables 1, 2",
        "scores on GSM8K, MATH-500, AIME, GPQA, LiveCodeBench",
        "needs reasoning models of 4 to 32 billion parameters",
        "kvlab eval, with the weights",
    ),
    Untested(
        "lazy_eviction",
        "Tables 7, 8",
        "milliseconds per token on a V100",
        "needs that GPU and its code",
        "kvlab plan --papers: a cost model fitted to two of their figures",
    ),
    Untested(
        "caote",
        "Tables 2, 3, 7, 8",
        "scores on 16 LongBench tasks",
        "needs models of 3 to 8 billion parameters; here only the direction on one task",
        "kvlab eval, with the weights",
    ),
    Untested(
        "caote",
        "Tables 4, 9",
        "perplexity gap on Booksum",
        "the embedded model knows no language",
        "kvlab perplexity, with the weights",
    ),
    Untested(
        "caote",
        "Tables 5, 10, Fig. 2",
        "needle in a haystack",
        "the embedded model cannot be asked for a needle",
        "kvlab needle, with the weights",
    ),
    Untested(
        "caote",
        "Table 6",
        "smaller blocks of the prompt are better",
        "prompts of 110 tokens fit the budgets; nothing is evicted while they are read",
        "kvlab eval --block-size, with the weights",
    ),
    Untested(
        "desirekv",
        "Tables 1, 2",
        "20 % protected tokens, on AIME",
        "needs a reasoning model; the protected share is no option of the method",
        "notebook 05 shows the premise: outliers tell the error",
    ),
    Untested(
        "desirekv",
        "Fig. 5",
        "memory and throughput on an H20",
        "needs that GPU",
        "kvlab plan --papers: bytes agree, throughput is a model's",
    ),
    Untested(
        "ahakv",
        "LongBench",
        "better than NACL",
        "NACL evicts once, after the prompt; here prompts fit the budget and it never evicts",
        "kvlab eval, with the weights",
    ),
    Untested(
        "ahakv",
        "LongBench, short texts",
        "scores with LLaMA, Qwen and Gemma",
        "needs the models, and we have only a summary of the paper",
        "kvlab eval, with the weights",
    ),
)
