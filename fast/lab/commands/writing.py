"""What ``model.generate`` is given, and how fast it writes."""

from time import perf_counter
from typing import Any

from rich.progress import Progress


def encode(tokenizer: Any, text: str, device: Any) -> dict[str, Any]:
    """Return a text as ``input_ids`` and ``attention_mask``.

    Raises:
        ValueError: if the tokenizer refuses it, or finds no token in it.
    """
    try:
        inputs = tokenizer(text, return_tensors="pt")
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer cannot encode the prompt: {error}") from None
    if inputs["input_ids"].shape[1] == 0:
        raise ValueError("prompt must hold at least one token")
    return {name: inputs[name].to(device) for name in ("input_ids", "attention_mask")}


def plain(model: Any, max_new_tokens: int, temperature: float = 0.0) -> dict[str, Any]:
    """Return options that write as `kvlab.reference.generate` does.

    That is the likeliest token, or a draw at a temperature: penalties and top-k or top-p that a
    model comes with do not apply. A token that ends the model's texts ends this one.
    """
    own = model.generation_config
    end = own.eos_token_id
    first_end = end[0] if isinstance(end, list) and end else end
    return {
        "max_new_tokens": max_new_tokens,
        "do_sample": temperature > 0,
        "temperature": temperature or 1.0,
        "top_k": 0 if temperature > 0 else 50,  # 50 is how transformers writes "not used"
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "pad_token_id": first_end if own.pad_token_id is None else own.pad_token_id,
    }


class Pace:
    """Shows and times the tokens as they come; ``model.generate`` takes it as ``streamer``."""

    def __init__(self, bar: Progress, total: int) -> None:
        """Show ``total`` expected tokens on a progress bar."""
        self.bar, self.task = bar, bar.add_task("writing", total=total)
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Take the prompt in, then every token."""
        self.times.append(perf_counter())
        self.bar.update(self.task, completed=len(self.times) - 1)

    def end(self) -> None:
        """Show that nothing more will come."""
        self.bar.update(self.task, total=len(self.times) - 1)

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the prompt to the first token."""
        return self.times[1] - self.times[0]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first; None if there was only one."""
        written = len(self.times) - 1
        return (written - 1) / (self.times[-1] - self.times[1]) if written > 1 else None
