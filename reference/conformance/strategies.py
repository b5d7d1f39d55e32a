"""Hypothesis strategies of valid inputs, for the test suites of other projects.

Needs ``pip install hypothesis``. Numbers are exact in bfloat16 and float16, and no query is left
without an entry, so that a wrong answer is always an error of the implementation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from kvlab.reference.conformance import stages
from kvlab.reference.conformance.block_cases import GROUPS
from kvlab.reference.conformance.building import (
    clear_events,
    event_inputs,
    parameters_of,
    recording,
    run_inputs,
)
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.minimise import answered
from kvlab.reference.conformance.storing import UncertainError
from kvlab.reference.conformance.targets import operation_of, target_of
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source, Stream, random_stream

Draw = Callable[..., Any]
"""The function that hypothesis gives a composite strategy to draw from other strategies."""


def vectors(*shape: int, largest: int = 4) -> st.SearchStrategy[Array]:
    """Draw arrays of multiples of 1/32 between ±``largest``; they shrink to zeros."""
    count, steps = int(np.prod(shape)), 32 * largest
    numbers = st.lists(st.integers(-steps, steps), min_size=count, max_size=count)
    return numbers.map(lambda drawn: np.array(drawn, dtype=np.float64).reshape(shape) / 32)


@st.composite
def attention_inputs(
    draw: Draw, most_entries: int = 24, most_channels: int = 16
) -> dict[str, Array]:
    """Draw the inputs of ``attend``: queries, keys, values, and positions with gaps."""
    G, rho = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    n, d = draw(st.integers(1, most_entries)), draw(st.integers(1, most_channels))
    m = draw(st.integers(1, min(n, 4)))
    gaps = draw(st.lists(st.integers(1, 4), min_size=n - m, max_size=n - m))
    old = np.cumsum([0, *gaps])[:-1] if gaps else np.zeros(0)
    start = int(old[-1]) + 1 if len(old) else 0
    positions = np.concatenate([old, start + np.arange(m)]).astype(np.int64)
    return {
        "queries": draw(vectors(G, rho, m, d)),
        "keys": draw(vectors(G, n, d)),
        "values": draw(vectors(G, n, d)),
        "positions": np.tile(positions, (G, 1)),
        "query_positions": positions[n - m :],
    }


@st.composite
def selections(draw: Draw, most_entries: int = 48) -> dict[str, Any]:
    """Draw the inputs of ``keep_set``: scores with equal ones among them, safe marks, room."""
    G, n = draw(st.integers(1, 3)), draw(st.integers(1, most_entries))
    safe = draw(st.integers(0, n))
    scores = draw(st.lists(st.integers(-4, 4), min_size=G * n, max_size=G * n))
    orders = [draw(st.permutations(range(n))) for _ in range(G)]
    return {
        "scores": np.array(scores, dtype=np.float64).reshape(G, n) / 4,
        "safe": np.array(orders) < safe,
        "room": draw(st.integers(0, n)),
    }


@st.composite
def streams(draw: Draw, most_prompt: int = 24, most_generated: int = 12) -> Stream:
    """Draw a stream: a prompt in blocks of one length, then single tokens."""
    G, rho = draw(st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3)]))
    d = draw(st.sampled_from([4, 8, 12]))
    prompt, generated = draw(st.integers(1, most_prompt)), draw(st.integers(0, most_generated))
    size = draw(st.integers(1, prompt))
    source = Source("hypothesis", draw(st.integers(0, 2**31)))
    return random_stream(source, G, rho, d, prompt, generated, size)


@st.composite
def observations(
    draw: Draw, method: str, budget: int | None = None, operation: str = "select"
) -> Case:
    """Draw a case of a step of a method, with the reference's answer, from a random stream.

    Args:
        draw: given by hypothesis.
        method: in registry syntax.
        budget: entries that may stay, where the method takes a budget.
        operation: observe, score, select, keep or store.
    """
    policy = stages.policy_of(method, {"budget": budget})
    stream = draw(streams().filter(lambda s: fits(policy, s)))
    taken = [
        (event, inputs, more)
        for event in recording(policy, stream)
        if event.keep is not None
        for name, inputs, more in event_inputs(policy, event, "plain")
        if name == operation
    ]
    if not taken:
        reject()
    event, inputs, more = draw(st.sampled_from(taken))
    clock = stages.clock_parameters(event.seen.clock)
    parameters = {**parameters_of(method, budget, stream), **clock, **more}
    return case_of(operation, method, inputs, parameters)


@st.composite
def runs(draw: Draw, method: str, budget: int | None = None) -> Case:
    """Draw a whole stream in which the scores decide clearly, with the reference's answer."""
    policy = stages.policy_of(method, {"budget": budget})
    stream = draw(streams().filter(lambda s: fits(policy, s)))
    events = list(recording(policy, stream))
    if clear_events(policy, stream, tied=False) is None:
        reject()
    parameters = parameters_of(method, budget, stream)
    return case_of("run", method, run_inputs(policy, stream, events), parameters)


def cases(target: str) -> st.SearchStrategy[Case]:
    """Draw cases of a building block like the published ones, with other numbers.

    Raises:
        ValueError: if the target is none, or a step of a method: see `observations`.
    """
    if operation_of(target).of_method:
        raise ValueError(f"target = {target!r} must be a building block; see observations")
    return block_cases(target)


@st.composite
def block_cases(draw: Draw, target: str) -> Case:
    """Draw the numbers of one of a building block's groups anew."""
    group = draw(st.sampled_from(sorted(GROUPS[target])))
    make = draw(st.sampled_from(GROUPS[target][group]))
    try:
        inputs, parameters = make(Source(f"hypothesis {target}", draw(st.integers(0, 2**31))))
    except UncertainError:
        reject()
    return case_of(target, None, inputs, parameters)


def fits(policy: Any, stream: Stream) -> bool:
    """Whether a policy can work with the length of a stream's prompt."""
    try:
        policy.check(stream.prompt)
        list(recording(policy, stream))
    except ValueError:
        return False
    return True


def case_of(
    operation: str, method: str | None, inputs: Mapping[str, Array], parameters: Any
) -> Case:
    """Let the reference answer."""
    target = target_of(operation, method)
    blank = Case("drawn", target, "drawn", method, parameters, inputs, {})
    found = answered(blank, inputs, parameters)
    assert found is not None, "the reference refuses its own inputs"
    return found
