"""The text that each token adds."""

from collections.abc import Sequence

from tokenizers import Tokenizer

INCOMPLETE = "\ufffd"
"""What tokenizers put where bytes do not make up a character yet."""

CONTEXT = 4
"""Tokens before a token on which its text may depend: blanks between words."""


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to those before it; joined, they are the whole text.

    A character that several tokens make up belongs to the last of them; the others add nothing.
    """
    texts: list[str] = []
    first = done = 0  # decoded together, and how much of that is shown already
    for end in range(1, len(ids) + 1):
        shown = decode(tokenizer, ids[first:done])
        both = decode(tokenizer, ids[first:end])
        if both.endswith(INCOMPLETE) and end < len(ids):
            texts.append("")
            continue
        texts.append(both[len(shown) :])
        first, done = max(first, end - CONTEXT), end
    return texts


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, special ones included."""
    return tokenizer.decode(list(ids), skip_special_tokens=False)
