"""Needle in a haystack: secret numbers hidden in a text (CAOTE, Fig. 2)."""

from functools import lru_cache
from typing import Any

import numpy as np

from kvlab.fast.lab.generation import token_ids
from kvlab.reference.tasks import needle as task

_straw = lru_cache(maxsize=2)(token_ids)


@lru_cache(maxsize=1024)  # every job of a sweep draws its haystacks anew
def haystack(
    tokenizer: Any, hay: str, length: int, depth: float, seed: tuple[int, ...], chat: bool = False
) -> tuple[list[int], list[int]]:
    """Hide a secret number in a text; return the prompt that asks for it and the answer, as ids.

    ``seed`` draws the part of ``hay`` with which the whole prompt has at most ``length`` tokens;
    ``depth`` is the share of it before the needle. ValueError if either is too short.
    """
    straw = _straw(tokenizer, hay)
    if len(straw) < length:
        raise ValueError(f"the text has {len(straw)} tokens, fewer than length = {length}")
    rng = np.random.default_rng(seed)
    hidden = task.draw(rng)
    start = int(rng.integers(len(straw) - length + 1))
    cut = tokenizer.decode(straw[start : start + length], skip_special_tokens=True)
    prompt = _prompt_of(tokenizer, cut, hidden, depth, length, chat)
    return _ids(tokenizer, prompt, chat), _answer_of(tokenizer, prompt, hidden.answer, chat)


def _prompt_of(
    tokenizer: Any, hay: str, hidden: task.Needle, depth: float, length: int, chat: bool
) -> str:
    while True:
        body = task.hide(hay, hidden.sentence, depth)
        prompt = _framed(tokenizer, f"{body}\n\n{hidden.question}", hidden.opening, chat)
        tokens = len(_ids(tokenizer, prompt, chat))
        if tokens <= length:
            return prompt
        keep = len(hay) - max(1, len(hay) * (tokens - length) // tokens)
        if not hay or keep < 1:
            raise ValueError(f"length = {length} leaves no room for a text around the needle")
        hay = hay[:keep]


def _framed(tokenizer: Any, request: str, opening: str, chat: bool) -> str:
    if not chat:
        return f"{request} {opening}"
    turns = [{"role": "user", "content": request}, {"role": "assistant", "content": opening}]
    return tokenizer.apply_chat_template(turns, tokenize=False, continue_final_message=True)


def _ids(tokenizer: Any, text: str, chat: bool) -> list[int]:
    """Return token ids; a chat template brings its special tokens itself."""
    return tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]


def _answer_of(tokenizer: Any, prompt: str, answer: str, chat: bool) -> list[int]:
    before, whole = _ids(tokenizer, prompt, chat), _ids(tokenizer, prompt + answer, chat)
    if whole[: len(before)] == before:
        return whole[len(before) :]
    return tokenizer(answer, add_special_tokens=False)["input_ids"]
