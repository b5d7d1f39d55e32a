"""Check on a few tokens that a model gives the same logits under `compress` as without it.

No list of names can say for which models this holds: architectures differ in places that no check
of a name or a configuration sees, and a mask or an argument that is lost gives wrong text, not an
error. So the full cache is compared with the stock model, once per class, configuration, number
format and device of a model in a process.
"""

import inspect
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast import methods
from kvlab.fast.huggingface.attachment import attached, implementation
from kvlab.fast.huggingface.cache import CompressedCache, UnsupportedModelError

COLUMNS = 5
PADDING = 1
"""Columns of padding on the left of the second text."""
BLOCK = 2

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
"""Largest distance of two logit vectors, as a share of the length of the stock model's.

In bfloat16 transformers' own implementations of attention lie about 0.1 apart
(``docs/compress.md``), so that a small difference shows in float32 only; the softmax of eager
attention is always in float32.
"""

_differences: dict[Any, str] = {}
"""What is wrong with each model that was compared in this process; empty if nothing is."""


def check_agreement(model: Any) -> None:
    """Compare the full cache with the stock model's logits, unless that was done before.

    One text is read at once. Another, padded on the left, is read in two blocks, then one token
    alone. Models that cannot read a text without other inputs, and logits that are no numbers, are
    not judged. The ValueError names what differed, or how the model failed.
    """
    key = (type(model), model.config.to_json_string(use_diff=False), model.dtype, model.device)
    if key not in _differences and model.device.type != "meta":
        difference = _difference(model)
        if difference is None:
            return
        _differences[key] = difference
    if _differences.get(key):
        raise ValueError(
            f"{type(model).__name__} {_differences[key]}: use it without compress(), or, if you "
            "know why this is right, call compress(verify=False)"
        )


@torch.inference_mode()
def _difference(model: Any) -> str | None:
    """Say what differs; None if the stock model gives nothing to compare with."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        ids, real = _texts(model)
        try:
            expected = _stock_logits(model, ids, real)
        except Exception:
            return None
        if not expected[real].isfinite().all():
            return None
        parts = _compared(model, ids, real, expected)
    except (UnsupportedModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        return f"fails under compress() ({' '.join(str(error).split())})"
    finally:
        for module, mode in training.items():
            module.training = mode
    allowed = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    for name, (found, wanted) in parts.items():
        distance = logit_distance(found, wanted)
        if not distance <= allowed:
            return (
                "gives other logits under compress() than without it "
                f"({name}: they differ by {distance:.2g} of their length)"
            )
    return ""


def _texts(model: Any) -> tuple[Int[Tensor, "2 t"], Bool[Tensor, "2 t"]]:
    """Return two texts without special tokens, and which tokens are no padding."""
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
    drawn = torch.randint(config.vocab_size, (32 * COLUMNS,), generator=generator)
    plain = drawn[~torch.isin(drawn, torch.tensor(special, dtype=torch.long))]
    ids = plain[: 2 * COLUMNS].view(2, COLUMNS)
    real = torch.ones((2, COLUMNS), dtype=torch.bool)
    real[1, :PADDING] = False
    return ids.to(model.device), real.to(model.device)


def _stock_logits(
    model: Any, ids: Int[Tensor, "2 t"], real: Bool[Tensor, "2 t"]
) -> Float[Tensor, "2 t vocab"]:
    """Logits of transformers' eager attention, the only one that knows softcaps and sinks.

    If these logits are no numbers, as in float64 with padding, the model's own attention gives the
    logits.
    """
    inputs = {"input_ids": ids, "attention_mask": real.long(), "use_cache": False}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (real.cumsum(dim=1) - 1).clamp(min=0)
    with implementation(model, "eager"):
        logits = model(**inputs).logits
    return logits if logits[real].isfinite().all() else model(**inputs).logits


def _compared(
    model: Any,
    ids: Int[Tensor, "2 t"],
    real: Bool[Tensor, "2 t"],
    expected: Float[Tensor, "2 t vocab"],
) -> dict[str, tuple[Float[Tensor, "k vocab"], Float[Tensor, "k vocab"]]]:
    """Logits under the full policy and the stock model's, by the name of the comparison."""
    cache = CompressedCache(model, methods.get("full"))
    with attached(model, cache, None):
        at_once = model(input_ids=ids[:1], past_key_values=cache).logits[0]
    cache, prompt = CompressedCache(model, methods.get("full")), COLUMNS - 1
    with attached(model, cache, BLOCK if cache.reads_in_pieces else None):
        inputs = {"attention_mask": real[1:, :prompt].long(), "past_key_values": cache}
        text = model(input_ids=ids[1:, :prompt], **inputs).logits[0]
        inputs["attention_mask"] = real[1:].long()
        last = model(input_ids=ids[1:, prompt:], **inputs).logits[0]
    whole, padded = expected
    return {
        "a text read at once": (at_once, whole),
        "a text padded on the left": (text[PADDING:BLOCK], padded[PADDING:BLOCK]),
        "the second block of a text": (text[BLOCK:], padded[BLOCK:prompt]),
        "one token after a text": (last, padded[prompt:]),
    }


def logit_distance(found: Float[Tensor, "t vocab"], expected: Float[Tensor, "t vocab"]) -> float:
    """Return the largest distance of a token's logits, over the length of the expected ones.

    The length is measured from the mean: a constant that is added to all logits means nothing.
    """
    found, expected = found.double(), expected.double()
    length = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float(((found - expected).norm(dim=-1) / length).max())
