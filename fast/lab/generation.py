"""A model writes a text under a method; entries, bytes and seconds are counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from kvlab.fast.huggingface import CompressedCache, compress
from kvlab.fast.lab.evaluate.controls import after_eviction
from kvlab.fast.lab.points import After, tokens_after
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference.checks import check_at_least
from kvlab.reference.selection import budget_entries

Stopped = Callable[[], bool]


def _ends(stopped: Stopped, ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
    return torch.full((len(ids),), stopped(), device=ids.device)


@dataclass(frozen=True)
class Written:
    """What `generate` found; entries and bytes are those after the last token that was read."""

    text: str
    method: str
    budget: int | None
    prompt_tokens: int
    written_tokens: int
    tokens_read: int
    """Prompt and answer without its last token, which no attention layer has read."""
    fewest_entries: int
    """Entries per KV head, in the compressed layer that keeps the fewest."""
    most_entries: int
    entry_bytes: int
    """Bytes allocated for keys and values, scales and zero points included."""
    state_bytes: int
    """Bytes allocated for positions, scores and remembered queries."""
    full_bytes: int
    """Keys and values of the full cache, without slack."""
    first_token_seconds: float
    tokens_per_second: float | None
    after_eviction: After | None
    """Written tokens that come after an eviction; None for what evicts nothing."""


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    method: str = "full",
    budget: int | str | None = None,
    *,
    block_size: int | None = None,
    max_new_tokens: int = 128,
    progress: OnProgress | None = None,
    stopped: Stopped | None = None,
) -> Written:
    """Let a decoder of transformers continue a text of at least one token under a method.

    The budget is entries, or percent of the prompt and ``max_new_tokens`` together. ``stopped``
    says after each token whether the text ends there.
    """
    check_at_least(1, max_new_tokens=max_new_tokens)
    inputs = encode_prompt(tokenizer, prompt, model.device)
    prompt_tokens = inputs["input_ids"].shape[1]
    entries = None if budget is None else budget_entries(budget, prompt_tokens + max_new_tokens)
    options = decoding_options(model, max_new_tokens, stopped=stopped)
    timer = TokenTimer(max_new_tokens, progress)
    with compress(model, method, entries, block_size) as cache:
        tokens = model.generate(**inputs, **options, past_key_values=cache, streamer=timer)[0]
        memory, kept = cache.memory(), [count for (count,) in cache.kept()]
        all_bytes = full_bytes(model, cache, tokens_read=len(tokens) - 1)
        (first,) = cache.first_evictions
    count = len(tokens) - prompt_tokens
    after = tokens_after(first, prompt_tokens, count)
    return Written(
        text=tokenizer.decode(tokens[prompt_tokens:], skip_special_tokens=True),
        method=method,
        budget=entries,
        prompt_tokens=prompt_tokens,
        written_tokens=count,
        tokens_read=len(tokens) - 1,
        fewest_entries=min(kept),
        most_entries=max(kept),
        entry_bytes=memory.entries,
        state_bytes=memory.total - memory.entries,
        full_bytes=all_bytes,
        first_token_seconds=timer.first_token_seconds,
        tokens_per_second=timer.tokens_per_second,
        after_eviction=after_eviction(method, After(after, count, "tokens")),
    )


def token_ids(tokenizer: Any, text: str, name: str = "text") -> list[int]:
    """Return the token ids of a text; a ValueError calls it ``name`` if it is refused."""
    try:
        return tokenizer(text, verbose=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer cannot encode the {name}: {error}") from None


def encode_prompt(tokenizer: Any, prompt: str, device: Any) -> dict[str, torch.Tensor]:
    """Return a prompt as ``input_ids`` and ``attention_mask``, each ``[1, tokens]``."""
    ids: Sequence[int] = token_ids(tokenizer, prompt, "prompt")
    if not ids:
        raise ValueError("prompt must hold at least one token")
    input_ids = torch.tensor([ids], device=device)
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def decoding_options(
    model: Any, max_new_tokens: int, temperature: float = 0.0, stopped: Stopped | None = None
) -> dict[str, Any]:
    """Return options with which ``model.generate`` writes as `kvlab.reference.generate` does.

    Penalties, top-k and top-p that come with a model do not apply. ``stopped`` ends the text.
    """
    own = model.generation_config
    end = own.eos_token_id
    first_end = end[0] if isinstance(end, list) and end else end
    return {
        "max_new_tokens": max_new_tokens,
        "do_sample": temperature > 0,
        "temperature": temperature or 1.0,
        "top_k": 0 if temperature > 0 else 50,  # transformers reads 50 as "not used"
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "pad_token_id": first_end if own.pad_token_id is None else own.pad_token_id,
        **({"stopping_criteria": [partial(_ends, stopped)]} if stopped else {}),
    }


def full_bytes(model: Any, cache: CompressedCache, tokens_read: int) -> int:
    """Return the bytes of all keys and values; layers that are left alone count as they are."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_layer = 2 * heads * size * tokens_read * model.dtype.itemsize
    compressed = {layer.number for layer in cache.compressed_layers}
    return sum(
        per_layer if number in compressed else memory.total
        for number, memory in enumerate(cache.memory().layers)
    )


class TokenTimer:
    """Times the tokens as they come; ``model.generate`` takes it as ``streamer``."""

    def __init__(self, total: int, progress: OnProgress | None = None) -> None:
        self.total, self.progress = total, progress
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Take the prompt in, then every token."""
        self.times.append(perf_counter())
        if self.progress is not None:
            self.progress(len(self.times) - 1, self.total, "writing")

    def end(self) -> None:
        """Take in that no token follows; transformers calls it."""

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the prompt to the first token."""
        return self.times[1] - self.times[0]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first; None if there was only one."""
        written = len(self.times) - 1
        return (written - 1) / (self.times[-1] - self.times[1]) if written > 1 else None
