"""The effect of an entry: what hiding it alone, in one layer and KV head, changes from now on.

A model has read n tokens, whose entries are in its cache, and is given the next one. From then on
an entry is hidden: no query of its KV head reads it, and those of all other heads and layers still
do. Over the tokens that follow, which are rated, two things are measured:

- the *effect*: by how much the loss of each, minus its log-likelihood, rises;
- the *layer effect*: how far the outputs of the layer's attention move at each, before W_O. It is
  ‖ΔX‖ over the query heads of the KV head; of one entry with attention h and value v it is CAOTE's
  eviction error h/(1 − h)·‖X − v‖, over the query heads, because the layers below are the same.

`effect_labels` measures drawn entries of a recorded trace, to be written with it.

Many hidden entries are rows of one batch, which shares the keys and values of the n tokens and
begins at the layer of these entries. Row 0 hides nothing: all others are compared with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AttentionInterface

from kvlab.fast.huggingface.attaching import check_model, implementation
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.kernels.notation import Float, Tensor
from kvlab.reference.checks import check_at_least, check_between
from kvlab.reference.simulator.trace import Trace

NAME = "kvlab_effects"
RUN = "_kvlab_run"
ROWS = 8
"""Rows whose logits are in memory together."""
LIKE_THE_MODEL = 1e-3
"""Distance of logits, relative to the largest, up to which layers were called as the model does."""


@dataclass(frozen=True)
class Hidden:
    """One entry, or several of one layer and KV head, that are hidden together."""

    layer: int
    kv_head: int
    entries: tuple[int, ...]
    """Indices among the n tokens that were read."""


@dataclass(frozen=True, eq=False)
class Effects:
    """What hiding changes, a row for each `Hidden`, a column for each rated token."""

    losses: Float[np.ndarray, "hidden rated"]
    """Loss of each token with the entries hidden, less its loss without, in nats."""
    outputs: Float[np.ndarray, "hidden rated"]
    """The layer effect at the step that predicts each token."""


@torch.inference_mode()
def measure_effects(
    model: Any,
    tokens: Sequence[int],
    hidden: Sequence[Hidden],
    rated: int = 32,
    rows: int = 24,
    progress: Callable[[int], object] = lambda done: None,
) -> Effects:
    """Hide entries of a text's first n tokens, and rate its last ``rated`` tokens.

    One token stands between: it is the first that is read with the entries hidden. So n is
    ``len(tokens) - rated - 1``. So many ``rows`` at most run as one batch, beside the one that
    hides nothing; ``progress`` is called after each batch with the number of rows done.

    Raises:
        ValueError: if a number is not allowed, or if kvlab cannot call the model's layers one by
            one (`UnsupportedModelError`): they must be decoder layers of full attention.
    """
    check_at_least(1, rated=rated, rows=rows)
    n = len(tokens) - rated - 1
    if n < 1:
        raise ValueError(f"tokens = {len(tokens)} must be at least {rated + 2}: rated = {rated}")
    check_model(model)
    expected = model(torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
    losses = np.zeros((len(hidden), rated))
    outputs = np.zeros((len(hidden), rated))
    with implementation(model, NAME):
        text = _Text(model, tokens, n, expected)
        text.check(hidden)
        order = sorted(range(len(hidden)), key=lambda number: hidden[number].layer)
        done = 0
        for layer, group in groupby(order, key=lambda number: hidden[number].layer):
            numbers = list(group)
            for first in range(0, len(numbers), rows):
                some = numbers[first : first + rows]
                losses[some], outputs[some] = text.hide(layer, [hidden[x] for x in some])
                done += len(some)
                progress(done)
    return Effects(losses, outputs)


CARD = """# What entries of this trace are worth

Each row of `effect_hidden` names an entry: the number of its layer, its KV head, its position. It
alone was hidden from token {first} on, and the last {rated} tokens of the trace were rated.
`effect_losses`: the loss of each of these tokens with the entry hidden, less its loss without, in
nats; positive where the entry helps. `effect_outputs`: how far the layer's attention outputs move
at the step that predicts each token, as an L2 norm over the query heads of the KV head, before W_O.

- Model: {model}, computed in {dtype}
- Text: tokens 0 to {last}; the first {prompt} were given, the model wrote the others with the full
  cache
- Entries: {each} of the first {read}, drawn at random in every recorded layer and KV head, each
  with the same chance (seed {seed})
- Versions: kvlab {kvlab}, PyTorch {torch}, transformers {transformers}
- License: that of the model and of the given text, which kvlab does not know; state it before you
  publish the file
"""


def effect_labels(
    model: Any,
    trace: Trace,
    each: int,
    rated: int = 32,
    seed: int = 0,
    progress: Callable[[int, int, str], object] = lambda done, total, what: None,
) -> dict[str, Any]:
    """Measure entries of a trace: members of its file, ``card`` among them, which explains them.

    Args:
        model: that of the trace.
        trace: all of its tokens but the last ``rated`` and one before them may be hidden.
        each: entries of every recorded layer and KV head, drawn with ``seed``.
        rated: tokens at the end of the trace that are rated.
        seed: of the draw.
        progress: is called with the entries done, all entries, and a word.

    Raises:
        ValueError: if the trace is too short, and as `measure_effects`.
    """
    read = len(trace.tokens) - rated - 1
    if not 1 <= each <= read:
        raise ValueError(
            f"effects = {each} must be between 1 and {read}: of {len(trace.tokens)} tokens of the "
            f"trace the last {rated} are rated, and the one before them is read first"
        )
    rng = np.random.default_rng(seed)
    places = [(n, g) for n in trace.metadata.layers for g in range(trace.shape[1])]
    rows = [(*at, int(e)) for at in places for e in sorted(rng.permutation(read)[:each])]
    hidden = [Hidden(layer, head, (entry,)) for layer, head, entry in rows]
    found = measure_effects(
        model,
        trace.tokens.tolist(),
        hidden,
        rated,
        progress=lambda done: progress(done, len(hidden), "hiding entries"),
    )
    card = CARD.format(
        first=read,
        last=len(trace.tokens) - 1,
        rated=rated,
        each=each,
        read=read,
        seed=seed,
        prompt=trace.prompt,
        model=trace.metadata.model,
        dtype=str(model.dtype).removeprefix("torch."),
        kvlab=trace.metadata.kvlab,
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    return {
        "effect_hidden": np.array(rows),
        "effect_losses": found.losses.astype(np.float32),
        "effect_outputs": found.outputs.astype(np.float32),
        "card": card,
    }


class _Text:
    """A text that was read with nothing hidden, and what each layer was given."""

    def __init__(self, model: Any, tokens: Sequence[int], n: int, expected: Tensor) -> None:
        self.model, self.n = model, n
        self.ids = torch.tensor(tokens, device=model.device)
        self.run = _Run()
        self.inputs: list[Tensor] = []
        """What each layer is given for the tokens after the first n: ``[1, rated, D]``."""
        try:
            decoder = model.model
            state = decoder.embed_tokens(self.ids[None])
            for layer in decoder.layers:
                self.inputs.append(state[:, n:-1])
                state = self.through(layer, state, 0, self.run)
            found = self.logits(state)[0]
        except (AttributeError, TypeError, KeyError) as error:
            raise UnsupportedModelError(_unsupported(model)) from error
        if (found - expected).abs().max() > LIKE_THE_MODEL * expected.abs().max():
            raise UnsupportedModelError(_unsupported(model))
        self.shared = {
            layer: (keys[0, :, :n], values[0, :, :n])
            for layer, (keys, values) in self.run.vectors.items()
        }

    def check(self, hidden: Sequence[Hidden]) -> None:
        """Raise ValueError if a layer, a KV head or an entry is not there."""
        layers, heads = len(self.shared), len(self.shared[0][0])
        for each in hidden:
            check_between(0, layers - 1, layer=each.layer)
            check_between(0, heads - 1, kv_head=each.kv_head)
            for entry in each.entries:
                check_between(0, self.n - 1, entry=entry)

    def through(self, layer: Any, state: Tensor, first: int, run: "_Run") -> Tensor:
        """Run tokens, from position ``first`` on, through a layer of the model."""
        positions = torch.arange(first, first + state.shape[1], device=state.device)[None]
        rotary = self.model.model.rotary_emb(state, positions)
        found = layer(
            state,
            attention_mask=None,
            position_ids=positions,
            past_key_values=run,
            use_cache=True,
            position_embeddings=rotary,
        )
        return found[0] if isinstance(found, tuple) else found

    def logits(self, state: Tensor) -> Tensor:
        """Return the logits after the last layer."""
        return self.model.get_output_embeddings()(self.model.model.norm(state))

    def hide(self, layer: int, hidden: Sequence[Hidden]) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much losses rise and outputs move, as `Effects` holds them."""
        rows = [(0, ()), *((each.kv_head, each.entries) for each in hidden)]
        run = _Run(self.shared, layer, rows)
        state = self.inputs[layer].expand(len(rows), -1, -1)
        for each in self.model.model.layers[layer:]:
            state = self.through(each, state, self.n, run)
        losses = self.losses(state)
        moved = (run.outputs[1:] - run.outputs[:1]).double().square().sum(dim=(2, 3)).sqrt()
        return (losses[1:] - losses[:1]).cpu().numpy(), moved.cpu().numpy()

    def losses(self, state: Tensor) -> Float[Tensor, "rows rated"]:
        """Return the loss of every rated token, some rows at a time: logits take much memory."""
        targets, found = self.ids[self.n + 1 :, None], []
        for rows in state.split(ROWS):
            logits = self.logits(rows)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits -= logits.gather(-1, targets.expand(len(rows), -1, -1))
            peaks = logits.amax(dim=-1, keepdim=True)
            sums = logits.sub_(peaks).exp_().sum(dim=-1)  # in place: logsumexp takes twice as long
            found.append(sums.log() + peaks[..., 0])
        return torch.cat(found).double()


class _Run:
    """Stands for the cache of one run: entries that all rows share, and which each row hides."""

    def __init__(
        self,
        shared: dict[int, tuple[Tensor, Tensor]] | None = None,
        layer: int = -1,
        rows: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        self.shared = shared or {}
        self.layer = layer
        self.rows = rows
        """KV head and entries that each row hides in ``layer``."""
        self.vectors: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of the run's own tokens, ``[N, G, m, d]``, if none are shared."""
        self.outputs = torch.zeros(0)
        """Outputs of the attention of ``layer``: ``[N, m, H, d]``."""

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        """Note a layer's keys and values, and hand them on with the way back to this run."""
        if not self.shared:
            self.vectors[layer] = keys, values
        tagged = keys.view_as(keys)
        setattr(tagged, RUN, (self, layer))
        return tagged, values

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend with logits ``queries @ keys``: over the shared entries and the run's own."""
        (N, H, m, d), G = queries.shape, keys.shape[1]
        joined = queries.reshape(N, G, H // G * m, d)
        none = keys[0, :, :0], values[0, :, :0]
        old_keys, old_values = self.shared.get(layer, none)
        n = old_keys.shape[1]
        raw = torch.cat([joined @ old_keys.mT, joined @ keys.mT], dim=-1)
        raw = raw.view(N, G, -1, m, n + m)
        later = torch.ones(m, n + m, dtype=torch.bool, device=raw.device).triu(n + 1)
        raw.masked_fill_(later, -torch.inf)
        if layer == self.layer:
            for row, (head, entries) in enumerate(self.rows):
                raw[row, head, :, :, list(entries)] = -torch.inf
        weights = raw.softmax(dim=-1).view(N, G, -1, n + m)
        output = weights[..., :n] @ old_values + weights[..., n:] @ values
        output = output.view(N, H, m, d).transpose(1, 2)
        if layer == self.layer:
            self.outputs = output
        return output.contiguous()


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the run says whose keys these are; the signature is transformers'."""
    run, layer = getattr(key, RUN)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return run.attend(layer, query * scale, key, value), None


def _unsupported(model: Any) -> str:
    return (
        f"{type(model).__name__} does not compute what its decoder layers, called one by one with "
        "full attention, compute: effects cannot be measured"
    )


AttentionInterface.register(NAME, _attention)
