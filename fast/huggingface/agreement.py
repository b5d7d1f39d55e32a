"""Check on a few tokens that a model gives the same logits under `compress` as without it.

No list of names can say for which models this holds: architectures differ in places that no check
of a name or a configuration sees, and a mask or an argument that is lost gives wrong text, not an
error. So the full cache is compared with the stock model, once per class, configuration, number
format and device of a model in a process. A method that changes positions or masks is compared,
too, once for every such option.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from transformers import Cache, DynamicCache

from kvlab.fast import methods
from kvlab.fast.engine.number_formats import without_autocast
from kvlab.fast.huggingface.arguments import first_position, only_logits
from kvlab.fast.huggingface.attaching import as_before, attached, implementation
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.identity import invoked_adapters
from kvlab.fast.huggingface.rotary import longest_alike
from kvlab.fast.kernels.notation import Bool, Float, Int, Tensor
from kvlab.reference.policy import Edges

Texts = Int[Tensor, "2 t"]
Compared = dict[str, tuple[Float[Tensor, "k vocab"], Float[Tensor, "k vocab"]]]
"""Logits under `compress`, and those expected, by the name of the comparison."""

COLUMNS = 5
PADDING = 1
"""Columns of padding on the left of the second text."""
BLOCK = 2
CHANGES = ("reposition", "evict_before_attend")
"""Options of a policy that change positions or masks."""
KEPT = 2
"""First tokens of a text, which are kept while all others are evicted."""
PIECES = (3, 1, 1, 1)
"""Tokens of the calls that cross a length: two stay below it, which resets type ``dynamic``."""

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Largest distance of two logit vectors, as a share of the length of the stock model's.

In bfloat16 transformers' own implementations of attention lie about 0.1 apart
(``docs/compress.md``), so that a small difference shows in float32 only; the softmax of eager
attention is always in float32.
"""

LARGEST_OF_PIECES = 0.1
"""The same for the output of one layer, where no rounding error has grown yet."""

_differences: dict[Any, str] = {}
"""What is wrong with each model that was compared in this process; empty if nothing is."""
_goes_on: dict[Any, bool] = {}
"""Whether the recurrent layers of each model that was asked read a text in pieces."""


def check_agreement(asked: Attachment) -> tuple[str, ...]:
    """Compare the full cache with the stock model's logits, unless that was done before.

    One text is read at once. Another, padded on the left, is read in two blocks, then one token
    alone. If a length changes the model's rotary frequencies, tokens at the positions around it are
    read, too, beside transformers' own cache. If the cache's policy has options of `CHANGES`, a
    token after an eviction is compared with the stock model that reads the kept tokens alone.
    Models that cannot read a text without other inputs, and logits that are no numbers, are not
    judged. The ValueError names what differed, or how the model failed. Returned is which texts
    were not compared.
    """
    model, policy = asked.model, asked.policy.specification
    changes = tuple(name for name in CHANGES if getattr(policy, name))
    alone = "position_ids" in inspect.signature(model.forward).parameters and asked.masks_nothing
    for options in dict.fromkeys([(), changes if alone else ()]):
        key = (*_key(model), options)
        if key not in _differences:
            with evaluating(model):
                difference = _difference(asked, options)
            if difference is None:
                return (
                    "texts of any length: the model alone gives no logits of numbers for a text",
                )
            _differences[key] = difference
        if _differences.get(key):
            raise ValueError(
                f"{type(model).__name__} {_differences[key]}: use it without compress(), or, if "
                "you know why this is right, call compress(verify=False)"
            )
    layers = DynamicCache(config=model.config).layers
    windows = {getattr(layer, "sliding_window", 0) for layer in layers} - set(range(COLUMNS))
    left_out = [f"texts beyond the sliding window of {window} tokens" for window in windows]
    if changes and not alone:
        left_out.append(
            f"texts after an eviction with {' and '.join(changes)}: no call of the model alone "
            "leaves the evicted tokens out of full-attention layers only"
        )
    return tuple(left_out)


def _key(model: Any) -> tuple[Any, ...]:
    parts = frozenset(map(type, model.modules()))  # adapters and quantised layers replace some
    return (parts, model.config.to_json_string(use_diff=False), model.dtype, model.device)


def reads_in_pieces(model: Any) -> bool:
    """Say whether recurrent layers give in pieces what they give for a whole text.

    Some begin anew with every piece of more than one token (Jamba). The first recurrent layer is
    compared, because nothing before it hides or magnifies a difference: in bfloat16 logits do both.
    False if the model does not read the text, or the layer is not found.
    """
    key = _key(model)
    if key not in _goes_on:
        try:
            with evaluating(model):
                _goes_on[key] = _pieces_agree(model)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            _goes_on[key] = False
    return _goes_on[key]


@torch.inference_mode()
def _pieces_agree(model: Any) -> bool:
    layers = DynamicCache(config=model.config).layers
    number = next(n for n, layer in enumerate(layers) if hasattr(layer, "recurrent_states"))
    numbered = [x for x in model.get_decoder().modules() if getattr(x, "layer_idx", None) == number]
    ids, _ = texts(model)
    ids, padding = ids.reshape(1, -1), BLOCK + 1
    real = (torch.arange(ids.shape[1], device=ids.device) >= padding)[None].long()

    def read(*ends: int) -> Tensor:
        cache, outputs = DynamicCache(config=model.config), []

        def note(module: Any, args: Any, output: Any) -> None:
            outputs.append(output if isinstance(output, Tensor) else output[0])

        hook = numbered[-1].register_forward_hook(note)
        try:
            for first, last in pairwise((0, *ends)):
                inputs = {"input_ids": ids[:, first:last], "attention_mask": real[:, :last]}
                model(**inputs, past_key_values=cache)
        finally:
            hook.remove()
        return torch.cat(outputs, dim=1)[0, padding:]

    whole, pieces = read(ids.shape[1]), read(*range(BLOCK, ids.shape[1] + 1, BLOCK))
    allowed = min(TOLERANCE.get(model.dtype, 1.0), LARGEST_OF_PIECES)
    return logit_distance(pieces, whole) <= allowed


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Let a model evaluate in its own number format, and train again afterwards what trained."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with as_before(model), without_autocast():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


@torch.inference_mode()
def _difference(asked: Attachment, changes: tuple[str, ...]) -> str | None:
    """Say what differs; None if the stock model gives nothing to compare with.

    With ``changes``, what is compared is a method with these options; the full cache without.
    """
    model = asked.model
    try:
        ids, real = texts(model)
        try:
            rows = zip(ids.split(1), real.split(1), strict=True)
            expected = torch.cat([stock_logits(model, *row) for row in rows])
        except Exception:
            return None
        if expected.shape[:2] != ids.shape:
            return f"gives logits of shape {tuple(expected.shape[1:])} for {ids.shape[1]} tokens"
        if not expected[real].isfinite().all():
            return None
        if changes:
            parts = _after_eviction(asked, changes, ids)
        else:
            parts = _compared(model, ids, real, expected)
    except (UnsupportedModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        return f"fails under compress() ({' '.join(str(error).split())})"
    allowed = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    for name, (found, wanted) in parts.items():
        distance = logit_distance(found, wanted)
        if not distance <= allowed:
            return (
                "gives other logits under compress() than without it "
                f"({name}: they differ by {distance:.2g} of their length)"
            )
    return ""


def texts(model: Any) -> tuple[Texts, Bool[Tensor, "2 t"]]:
    """Return two texts without special tokens, and a mask of the tokens that are not padding."""
    config = model.config.get_text_config(decoder=True)
    special = [
        number
        for one in (model.config, config)
        for name, value in vars(one).items()
        if name.endswith(("token_id", "token_index"))
        for number in (value if isinstance(value, list) else [value])
        if number is not None
    ]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(config.vocab_size, (32 * COLUMNS,), generator=generator, device="cpu")
    plain = drawn[~torch.isin(drawn, torch.tensor(special, dtype=torch.long, device="cpu"))]
    ids = plain[: 2 * COLUMNS].view(2, COLUMNS)
    real = torch.ones((2, COLUMNS), dtype=torch.bool, device="cpu")
    real[1, :PADDING] = False
    device = "cpu" if model.device.type == "meta" else model.device  # accelerate moves them there
    return ids.to(device), real.to(device)


def stock_logits(
    model: Any, ids: Int[Tensor, "N t"], real: Bool[Tensor, "N t"], **more: Any
) -> Float[Tensor, "N t vocab"]:
    """Logits of transformers' eager attention, the only one that knows softcaps and sinks.

    ``real`` marks tokens that are not padding; a text without padding has the positions that the
    model gives it. If the logits are no numbers, as in float64 with padding, the model's own
    attention gives them. ``more`` are further arguments of the model.
    """
    inputs = {"input_ids": ids, "attention_mask": real.long(), "use_cache": False, **more}
    if not real.all() and "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (real.cumsum(dim=1) - 1).clamp(min=0) + first_position(model)
    with implementation(model, "eager"):
        logits = model(**inputs).logits
    if logits.shape[:2] == ids.shape and not logits[real].isfinite().all():
        logits = model(**inputs).logits
    return logits


def _across(model: Any, limit: int, ids: Texts) -> tuple[Tensor, Tensor]:
    """Logits around the length where frequencies change, and those with transformers' cache.

    The short texts that are read later give the model its first frequencies again.
    """
    first, tokens = max(0, limit - sum(PIECES[:2])), sum(PIECES)
    positions = torch.arange(first, first + tokens, device=ids.device)[None]
    pieces = (ids.reshape(1, -1)[:, :tokens].split(PIECES, 1), positions.split(PIECES, 1))

    def read(cache: Cache) -> Tensor:
        calls = zip(*pieces, strict=True)
        parts = [model(input_ids=x, position_ids=at, past_key_values=cache) for x, at in calls]
        return torch.cat([part.logits[0] for part in parts])

    with implementation(model, "eager"):
        expected = read(DynamicCache(config=model.config))
    attachment = Attachment(model, methods.get("full"))
    with attached(attachment, None):
        return read(CompressedCache(attachment)), expected


def _compared(
    model: Any, ids: Texts, real: Bool[Tensor, "2 t"], expected: Float[Tensor, "2 t vocab"]
) -> Compared:
    """Logits under the full policy and the stock model's, by the name of the comparison."""
    limit, parts = longest_alike(model), {}
    if limit is not None:
        parts[f"tokens beyond {limit}"] = _across(model, limit, ids)
    attachment = Attachment(model, methods.get("full"))
    with attached(attachment, None):
        at_once = model(input_ids=ids[:1], past_key_values=CompressedCache(attachment)).logits[0]
    attachment, prompt = Attachment(model, methods.get("full")), COLUMNS - 1
    attachment.reads_in_pieces = attachment.reads_in_pieces or reads_in_pieces(model)
    in_blocks = attachment.reads_in_pieces and not invoked_adapters(model)
    with attached(attachment, BLOCK if in_blocks else None):
        cache = CompressedCache(attachment)
        inputs = {"attention_mask": real[1:, :prompt].long(), "past_key_values": cache}
        inputs |= only_logits(model)
        text = model(input_ids=ids[1:, :prompt], **inputs).logits[0]
        inputs["attention_mask"] = real[1:].long()
        last = model(input_ids=ids[1:, prompt:], **inputs).logits[0]
    whole, padded = expected
    return parts | {
        "a text read at once": (at_once, whole),
        "a text padded on the left": (text[PADDING:BLOCK], padded[PADDING:BLOCK]),
        "the second block of a text": (text[BLOCK:], padded[BLOCK:prompt]),
        "one token after a text": (last, padded[prompt:]),
    }


def _after_eviction(asked: Attachment, changes: tuple[str, ...], ids: Texts) -> Compared:
    """Logits of a token after an eviction, and the stock model's that reads only what was kept.

    The first tokens are kept: no layer let the others, which came later, change them.
    """
    model, kept = asked.model, [*range(KEPT), COLUMNS - 1]
    policy = methods.get("streaming_llm", KEPT, sinks=KEPT - 1).specification
    policy = replace(policy, protect=Edges(sinks=KEPT), **dict.fromkeys(changes, True))
    attachment = Attachment(model, methods.port(policy))
    attachment.rotations = asked.rotations
    with attached(attachment, None):
        probe = CompressedCache(attachment)
        model(input_ids=ids[:1, : COLUMNS - 1], past_key_values=probe)
        found = model(input_ids=ids[:1, COLUMNS - 1 :], past_key_values=probe).logits[0]
    at = torch.tensor([range(KEPT + 1) if policy.reposition else kept], device=ids.device)
    read = ids[:1, kept]
    real = torch.ones_like(read).bool()
    logits = stock_logits(model, read, real, position_ids=at + first_position(model))
    return {f"a token after an eviction with {' and '.join(changes)}": (found, logits[0, -1:])}


def logit_distance(found: Float[Tensor, "t vocab"], expected: Float[Tensor, "t vocab"]) -> float:
    """Return the largest distance of a token's logits, over the length of the expected ones.

    The length is measured from the mean: a constant that is added to all logits means nothing.
    """
    found, expected = found.double(), expected.double()
    length = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float(((found - expected).norm(dim=-1) / length).max())
