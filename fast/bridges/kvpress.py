"""kvpress, both ways: its scorer presses are methods here, and methods of kvlab are presses there.

``kvpress:ExpectedAttentionPress`` is a method, with the press's fields as options; so is a scorer
press in a file that ``KVLAB_METHODS`` names.
"""

from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from inspect import signature
from typing import Any, Literal, cast, get_type_hints

import kvpress
import torch
from jaxtyping import Float
from kvpress.utils import compute_n_kept, get_prerope_query_states
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kvlab.fast import methods
from kvlab.fast.engine.cache import BatchClock, State
from kvlab.fast.engine.layers import Block, Layers
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Policy, Score
from kvlab.fast.engine.step import attend, begin
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.huggingface.rotary import rotation
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference import policy as reference
from kvlab.reference.method import Method, require_budget
from kvlab.reference.methods import parse
from kvlab.reference.observation import Clock, Needs
from kvlab.reference.outside import import_named, named

NEWEST = 256
"""Hidden states of the newest tokens that a press is given during generation, as in kvpress."""


@dataclass(frozen=True)
class PressScore(reference.Score):
    """What a press says an entry is worth."""

    press: Any
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

    def policy(self, budget: int | None) -> reference.Policy:
        budget, kind = require_budget(self.name, budget), scorer(self.name.partition(":")[2])
        press = kind(**{name: getattr(self, name) for name, *_ in options_of(kind)})
        once = self.schedule == "after_prefill"
        schedule = reference.AfterPrefill() if once else reference.EveryBlock(self.every)
        edges = reference.Edges(getattr(self, "n_sink", 0), getattr(self, "window_size", 0))
        entries = reference.Entries(budget)
        return reference.Policy(self.name, PressScore(press), schedule, edges, entries)


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
    other = kvpress.ScorerPress, kvpress.ObservedAttentionPress  # it reads all attention weights
    found = {k: x for each in (kvpress, *map(import_named, named())) for k, x in vars(each).items()}
    scorers = {k: x for k, x in found.items() if isinstance(x, type) and issubclass(x, other[0])}
    usable = {key: x for key, x in scorers.items() if x not in other and only_scores(x)}
    if name not in usable:
        raise ValueError(f"kvpress:{name}: the name must be one of {', '.join(sorted(usable))}")
    return usable[name]


def only_scores(kind: Any) -> bool:
    """Say whether a press evicts what it rates lowest, and is made of options alone."""
    asks = any(each.default is each.empty for each in signature(kind).parameters.values())
    return kind.compress is kvpress.ScorerPress.compress and not asks


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
        """Write the scores of one sequence; the press is given its entries by position."""
        order = seen.positions[row].argsort(dim=-1)[:, -seen.cache.counts[row] :]
        places = order[..., None].expand(-1, -1, seen.keys.shape[-1])
        number_format = next(module.parameters()).dtype
        tensors = [x[row].gather(1, places)[None] for x in (seen.keys, seen.values)]
        at = state.stream["at"][row]
        tensors.append(state.stream["hidden"][row][at >= 0][None])
        keys, values, hidden = (each.to(number_format) for each in tensors)
        turned = module.rotary_emb(hidden, at[at >= 0][None])
        given = {"hidden_states": hidden, "position_embeddings": turned}
        rated = self.spec.press.score(module, hidden, keys, values, None, given)[0]
        scores.scatter_(1, order, rated.expand_as(order).to(scores.dtype))


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
        positions = torch.arange(n, device=keys.device, dtype=torch.int32).expand(N, n)
        clock = BatchClock((Clock(n, n, n),) * N, positions, keys.new_full((N, 1, 1), n).int())
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
