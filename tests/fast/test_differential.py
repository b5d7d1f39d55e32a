"""Every method, fast against reference, on random streams."""

from collections import deque
from itertools import islice, product
from math import ceil

import pytest
import torch

from kvlab.fast.engine import long_blocks
from kvlab.fast.engine.layers import Layers
from kvlab.fast.methods import port
from kvlab.fast.methods.knorm import KeyNorm
from kvlab.reference import methods
from support.cases import ALL, CODED, GRANULAR, ONE_EACH, budget_of
from support.replay import DTYPES, HEADS, Comparison, Tolerance, random_blocks
from support.shapes import shapes_checked
from support.tolerances import FLOAT64

BUDGET = 24
FLOWS = {
    "short": (26, 24, 9),
    "decode": (1, 110, None),
    "blocks": (115, 0, 1),
    "both": (26, 90, 9),
}
"""Tokens of the longest prompt, generated tokens, block size of prefill."""
BATCHES = {"one": (0,), "padded": (0, 11)}
"""Tokens that each prompt is shorter than the longest."""

LAYERS = {"short": 2, "decode": 1, "blocks": 1, "both": 2}
SHAPES_CHECKED = {"short": 0, "decode": 0, "blocks": 0, "both": 7}
"""Blocks of each stream during which array shapes are checked, too: prefill and four tokens."""

HYBRID = (
    "desirekv@interval=6,selector=3,group=4,importance_quantile=0,high_bits=16,"
    "sensitivity=attention,sensitivity_quantile=0.6,doubt_quantile=0.2"
)
SPECS = (
    *ALL,
    "raas@page=4,pin_prompt=false,every=3",
    "random@draw=once,seed=3",
    "tova@sinks=2,recent=3",
    *GRANULAR,
    *CODED,
    "nacl@proxy_share=0.2,sinks=2,recent=9",
    "ddks@reading=mikv,group=4",
    "openvino@start=4,recent=4,page=4,pool=3,window=3",
    "openvino@start=4,recent=2,page=4,pool=2,window=0,aggregation=sum,sinks=1",
    "openvino@start=4,recent=4,page=4,pool=3,window=9,chunk=7,crush=2,anchor=mean",
    "caote:h2o@evict_before_attend=true",
    "caote:h2o@normalize_over=candidates,pool=3",
    "caote:tova@heads=mean",
    "lazy_eviction@window=4,threshold=0.05,stamp_start=first_activation,h2_reading=printed",
    "lazy_eviction@window=4,threshold=0.05,stamp_start=first_activation,zero_interval=limit",
    "lazy_eviction@window=4,threshold=0.05,stamp_start=birth",
    "ahakv@recent=3,gain_factor=2",
    "vase@recent=3,first=1,size=length",
    "vase@recent=3,first=1,size=variance",
    "vase@recent=5,first=1,counted=all",
    "random_attention@recent=5,counted=all",
    HYBRID,
)
SHORT = (
    ("gqa", "float32", "short", "padded"),
    ("mha", "bfloat16", "short", "one"),
    ("mqa", "float64", "short", "padded"),
    ("gqa", "float64", "short", "one"),
)
LONG = (
    ("gqa", "float32", "both", "padded"),
    ("mha", "bfloat16", "decode", "one"),
    ("mqa", "float64", "blocks", "padded"),
    ("mqa", "float32", "both", "one"),
)
PROTECTING = (
    "keydiff@every=4,page=2",
    "ahakv@recent=3,gain_factor=0.5,gain_floor=0.5",
    "caote:h2o@recent=4,several=joint_greedy",
)
"""What is evicted depends on what is protected or has a floor."""
QUICK = [
    *((spec, *SHORT[number % len(SHORT)]) for number, spec in enumerate(ONE_EACH)),
    *((spec, "gqa", "float64", "short", "padded") for spec in PROTECTING),
]
"""Every method on a short stream."""
MATRIX = {
    *product(HEADS, ("float32", "bfloat16"), ("decode", "blocks", "both"), BATCHES),
    *SHORT,
    *LONG,
}


def compare(spec: str, heads: str, dtype: str, flow: str, batch: str) -> Comparison:
    number_format, tolerance = DTYPES[dtype]
    longest, steps, block_size = FLOWS[flow]
    prompts = [max(1, longest - shorter) for shorter in BATCHES[batch]]
    policy = methods.get(spec, budget_of(spec, BUDGET))
    layers = 1 if port(policy).precision.quantises else LAYERS[flow]
    comparison = Comparison(policy, tolerance, layers)
    blocks = random_blocks(7, HEADS[heads], prompts, steps, block_size, number_format, layers)
    with shapes_checked(True):
        for block in islice(blocks, SHAPES_CHECKED[flow]):
            comparison.feed(block)
    for block in blocks:
        comparison.feed(block)
    assert comparison.found.steps == layers * (ceil(longest / (block_size or longest)) + steps)
    return comparison


@pytest.mark.parametrize(("spec", "heads", "dtype", "flow", "batch"), QUICK)
def test_fast_agrees_with_the_reference(spec, heads, dtype, flow, batch):
    found = compare(spec, heads, dtype, flow, batch).found
    if flow in ("short", "both") and spec != "full":
        assert found.evictions > 0 or found.coded > 0


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_fast_agrees_with_the_reference_in_every_case(spec):
    for case in sorted(MATRIX):
        test_fast_agrees_with_the_reference(spec, *case)


@pytest.mark.parametrize("spec", ["h2o", "h2o@reduce=max", "caote:h2o"])
def test_blocks_that_are_summed_in_parts_agree_with_the_reference(spec, monkeypatch):
    monkeypatch.setattr(long_blocks, "SUMMED_ROWS", 2)
    for batch in BATCHES:  # with empty slots and without
        with shapes_checked(batch == "one"):
            compare(spec, "gqa", "float64", "short", batch)


@pytest.mark.parametrize("every", [1, 4])
def test_scores_of_protected_entries_do_not_count(every, monkeypatch):
    score = KeyNorm.score
    monkeypatch.setattr(KeyNorm, "score", lambda *x: score(*x).masked_fill(~x[3], torch.nan))
    compare(f"knorm@recent=3,every={every}", "gqa", "float64", "short", "padded").layers.check()


def test_the_comparison_can_fail():
    policy, other = methods.get("h2o", BUDGET), methods.get("tova", BUDGET)
    comparison = Comparison(policy, Tolerance(FLOAT64, FLOAT64))
    comparison.layers = Layers(port(other), 1, watch=comparison.compare)
    blocks = random_blocks(7, HEADS["gqa"], [26], 40, 9, torch.float64)
    with pytest.raises(AssertionError):
        deque(map(comparison.feed, blocks), maxlen=0)
