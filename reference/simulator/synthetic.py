"""Timelines that no method made, of any size and drawn at random: for tests and measurements."""

import numpy as np

from kvlab.reference.checks import check_at_least
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.simulator.timeline import FIRST_STATES, GONE, Events, Run, Snapshot, Timeline

CODED = len(FIRST_STATES)
"""Index of the state of a coded entry: keys and values at half of `FULL_BITS`."""

WORDS = ("the", " cache", " of", " keys", ",", " and", "\n", " values", ".", " 8", "")


def synthetic(
    methods: int = 2,
    tokens: int = 40,
    prompt: int = 10,
    layers: int = 2,
    kv_heads: int = 2,
    budget: int = 16,
    every: int = 4,
    texts: tuple[str, ...] | None = None,
    seed: int = 0,
) -> Timeline:
    """Draw runs under which every head evicts down to a budget; some entries first go to 8 bits.

    Args:
        methods: Number of runs, named ``random-0`` onwards.
        tokens: Tokens that are read, the prompt included; one more is written.
        prompt: Tokens that the first step reads.
        layers: Number of layers.
        kv_heads: KV heads per layer.
        budget: Entries per KV head that a step leaves at most.
        every: Steps from one snapshot to the next.
        texts: Text of every token, ``tokens + 1`` of them; short English words by default.
        seed: Seed of everything that is drawn.

    Raises:
        ValueError: if a number is below 1, the prompt exceeds the tokens, or there are not as many
            texts as tokens.
    """
    check_at_least(1, methods=methods, tokens=tokens, prompt=prompt, layers=layers)
    check_at_least(1, kv_heads=kv_heads, budget=budget, every=every)
    if prompt > tokens:
        raise ValueError(f"prompt = {prompt} must be at most tokens = {tokens}")
    if texts is not None and len(texts) != tokens + 1:
        raise ValueError(f"texts: there are {len(texts)}, there must be tokens + 1 = {tokens + 1}")
    rng = np.random.default_rng(seed)
    texts = texts or tuple(rng.choice(WORDS, tokens + 1).tolist())
    shape = (layers, kv_heads)
    runs = [
        _draw(f"random-{number}", tokens, prompt, shape, budget, every, texts, rng)
        for number in range(methods)
    ]
    return Timeline("random", 0.01, tuple(runs))


def _draw(
    name: str,
    tokens: int,
    prompt: int,
    shape: tuple[int, int],
    budget: int,
    every: int,
    texts: tuple[str, ...],
    rng: np.random.Generator,
) -> Run:
    steps = np.arange(prompt, tokens + 1)
    parts, snapshots = [], []
    for layer in range(shape[0]):
        present = [list(range(prompt)) for _ in range(shape[1])]
        for index, seen in enumerate(steps.tolist()):
            if index > 0:
                for head in present:
                    head.append(seen - 1)
            if index % every == 0:
                snapshots.append(_snapshot(index, layer, present, rng))
            events = []
            for number, head in enumerate(present):
                coded = head[rng.integers(len(head))]
                while len(head) > budget:
                    gone = int(rng.integers(len(head) - 1))
                    events.append((number, head.pop(gone), GONE))
                if coded in head and rng.random() < 0.1:
                    events.append((number, coded, CODED))
            if events:
                heads, positions, states = np.array(events).T
                same = np.ones_like(heads)
                parts.append(Events(layer * same, heads, positions, index * same, states))
    return Run(
        name,
        budget,
        prompt,
        texts,
        None,
        tuple(range(shape[0])),
        shape[1],
        steps,
        np.ones(len(steps), dtype=bool),
        (*FIRST_STATES, (FULL_BITS // 2, FULL_BITS // 2)),
        Events.joined(parts),
        tuple(snapshots),
    )


def _snapshot(
    index: int, layer: int, present: list[list[int]], rng: np.random.Generator
) -> Snapshot:
    shape = (len(present), len(present[0]))
    score = np.where(rng.random(shape) < 0.2, -np.inf, rng.random(shape))
    stamp, interval = (rng.integers(0, 1 + index, shape) for _ in range(2))
    return Snapshot(index, layer, rng.random(shape) / shape[1], score, stamp, interval)
