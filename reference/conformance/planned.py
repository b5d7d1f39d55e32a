"""Draws cases of the plan: the published ones, those of other sizes, and any for `fuzz`."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kvlab.reference import methods
from kvlab.reference.conformance import draws, plan, whole_cache
from kvlab.reference.conformance.made import cases_of_stream, made_case, options_of
from kvlab.reference.conformance.targets import (
    STEPS,
    answer,
    composition,
    examples_of,
    has_vectors,
    operation_of,
)
from kvlab.reference.conformance.vectors import MODEL, Case
from kvlab.reference.method import Example
from kvlab.reference.methods import base_name
from kvlab.reference.streams import Source, Stream, random_stream

STREAMS, WORDS = plan.TABLES["streams"], plan.TABLES["whole_caches"]
"""Streams by size and group; and padding, calls and moved rows of whole caches by their words."""

PUBLISHED: tuple[str, ...] = tuple(plan.TABLES["methods"])
"""Methods of whose examples there are published cases."""

ATTEMPTS = {"block": 20, "stream": 20, "cache": 50}
"""Most cases of a kind that are drawn until one leaves no doubt."""

MAIN = ("plain", "gqa")
"""Streams of an example that is not the main interpretation of its method; see `OPTIONS`."""

OPTIONS = "options"
"""Group of the cases of such an example."""

OPTION_STEPS = ("observe", "score", "select", "run")
"""Steps of which the planned cases of options are drawn."""

DECISIONS = 3
"""Decisions that are shown of a row of options at sizes of kernels."""

NO_SIZES = ("spec", "budget", "entries", "most", "only", "without")
"""What `STREAMS` tells besides the sizes of a stream."""

NUDGE, NUDGES = 5e-6, 4
"""Noise of all weights that changes no decision of a whole cache, and how often it is drawn."""

LAYERS_AND_HEADS = 4, 4
"""Of the embedded model."""

Wanted = Callable[[str], bool]
"""Says whether cases of a target are asked for."""

Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of several values; the first is the simplest."""


def everything(target: str) -> bool:
    """Want every target."""
    return True


def published_anew(wanted: Wanted = everything) -> Iterator[Case]:
    """Draw the published cases of all targets that are wanted, in the order of the index."""
    yield from block_cases("block_groups", 0, wanted)
    yield from block_cases("small", 0, wanted)
    for name in PUBLISHED:
        for example in methods.examples_of(name):
            yield from method_cases(example, "small", 0, wanted)
    for told in plan.TABLES["step_groups"]:
        for spec, budget in told["examples"]:
            example, steps = plan.example(spec, budget), told.get("steps", STEPS)
            for number, sizes in enumerate(told["streams"]):
                group = told["group"]
                given = group, sizes, f"{group} {number}", steps_of(example, steps, wanted)
                yield from stream_cases(example, *given, first=number)
    yield from option_cases("options", 0, wanted)
    yield from cache_cases("cache_groups", wanted)
    yield from cache_cases("caches", wanted)


def sized_cases(size: str, seed: int, wanted: Wanted) -> Iterator[Case]:
    """Draw the cases of a size, ``kernel`` or ``long``, of all targets that are wanted.

    Other seeds draw other numbers of the same shapes.
    """
    yield from block_cases(size, seed, wanted)
    if size == "kernel":
        yield from option_cases("kernel_options", seed, wanted)
    for example in (each for name in methods.names() for each in methods.examples_of(name)):
        if not is_option(example):
            yield from method_cases(example, size, seed, wanted)


# --- building blocks -----------------------------------------------------------------------------


def block_cases(table: str, seed: int = 0, wanted: Wanted = everything) -> Iterator[Case]:
    """Draw the cases of building blocks of a table."""
    for entry in plan.TABLES[table]:
        group = plan.group_of(table, entry)
        source = f"{group if 'axes' in entry else table} {entry['operations'][0]}"
        for number, sizes in enumerate(plan.rows(table, entry)):
            for operation in filter(wanted, entry["operations"]):
                sources = (f"{source} {number} {n}" for n in range(ATTEMPTS["block"]))
                found = (draws.drawn(operation, Source(each, seed), sizes) for each in sources)
                drawn = next(each for each in found if each is not None)
                yield made_case(f"{operation}/{group}/{number}", group, None, drawn)


# --- steps of methods ----------------------------------------------------------------------------


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


def steps_of(example: Example, steps: Collection[str], wanted: Wanted) -> list[str]:
    """Return the steps of an example whose targets are wanted."""
    return [step for step in steps if wanted(f"{composition(example.spec)}.{step}")]


def stream_cases(
    example: Example,
    group: str,
    sizes: Mapping[str, Any],
    source: str,
    steps: Collection[str],
    seed: int = 0,
    attempts: int = ATTEMPTS["stream"],
    **shown: Any,
) -> list[Case]:
    """Make cases of the first stream all of whose decisions are clear, or of the last one drawn."""
    found = list[Case]()
    for attempt in range(attempts if steps else 0):
        stream = draw_stream(Source(f"{source} {attempt}", seed), **sizes)
        found = cases_of_stream(example, stream, group, steps, **shown)
        if any(case.operation == "run" for case in found):
            break
    return found


def method_cases(
    example: Example, size: str, seed: int = 0, wanted: Wanted = everything
) -> Iterator[Case]:
    """Draw the cases of an example on all streams of a size."""
    name, option = base_name(example.spec), is_option(example)
    steps = steps_of(example, STEPS, wanted) if has_vectors(name) else []
    attempts = ATTEMPTS["stream"] if size == "small" else 1
    for group, told in STREAMS[size].items():
        suits = name not in told.get("without", ()) and name in told.get("only", (name,))
        if not suits or (option and group not in MAIN):
            continue
        sizes = {key: x for key, x in told.items() if key not in NO_SIZES}
        shown = {key: told.get(key) for key in ("most", "entries")}
        budget = None if example.budget is None else told.get("budget", example.budget)
        asked = replace(example, spec=told.get("spec", example.spec), budget=budget)
        source = f"{size} {group}"
        title, label = (OPTIONS, f"{group}-") if option else (group, "")
        given = asked, title, sizes, source, steps, seed, attempts
        try:
            yield from stream_cases(*given, label=label, **shown)
        except ValueError:  # the prompt is protected, and exceeds the budget
            if group in MAIN:
                raise


def is_option(example: Example) -> bool:
    """Whether an earlier example is the main interpretation of the same composition."""
    return examples_of(composition(example.spec))[0].spec != example.spec


def option_cases(size: str, seed: int = 0, wanted: Wanted = everything) -> Iterator[Case]:
    """Draw the planned cases of options: every two values of two options of a method meet.

    ``options`` are published; of ``kernel_options`` the last decisions of every row are shown.
    """
    large = size == "kernel_options"
    tables, attempts = (("options", size), 1) if large else ((size,), ATTEMPTS["stream"])
    each, steps = (DECISIONS, (*OPTION_STEPS, "keep")) if large else (1, OPTION_STEPS)
    for number, example, name in plan.option_rows(*tables):
        group, asked = plan.GROUPS[size], steps_of(example, steps, wanted)
        source = f"{group if large else size} {name}"
        given = group, STREAMS[size][name], source, asked, seed, attempts
        yield from stream_cases(example, *given, first=each * number, most=each, apart=large)


def drawn_options(target: str) -> Iterator[tuple[str, Any]]:
    """Yield options of ``keep``, and their values, that its cases have at sizes of kernels."""
    for _, example, _ in plan.option_rows("options", "kernel_options"):
        if f"{composition(example.spec)}.keep" == target:
            yield from options_of(example.spec).items()


# --- whole caches --------------------------------------------------------------------------------


def cache_cases(table: str, wanted: Wanted = everything) -> Iterator[Case]:
    """Draw the whole caches of a table, each with the first batch that leaves no doubt."""
    for entry in plan.TABLES[table]:
        group = plan.group_of(table, entry)
        for number, row in enumerate(plan.rows(table, entry)):
            source = f"{group} {row.get('tokens', number)}"
            drawn = (
                cache_case(row, Source(f"{source} {attempt}"), group, number)
                for attempt in range(ATTEMPTS["cache"])
            )
            if wanted(f"{composition(row['method'])}.whole_cache"):
                yield next(filter(is_steady, drawn))


def cache_case(row: Mapping[str, Any], source: Source, group: str, number: int = 0) -> Case:
    """Draw the tokens of a batch, and what happens to it."""
    row = {**WORDS["usual"], **row}
    name, _, own = row["method"].partition("@")
    common = {key: row[key] for key in ("page", "kv_heads", "precision")}
    told = [f"{key}={x}" for key, x in common.items() if x != WORDS["usual"][key]]
    spec = "@".join(filter(None, (name, ",".join(filter(None, (own, *told))))))
    padding, calls = (np.array(WORDS[key][row[key]]) for key in ("padding", "calls"))
    N, t = len(padding), int(calls.sum())
    tokens = source.integers(1, whole_cache.model_in(str(MODEL)).config.vocab_size, N, t)
    continues = np.tile(np.arange(N), (len(calls), 1))
    if row["moves"] != "none":
        continues[[len(calls) // 3, len(calls) - 2]] = WORDS["moves"][row["moves"]]
    inputs = {
        "tokens": np.where(np.arange(t) >= padding[:, None], tokens, 0),
        "padding": padding,
        "calls": calls,
        "continues": continues,
    }
    if row["learned_sinks"]:
        inputs["learned_sinks"] = source.normal(*LAYERS_AND_HEADS)
    sized = composition(spec) not in ("full", "kivi")
    parameters = {
        **options_of(spec),
        "model": str(MODEL),
        "budget": row["budget"] if sized else None,
        **{key: row[key] or None for key in ("block_size", "softcap", "sliding_window")},
    }
    title = f"{composition(spec)}.whole_cache/{group}/{spec}/{number}"
    return made_case(title, group, spec, (inputs, parameters))


def is_steady(case: Case) -> bool:
    """Whether noise on the weights, so on all queries, keys and values, changes no decision.

    Nor may it change a logit by more than half of the tolerance.
    """
    model = whole_cache.model_in(str(MODEL))
    logits, kept = case.expected["logits"], case.expected["kept"]
    for number in range(NUDGES):
        source = Source("nudge of a whole cache", number)
        weights = {
            name: x * (1 + NUDGE * source.normal(*x.shape)) for name, x in model.weights.items()
        }
        with patch.object(whole_cache, "model_in", return_value=replace(model, weights=weights)):
            found = answer(case)
        off = np.abs(found["logits"].value - logits.value).max()
        same = np.array_equal(found["kept"].value, kept.value)
        if not same or off > logits.tolerance["float32"][0] / 2:
            return False
    return True


# --- any case ------------------------------------------------------------------------------------


def any_case(target: str, choose: Choose, like: Case | None = None) -> Case | None:
    """Draw a small case of any target; None if what was chosen does not fit.

    Sizes, seeds and the like are chosen, and one of the method's examples; or method, budget and
    softcap are those of another case.

    Raises:
        ValueError: if the target is a whole cache of a method that the plan does not have.
    """
    method, _, operation = target.rpartition(".")
    if operation == "whole_cache":
        return _any_cache(method, choose)
    if not operation_of(target).of_method:
        sizes = {name: choose(values) for name, values in plan.SMALL[target].items()}
        drawn = draws.drawn(target, _chosen_source(f"drawn {target}", choose), sizes)
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


def _any_cache(method: str, choose: Choose) -> Case | None:
    (planned,) = plan.TABLES["caches"]
    specs = [spec for spec in planned["method"] if composition(spec) == method]
    if not specs:
        allowed = ", ".join(sorted(map(composition, planned["method"])))
        target = f"{method}.whole_cache"
        raise ValueError(f"target = {target!r} must be a whole cache of one of {allowed}")
    dimensions = {**plan.dimensions(planned), "method": specs}
    row = {name: choose(values) for name, values in dimensions.items()}
    if not plan.fits(planned, row):
        return None
    source = Source(f"drawn {method}.whole_cache", choose(range(2**31)))
    case = cache_case(row, source, "drawn")
    return case if is_steady(case) else None


def _chosen_source(name: str, choose: Choose) -> Source:
    return choose((draws.Whole, Source))(name, choose(range(2**31)))
