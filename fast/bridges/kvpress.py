"""kvpress, both ways: its scorer presses are methods here, and methods of kvlab are presses there.

``kvpress:ExpectedAttentionPress`` is a method, with the press's fields as options; so is a scorer
press in a file that ``KVLAB_METHODS`` names. It keeps what the press keeps in kvpress.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from inspect import signature
from typing import Any, Literal, cast, get_type_hints

import kvpress
import torch
from kvpress.utils import compute_n_kept, get_prerope_query_states
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kvlab.fast import methods
from kvlab.fast.engine.layers import Block, Layers
from kvlab.fast.engine.policy import BatchClock, Observation, Policy, Score, State
from kvlab.fast.engine.step import attend, begin
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.huggingface.rotary import rotation
from kvlab.fast.kernels.notation import Candidates, Float, Room, Scores, Tensor
from kvlab.reference import policy as reference
from kvlab.reference.generators import seeded
from kvlab.reference.method import Method, require_budget
from kvlab.reference.methods import parse
from kvlab.reference.observation import Clock, Needs
from kvlab.reference.outside import import_named, named

NEWEST = 256
"""Hidden states of the newest tokens that a press is given during generation, as in kvpress."""

OF_WHOLE_PROMPTS = (
    kvpress.CompactorPress,
    kvpress.KVzapPress,
    kvpress.LeverageScorePress,
    kvpress.NonCausalAttnPress,
)
"""Presses that read the hidden state of every entry, so they can rate nothing but a prompt."""


@dataclass(frozen=True)
class PressScore(reference.Score):
    """What a press says an entry is worth."""

    press: Any
    budget: int
    """Entries that are kept, from which follows the press's share."""
    edges: reference.Edges
    draw_seed: int
    needs = Needs(rows="none", hidden_states=True)
    signed = True

    def score(self, state: Any, seen: Any, candidates: Any, room: int) -> Any:
        raise ValueError(f"{type(self.press).__name__} rates tensors of a model of transformers")


@dataclass(frozen=True)
class Pressed(Method):
    """A scorer press: what it rates highest is kept."""

    schedule: Literal["after_prefill", "every_block"] = "after_prefill"
    """``after_prefill``, as presses do; ``every_block``: a fixed budget at all times."""
    every: int = 1
    """Generated tokens between two evictions under ``every_block``."""
    draw_seed: int = 0
    """Seed of all that the press draws; a ``seed`` of its own stays what it is in kvpress."""

    seeded_by = "draw_seed"
    limits = {"draw_seed": 0}

    def policy(self, budget: int | None) -> reference.Policy:
        budget, kind = require_budget(self.name, budget), scorer(self.name.partition(":")[2])
        press = kind(**{name: getattr(self, name) for name, *_ in options_of(kind)})
        once = self.schedule == "after_prefill"
        if not once and isinstance(press, OF_WHOLE_PROMPTS):
            raise ValueError(
                f"schedule = {self.schedule!r} must be 'after_prefill' for {self.name}, which "
                "rates nothing but whole prompts"
            )
        schedule = reference.AfterPrefill() if once else reference.EveryBlock(self.every)
        first, newest = ("n_sink", "num_sinks", "sink_size_start"), ("window_size", "sink_size_end")
        sinks, recent = (max(getattr(self, each, 0) for each in own) for own in (first, newest))
        edges, entries = reference.Edges(sinks, recent), reference.Entries(budget)
        score = PressScore(press, budget, edges, self.draw_seed)
        return reference.Policy(self.name, score, schedule, edges, entries)


@cache
def method_of(name: str) -> type[Method]:
    """Return the scorer press ``name`` as a class of methods; ValueError if it cannot be one."""
    kind = scorer(name)
    own = {"name": f"kvpress:{name}", "source": f"{name} of {kind.__module__}"}
    made = make_dataclass(name, options_of(kind), bases=(Pressed,), frozen=True, namespace=own)
    made.__module__ = kind.__module__  # if from outside, sweeps hash its source
    return made


def scorer(name: str) -> type:
    """Return the scorer press of this name; ValueError if none that can be a method has it."""
    found = {k: x for each in (kvpress, *map(import_named, named())) for k, x in vars(each).items()}
    presses = {
        key: each
        for key, each in found.items()
        if isinstance(each, type) and issubclass(each, kvpress.BasePress)
    }
    usable = sorted(key for key, each in presses.items() if not more_than_scores(each))
    if name not in usable:
        why = f" {more_than_scores(presses[name])};" if name in presses else ":"
        raise ValueError(f"kvpress:{name}{why} the name must be one of {', '.join(usable)}")
    return presses[name]


def more_than_scores(kind: Any) -> str:
    """Say why a press is not a score of entries that is made of options alone; empty if it is."""
    parameters = signature(kind).parameters
    asked = [name for name, each in parameters.items() if each.default is each.empty]
    wrapped = [name for name in parameters if name.removesuffix("es").endswith("press")]
    own = [
        name
        for name in ("compress", "forward_hook", "__call__")
        if getattr(kind, name) is not getattr(kvpress.ScorerPress, name)
    ]
    if [name for name in wrapped if name[0] != "_"]:
        return "wraps other presses"
    if issubclass(kind, kvpress.ObservedAttentionPress):
        return "reads the attention weights of the whole prompt, which are not computed here"
    if own:
        return f"does more than rate entries, in {', '.join(own)}"
    if asked:
        return f"needs {', '.join(asked)}, which no option can be"
    return "rates nothing" if kind.score is kvpress.ScorerPress.score else ""


def options_of(kind: type) -> list[tuple[str, type, Any]]:
    """Return names, types and defaults of a press's public fields, all but its first, the share."""
    own = [each for each in fields(cast(Any, kind))[1:] if each.init and each.name[0] != "_"]
    return [(each.name, get_type_hints(kind)[each.name], each.default) for each in own]


@twin_of(PressScore)
class PressRating(Score[PressScore]):
    """The press, called as its hook would call it, once for every sequence of every layer."""

    def observe(self, state: State, seen: Observation) -> None:
        kept, size = state.stream, 0 if seen.clock.prefilling else NEWEST
        for name, new in (("hidden", seen.hidden_states), ("at", seen.query_positions)):
            assert new is not None
            kept[name] = (torch.cat([kept[name], new], dim=1) if name in kept else new)[:, -size:]

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = torch.zeros_like(seen.positions, dtype=seen.keys.dtype)
        numbers = [each for each in seen.numbers for _ in range(len(scores) // len(seen.numbers))]
        for row, (number, of_row) in enumerate(zip(numbers, scores, strict=True)):
            module = prepared(seen.model, number, self.spec.press)
            self.rate(module, row, state, seen, of_row)
        return scores

    def rate(
        self, module: Any, row: int, state: State, seen: Observation, scores: Float[Tensor, "G n"]
    ) -> None:
        """Write the scores of one sequence; the press is given its entries by position.

        Of equal scores at the threshold those that ``torch.topk`` keeps, as presses do, are raised
        a little. ValueError if the press cannot rate so many entries, or would evict some at the
        edges, as where it rates more entries as high as these than it may keep.
        """
        spec, entries = self.spec, seen.cache.counts[row]
        order = seen.positions[row].argsort(dim=-1)[:, -entries:]
        places = order[..., None].expand(-1, -1, seen.keys.shape[-1])
        number_format = next(module.parameters()).dtype
        tensors = [x[row].gather(1, places)[None] for x in (seen.keys, seen.values)]
        at = state.stream["at"][row]
        tensors.append(state.stream["hidden"][row][at >= 0][None])
        keys, values, hidden = (each.to(number_format) for each in tensors)
        turned = module.rotary_emb(hidden, at[at >= 0][None])
        given = {"hidden_states": hidden, "position_embeddings": turned}
        kept = min(spec.budget, entries)
        drawn = spec.draw_seed, module.layer_idx, int(at.max()) + 1
        which = f"kvpress:{type(spec.press).__name__} cannot keep {kept} of {entries} entries: "
        try:
            with seeded(*drawn), compressing(spec.press, entries, kept) as press:
                rated = press.score(module, hidden, keys, values, None, given)[0]
        except AssertionError as error:
            raise ValueError(f"{which}{error}") from error
        best = rated.topk(kept, dim=-1)
        chosen = torch.zeros_like(rated, dtype=torch.bool).scatter_(-1, best.indices, True)
        newest = entries - spec.edges.recent
        if not (chosen[:, : spec.edges.sinks].all() and chosen[:, newest:].all()):
            raise ValueError(f"{which}too many of them have the score of those that it protects")
        tied = chosen & (rated == best.values[:, -1:])
        found = rated.to(scores.dtype)
        found = torch.where(tied, found.nextafter(torch.full_like(found, math.inf)), found)
        scores.scatter_(1, order, found.expand_as(order))


@contextmanager
def compressing(press: Any, entries: int, kept: int) -> Iterator[Any]:
    """Give a press, for one call, the ratio under which it keeps ``kept`` of ``entries``.

    Some presses read it in their scores. It is the share removed, or the largest number below that
    keeps as many after kvpress's rounding.
    """
    before, ratio = press.compression_ratio, 1 - kept / entries
    while int(entries * (1 - ratio)) < kept:
        ratio = math.nextafter(ratio, 0)
    press.compression_ratio = ratio
    try:
        yield press
    finally:
        press.compression_ratio = before


def prepared(model: Any, number: int, press: Any) -> Any:
    """Return a layer's attention module with the rotary embedding, which presses look for there."""
    if getattr(press, "prepared_for", None) is not model:
        press.post_init_from_model(model)
        press.prepared_for = model
    decoder = getattr(model.model, "language_model", model.model)
    module = decoder.layers[number].self_attn
    module.__dict__["rotary_emb"] = decoder.rotary_emb  # not one more submodule of the model
    return module


def press(method: str, compression_ratio: float = 0.0, **options: Any) -> "MethodPress":
    """Make a press that evicts, after the prompt, what a method evicts: this share of the entries.

    ValueError if the method is unknown, does not evict after the prompt, or does more than that.
    """
    made = MethodPress(method, options, compression_ratio)
    made.policy(2**20)
    return made


@dataclass
class MethodPress(kvpress.BasePress):
    """A method of kvlab as a press: the engine is given the prompt's vectors, and evicts."""

    method: str
    options: dict[str, Any]
    compression_ratio: float = 0.0

    def policy(self, entries: int) -> Policy:
        """Return the method's policy; ValueError if a press cannot do what it does."""
        if parse(self.method, **self.options).parts[-1].needs_budget:
            policy = methods.get(self.method, entries, **self.options)
            more = policy.joins_layers or policy.needs.projection or not policy.is_plain
            if policy.schedule.due(Clock(8, 8, 8)) and not more:
                return policy
        raise ValueError(
            f"method = {self.method!r} must take a budget, evict after the prompt, each layer for "
            "itself, read no output projection, and keep entries as they are, to be a press"
        )

    def compress(
        self, module: Any, hidden: Any, keys: Tensor, values: Tensor, attentions: Any, kwargs: Any
    ) -> tuple[Float[Tensor, "N G kept d"], Float[Tensor, "N G kept d"]]:
        """Return the keys and values that the method keeps; the arguments are kvpress's."""
        N, G, n, d = keys.shape
        policy = self.policy(compute_n_kept(n, self.compression_ratio))
        queries = get_prerope_query_states(module, hidden)
        queries, _ = apply_rotary_pos_emb(queries, queries, *kwargs["position_embeddings"])
        clock = BatchClock.of([Clock(n, n, n)] * N, keys.device)
        turned = module.rotary_emb.inv_freq.numel()
        layers = Layers(policy, 1)
        grouped = (queries * (module.scaling * d**0.5)).unflatten(1, (G, -1))
        rotary = rotation(module.rotary_emb.inv_freq, slice(turned), slice(turned, 2 * turned))
        given = clock, module.layer_idx, grouped, keys, values, torch.empty(0, 0), rotary
        softcap = getattr(module, "attn_logit_softcapping", None)
        hidden = hidden if policy.needs.hidden_states else None
        block = Block(*given, softcap, hidden, module.config.num_hidden_layers)
        begin(layers, clock)
        attend(layers, 0, block)
        layers.trim()
        return layers.caches[0].columns["keys"], layers.caches[0].columns["values"]
