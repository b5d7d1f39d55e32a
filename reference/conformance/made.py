"""Makes cases on the spot, with the reference's answers: of drawn inputs, and of streams' steps."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance import blocks, draws, plan
from kvlab.reference.conformance.expecting import logit_size, threshold
from kvlab.reference.conformance.stages import REMEMBERED
from kvlab.reference.conformance.targets import (
    STEPS,
    answer,
    composition,
    examples_of,
    has_vectors,
    operation_of,
)
from kvlab.reference.conformance.vectors import Case
from kvlab.reference.conformance.whole_cache import head_dim
from kvlab.reference.granularity import WholePages
from kvlab.reference.method import CommonOptions, Example
from kvlab.reference.methods import base_name
from kvlab.reference.notation import Array, Scores
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Full, Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.step import Block, StepResult, apply, empty_cache, look
from kvlab.reference.streams import Source, Stream, random_stream

STREAMS = plan.TABLES["streams"]
"""Streams by size and group, and what is chosen about drawn ones."""

ATTEMPTS = 20
"""Most streams that are drawn until one has clear decisions only, of the small ones."""

CLEAR = 1e-4
"""Least relative distance between the lowest score that is kept and the highest evicted."""

CLEAR_PER_LOGIT = 4e-6
"""The same, for every unit of the largest logit, whose error is relative to it."""

TIED = ("ties", "repeated_entries")
"""Streams of equal scores."""

OPTION = ("plain", "gqa")
"""Streams of an example that is not the main interpretation of its method."""

OPTION_STEPS = ("observe", "score", "select", "run")
"""Steps of which the planned cases of options are drawn."""

DECISIONS = 3
"""Decisions that are shown of a row of options at sizes of kernels."""

NO_SIZES = ("budget", "entries", "most", "only", "without")
"""What `STREAMS` tells besides the sizes of a stream."""

Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of several values; the first is the simplest."""


def made_case(name: str, group: str, method: str | None, drawn: draws.Drawn) -> Case:
    """Return a case of inputs, rounded as they are stored, and parameters, with its answer.

    The name is unique and begins with the target.
    """
    inputs, parameters = drawn
    stored = {key: x.astype(np.float32) if x.dtype.kind == "f" else x for key, x in inputs.items()}
    blank = Case(name, name.partition("/")[0], group, method, parameters, stored, {})
    return replace(with_matrices(blank), expected=answer(blank))


def with_matrices(case: Case) -> Case:
    """Hand over the matrices of ``turboquant``, which the files hold for `encode` alone."""
    if case.operation not in ("run", "whole_cache") or "precision" not in case.parameters:
        return case
    inputs, told = case.inputs, case.parameters
    d = inputs["keys"].shape[-1] if "keys" in inputs else head_dim(told["model"])
    return replace(case, inputs={**inputs, **blocks.matrices(told["precision"], d)})


def sized_cases(size: str, seed: int, wanted: Callable[[str], bool]) -> Iterator[Case]:
    """Draw the cases of a size, ``kernel`` or ``long``, of all targets that are wanted.

    Other seeds draw other numbers of the same shapes.
    """
    yield from planned_cases(size, seed, wanted)
    if size == "kernel":
        yield from large_option_cases(seed, wanted)
    for example in (each for name in methods.names() for each in methods.examples_of(name)):
        steps = [step for step in STEPS if wanted(f"{composition(example.spec)}.{step}")]
        if steps and not _is_option(example):
            yield from method_cases(example, size, seed, steps)


def planned_cases(
    size: str, seed: int = 0, wanted: Callable[[str], bool] = lambda target: True
) -> Iterator[Case]:
    """Draw the planned cases of building blocks: every two values of two dimensions meet."""
    for entry in plan.TABLES[size]:
        first, group = entry["operations"][0], plan.GROUPS[size]
        for number, sizes in enumerate(plan.rows(size, entry)):
            for operation in filter(wanted, entry["operations"]):
                attempts = (
                    draws.BLOCKS[operation](
                        Source(f"{size} {first} {number} {attempt}", seed), **sizes
                    )
                    for attempt in range(ATTEMPTS)
                )
                drawn = next(each for each in attempts if each is not None)
                yield made_case(f"{operation}/{group}/{number}", group, None, drawn)


def option_cases() -> Iterator[Case]:
    """Draw the planned cases of options: every two values of two options of a method meet."""
    for number, example, stream in plan.option_rows("options"):
        found = list[Case]()
        for attempt in range(ATTEMPTS):
            source = Source(f"options {stream} {attempt}")
            drawn = draw_stream(source, **STREAMS["options"][stream])
            found = cases_of_stream(example, drawn, plan.OPTIONS, OPTION_STEPS, number, most=1)
            if any(case.operation == "run" for case in found):
                break
        yield from found


def large_option_cases(seed: int, wanted: Callable[[str], bool]) -> Iterator[Case]:
    """Draw the planned cases of options at sizes of kernels: of every row the last decisions."""
    for number, example, stream in plan.option_rows("options", "kernel_options"):
        steps = (*OPTION_STEPS, "keep")
        steps = [step for step in steps if wanted(f"{composition(example.spec)}.{step}")]
        if steps:
            drawn = draw_stream(
                Source(f"kernel options {stream}", seed), **STREAMS["kernel_options"][stream]
            )
            yield from cases_of_stream(
                example, drawn, plan.LARGE_OPTIONS, steps, DECISIONS * number, DECISIONS, apart=True
            )


def drawn_case(target: str, choose: Choose, like: Case | None = None) -> Case | None:
    """Draw a small case of any target but whole caches (`drawn_caches`); None if it does not fit.

    Sizes, seeds and the like are chosen, and one of the method's examples; or method, budget and
    softcap are those of another case.
    """
    method, _, operation = target.rpartition(".")
    if not operation_of(target).of_method:
        sizes = {name: choose(values) for name, values in plan.SMALL[target].items()}
        drawn = draws.BLOCKS[target](_chosen_source(f"drawn {target}", choose), **sizes)
        return None if drawn is None else made_case(f"{target}/drawn", "drawn", None, drawn)
    if like is None or like.method is None:
        example, softcap = choose(examples_of(method)), None
    else:
        example = Example(like.method, like.parameters["budget"])
        softcap = like.parameters.get("softcap")
    sizes = {name: choose(values) for name, values in STREAMS["drawn"].items()}
    stream = draw_stream(_chosen_source("drawn stream", choose), softcap=softcap, **sizes)
    try:
        found = cases_of_stream(example, stream, "drawn", [operation])
    except ValueError:  # the prompt is protected, and exceeds the budget
        return None
    return choose(found) if found else None


def _chosen_source(name: str, choose: Choose) -> Source:
    return choose((draws.Whole, Source))(name, choose(range(2**31)))


def draw_stream(
    source: Source,
    variant: str = "plain",
    blocks: Sequence[int] = (),
    first: int = 0,
    softcap: float | None = None,
    **sizes: Any,
) -> Stream:
    """Draw a stream of `random_stream`'s sizes, with a variant of `draws.ATTENTION`.

    ``blocks`` are the tokens of each block, if not as `random_stream` cuts them; before the
    position ``first`` all tokens were evicted.
    """
    stream = random_stream(source, **sizes)
    given = {name: getattr(stream, name) for name in ("queries", "keys", "values")}
    draws.ATTENTION[variant](given)
    lengths = tuple(blocks) or stream.blocks
    return replace(stream, blocks=lengths, first=first, softcap=softcap)


def method_cases(
    example: Example, size: str, seed: int = 0, steps: Collection[str] = STEPS
) -> Iterator[Case]:
    """Draw the cases of some steps of an example on all streams of a size."""
    if not has_vectors(base_name(example.spec)):
        return
    option = _is_option(example)
    for group, told in STREAMS[size].items():
        sizes = {name: x for name, x in told.items() if name not in NO_SIZES}
        name = base_name(example.spec)
        if name in told.get("without", ()) or name not in told.get("only", (name,)):
            continue
        if option and group not in OPTION:
            continue
        budget = None if example.budget is None else told.get("budget", example.budget)
        asked, some = replace(example, budget=budget), (0, told.get("most"), told.get("entries"))
        found: list[Case] = []
        for attempt in range(ATTEMPTS if size == "small" else 1):
            source = Source(f"{size} {group} {attempt}", seed)
            stream = draw_stream(source, **sizes)
            try:
                found = cases_of_stream(asked, stream, group, steps, *some)
            except ValueError:  # the prompt is protected, and exceeds the budget
                if group in OPTION:
                    raise
            if any(case.operation == "run" for case in found):
                break
        yield from found


def _is_option(example: Example) -> bool:
    """Whether an earlier example is the main interpretation of the same composition."""
    return examples_of(composition(example.spec))[0].spec != example.spec


@dataclass(frozen=True)
class Event:
    """The effect of one block on one layer."""

    policy: Policy
    before: LayerCache
    """The cache with the block's entries, before the block was observed."""
    looked: StepResult
    """Result before any entry is evicted."""
    result: StepResult

    @property
    def block(self) -> int:
        """Tokens of the block."""
        return self.looked.seen.clock.block

    @property
    def stores(self) -> bool:
        """Whether all entries were at full precision before, and some are not any more."""
        was_full = (self.before.keys.bits == FULL_BITS).all()
        return bool(was_full and (self.result.cache.keys.bits < FULL_BITS).any())

    @property
    def evicts(self) -> bool:
        """Whether an entry was evicted."""
        keep = self.result.keep
        return keep is not None and keep.shape[1] < self.looked.seen.positions.shape[1]

    @property
    def is_clear(self) -> bool:
        """Whether the scores decide clearly, or are equal: then the later entry is kept.

        Scores below what float32 holds are one score there.
        """
        decision, seen = self.looked.decision, self.looked.seen
        if not self.evicts or self.policy.score.ordinal:
            return True
        assert decision is not None and decision.scores is not None
        kept = np.zeros_like(decision.candidates)
        np.put_along_axis(kept, decision.keep, True, axis=-1)
        low, high = threshold(decision.scores, decision.candidates, kept)
        clear = CLEAR + CLEAR_PER_LOGIT * logit_size(seen.queries, seen.keys)
        size = np.maximum(abs(low), abs(high))
        apart = (low - high > clear * size) & (size >= np.finfo(np.float32).tiny)
        return bool((np.isinf(low) | np.isinf(high) | (low == high) | apart).all())


def recording(policy: Policy, blocks: Iterable[Block], cache: LayerCache) -> Iterator[Event]:
    """Feed blocks to a policy and note every step."""
    for block in blocks:
        result = looked = look(policy, cache, block)
        if looked.decision is not None:
            result = apply(policy, looked, looked.decision.keep)
        clock, columns = block.clock, policy.score.columns
        before = cache.append(block.keys, block.values, clock.positions, columns)
        yield Event(policy, before, looked, result)
        cache = result.cache


def grown(event: Event, spec: str, budget: int | None, entries: int) -> Event:
    """Return the event in a cache of more entries, whose states are those of others in it."""
    seen, before, stream = event.looked.seen, event.before, event.before.state.stream
    (G, n), block, source = seen.positions.shape, seen.clock.block, Source(f"grown {entries}")
    old, further = n - block, entries - seen.clock.seen
    like = np.arange(G)[:, None], source.integers(0, old, G, entries - block)
    policy = methods.get(spec, budget)
    clock = Clock(entries, block, seen.clock.prompt + further)
    cache = empty_cache(policy, G, seen.keys.shape[-1])
    keys, values = (source.normal(G, entries - block, seen.keys.shape[-1]) for _ in range(2))
    cache = cache.append(keys, values, np.arange(entries - block), policy.score.columns)
    columns = {name: x[like] for name, x in before.state.entries.items()}
    if "query_positions" in stream:
        stream = {**stream, "query_positions": stream["query_positions"] + further}
    cache = replace(cache, state=State(columns, stream))
    confidence = np.concatenate([np.full(further, np.nan), seen.confidence])
    newest = seen.keys[:, -block:], seen.values[:, -block:]
    block = Block(clock, 0, seen.queries, *newest, confidence, softcap=seen.softcap)
    return next(recording(policy, [block], cache))


def cases_of_stream(
    example: Example,
    stream: Stream,
    group: str,
    steps: Collection[str],
    first: int = 0,
    most: int | None = None,
    entries: int | None = None,
    apart: bool = False,
) -> list[Case]:
    """Make cases of the last block of each kind that decides, or of the ``most`` last ones.

    ``apart``, every block is a kind of its own.
    ``run``, the whole stream, is a case only if all decisions are clear. Where a number of
    ``entries`` is given, the blocks meet a cache of so many instead of their own.
    """
    spec = example.spec
    policy = methods.get(spec, example.budget)
    policy.check(stream.prompt)
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    events = [*recording(policy, stream.pieces(), cache)]
    due = [event for event in events if event.looked.decision is not None]
    deciding = [event for event in due if event.evicts or event.stores] or due[-1:]
    if entries is not None:
        deciding = [event for event in deciding if len(event.before) > event.block]
    kinds = {}
    for event in deciding:
        clock = event.looked.seen.clock
        kinds[clock.prefilling, clock.block > 1, event.stores, apart and clock.seen] = event
    parameters = {**options_of(spec), "budget": example.budget, "softcap": stream.softcap}
    parameters["prompt"] = stream.prompt
    found = []

    def add(step: str, number: int, inputs: dict[str, Array], more: dict[str, Any]) -> None:
        if step in steps:
            name = f"{composition(spec)}.{step}/{group}/{spec}/{number}"
            found.append(made_case(name, group, spec, (inputs, {**parameters, **more})))

    for number, event in enumerate([*kinds.values()][-(most or len(kinds)) :], first):
        budget = example.budget if entries is None else example.budget and entries // 2
        shown = event if entries is None else grown(event, spec, budget, entries)
        if shown.looked.decision is None:
            continue
        clock = shown.looked.seen.clock
        here = {key: getattr(clock, key) for key in ("seen", "block", "prompt", "generated")}
        here["budget"] = budget
        for step, inputs, more in _event_inputs(shown, group):
            add(step, number, inputs, {**here, **more})
    if entries is None and stream.first == 0 and all(event.is_clear for event in events):
        names = ("queries", "keys", "values", "confidence")
        inputs = {name: getattr(stream, name) for name in names}
        inputs["blocks"] = np.array(stream.blocks)
        for event in due:
            inputs |= event.policy.score.drawn(event.looked.seen)
        add("run", first, inputs, {})
    return found


def options_of(spec: str) -> dict[str, Any]:
    """Return all hyper-parameters of a method in registry syntax, those of every method first.

    An option of a wrapper hides the wrapped method's, and both hide the one of every method.
    """
    part: Any = methods.parse(spec)
    common, own = dict[str, Any](), dict[str, Any]()
    while part is not None:
        found = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "base"}
        common, own = (found, own) if isinstance(part, CommonOptions) else (common, found | own)
        part = getattr(part, "base", None)
    return common | own


def _event_inputs(
    event: Event, group: str
) -> Iterator[tuple[str, dict[str, Array], dict[str, int]]]:
    """Yield name, inputs and further parameters of the steps that a block shows."""
    policy, seen, decision = event.policy, event.looked.seen, event.looked.decision
    names = ("queries", "keys", "values", "attention", "positions", "query_positions")
    common = {name: getattr(seen, name) for name in names}
    stored = {"stored_bits": seen.bits, "confidence": seen.confidence}
    more = {} if isinstance(policy.precision, Full) else stored
    assert decision is not None
    if policy.score.columns:
        yield "observe", {**common, **_state_inputs(policy, event.before.state)}, {}
    if policy.evicts:
        state = _state_inputs(policy, event.looked.cache.state)
        candidates, keep = decision.candidates, decision.keep
        room = keep.shape[1] - int((~candidates).sum(axis=-1).max())
        if not policy.score.ordinal and candidates.any():
            yield "score", {**common, **state, "candidates": candidates}, {"room": room}
        yield "select", {**common, **state, **more, **policy.score.drawn(seen)}, {}
        (G, n), source = seen.positions.shape, Source(f"scores {group} {seen.positions.shape}")
        scores = draws.SCORES["ties" if group in TIED else "plain"](source, G, n)
        scores = _as_rated(policy, scores, seen.positions)
        yield "keep", {"scores": scores, "positions": seen.positions, **more}, {}
    if event.stores:
        yield "store", {**common, "confidence": seen.confidence, "keep": decision.keep}, {}


def _as_rated(policy: Policy, scores: Scores, positions: Int[Array, "G n"]) -> Scores:
    """Return scores as a policy's are: the same in a page, or in all heads, that decides as one."""
    if policy.score.joins_kv_heads:
        scores = np.tile(scores[:1], (len(scores), 1))
    if isinstance(policy.protect, WholePages):
        pages = positions // policy.protect.page
        first = np.stack([np.searchsorted(head, head) for head in pages])
        scores = np.take_along_axis(scores, first, axis=1)
    return scores


def _state_inputs(policy: Policy, state: State) -> dict[str, Array]:
    remembered = {REMEMBERED + name: np.asarray(x) for name, x in state.stream.items()}
    return {**{name: state.entries[name] for name in policy.score.columns}, **remembered}
