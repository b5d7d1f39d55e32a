"""Records what a method does: watches it while a model writes, or asks it about a trace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.generate import generate
from kvlab.reference.notation import Array
from kvlab.reference.policy import Policy
from kvlab.reference.simulator.replay import Layer, check_replay
from kvlab.reference.simulator.timeline import FIRST_STATES, GONE, WIDE, Run, Snapshot, values_in
from kvlab.reference.simulator.trace import Trace
from kvlab.reference.step import Block, StepResult
from kvlab.reference.streams import run_stream
from kvlab.reference.transformer import Transformer

MOST_VALUES = 2**23
"""Entries in all snapshots of a run, 32 bytes each; a longer one has not one for every step."""


def record_generation(
    model: Transformer,
    tokenizer: Tokenizer,
    policy: Policy,
    prompt: str,
    max_new_tokens: int,
    *,
    budget: int | None = None,
    stop: int | None = None,
    block_size: int | None = None,
    threshold: float = 0.01,
    solved: Callable[[str], bool] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Let a model write under a method, and record what happens to every token.

    The text ends after the token ``stop``. ``budget``, in entries, is only shown. An entry counts
    as activated from the attention ``threshold`` on. All snapshots together hold `MOST_VALUES`
    entries at most; steps between them are left out. ``solved`` says whether an answer is right,
    ``progress`` is called with the tokens done and the most that there can be.

    Raises:
        ValueError: if the prompt is empty, or the policy cannot work with it.
    """
    ids = tokenizer.encode(prompt).ids
    recorder = _Recorder(len(ids) + max_new_tokens, threshold)

    def watch(block: Block, result: StepResult) -> None:
        recorder.note(result)
        progress(block.clock.seen, len(ids) + max_new_tokens - 1)

    written = generate(
        model, policy, ids, max_new_tokens, stop=stop, block_size=block_size, watch=watch
    )
    answer = tokenizer.decode(list(written.tokens), skip_special_tokens=False)
    texts = token_texts(tokenizer, [*ids, *written.tokens])
    return recorder.run(policy, budget, len(ids), texts, solved(answer) if solved else None)


def record_replay(
    trace: Trace,
    texts: Sequence[str],
    policy: Policy,
    *,
    budget: int | None = None,
    block_size: int | None = None,
    threshold: float = 0.01,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Ask a method what it would have done with the tokens of a trace, whose texts are ``texts``.

    All options are those of `record_generation`.

    Raises:
        ValueError: if the policy does not fit the trace, or the texts do not.
    """
    check_replay(trace, [policy], block_size)
    t = trace.shape[3]
    if len(texts) != t:
        raise ValueError(f"texts of {len(texts)} tokens must be of the {t} tokens of the trace")
    recorder = _Recorder(t, threshold)
    layers = Layer.all_of(trace, block_size)
    for results in zip(*(run_stream(policy, layer) for layer in layers), strict=True):
        for result in results:
            recorder.note(result)
        progress(results[0].seen.clock.seen, t)
    return recorder.run(policy, budget, trace.prompt, texts, None)


@dataclass
class _Recorder:
    """Collects a run from the steps of a policy."""

    tokens: int
    """Most tokens that are read."""
    threshold: float
    layers: dict[int, dict[str, Array]] = field(default_factory=dict)
    """What is known of every token of each layer, in arrays ``[G, tokens]``."""
    steps: list[int] = field(default_factory=list)
    decisions: list[bool] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=lambda: list(FIRST_STATES))
    events: list[Array] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    every: int = 1
    """Steps between two snapshots."""

    def __post_init__(self) -> None:
        found = (method.tracker(self.threshold) for method in methods.known().values())
        self.trackers = [tracker for tracker in found if tracker is not None]

    def note(self, result: StepResult) -> None:
        """Write one step of one layer down."""
        seen, decision, at = result.seen, result.decision, result.seen.positions
        if seen.layer not in self.layers:
            self.layers[seen.layer] = self.unread(len(at))
        if not self.steps or self.steps[-1] != seen.clock.seen:
            self.thin_out()
            self.steps.append(seen.clock.seen)
            self.decisions.append(False)
        self.decisions[-1] |= result.keep is not None
        known, step = self.layers[seen.layer], len(self.steps) - 1
        layer = list(self.layers).index(seen.layer)
        if decision is not None and decision.scores is not None:
            rated = np.where(decision.candidates, decision.scores, -np.inf)
            np.put_along_axis(known["score"], at, rated, axis=1)
        tracked = {}
        for tracker in self.trackers:
            so_far = {name: np.take_along_axis(known[name], at, axis=1) for name in tracker.columns}
            for name, numbers in tracker.observe(State(so_far), seen).entries.items():
                np.put_along_axis(known[name], at, numbers, axis=1)
                if tracker.columns[name].recorded:
                    tracked[name] = numbers
        if step % self.every == 0:
            attention = seen.attention[:, :, -1].mean(axis=1)
            score = np.take_along_axis(known["score"], at, axis=1)
            self.snapshots.append(Snapshot(step, layer, attention, score, tracked))
        before = known["state"][:, : seen.clock.seen]
        now = np.full_like(before, GONE)
        np.put_along_axis(now, result.cache.positions, self.codes(result.cache), axis=1)
        head, position = np.nonzero(now != before)
        columns = np.broadcast_arrays(layer, head, position, step, now[head, position])
        self.events.append(np.stack(columns, axis=1))
        before[:] = now

    def unread(self, heads: int) -> dict[str, Array]:
        """Return what is known of the tokens of a layer before they are read."""
        shape = heads, self.tokens
        found = {"state": np.full(shape, WIDE), "score": np.full(shape, np.nan)}
        for tracker in self.trackers:
            found |= {name: column.rows(*shape) for name, column in tracker.columns.items()}
        return found

    def codes(self, cache: LayerCache) -> Array:
        """Return how each entry is stored, as indices into ``states``."""
        pairs = np.stack([cache.keys.bits, cache.values.bits], axis=-1)
        found = np.full(pairs.shape[:2], -1)
        for bits in {tuple(pair) for pair in pairs.reshape(-1, 2).tolist()}:
            if bits not in self.states:
                self.states.append(bits)
            found[(pairs == bits).all(axis=-1)] = self.states.index(bits)
        return found

    def thin_out(self) -> None:
        """Drop every other snapshot while they hold more than `MOST_VALUES` entries."""
        while values_in(self.snapshots) > MOST_VALUES and self.every < len(self.steps):
            self.every *= 2
            self.snapshots = [each for each in self.snapshots if each.step % self.every == 0]

    def run(
        self,
        policy: Policy,
        budget: int | None,
        prompt: int,
        texts: Sequence[str],
        solved: bool | None,
    ) -> Run:
        """Return what was collected."""
        self.thin_out()
        return Run(
            policy.name,
            budget,
            prompt,
            tuple(texts),
            solved,
            tuple(self.layers),
            len(next(iter(self.layers.values()))["state"]),
            np.array(self.steps),
            np.array(self.decisions),
            tuple(self.states),
            np.unique(np.concatenate(self.events), axis=0),
            tuple(sorted(self.snapshots, key=lambda each: (each.layer, each.step))),
        )


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to those before it.

    A character that several tokens make up belongs to the last of them; the others add nothing.
    """
    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in ids]
