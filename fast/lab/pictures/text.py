"""The text itself: which of its tokens are still in a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Bool

from kvlab.reference.notation import Array

GONE = "text-decoration: line-through; opacity: 0.35"


@dataclass(frozen=True)
class KeptText:
    """Tokens in which those that have left the cache are struck out, one paragraph per method.

    Raises:
        ValueError: if a mask has not as many marks as there are tokens.
    """

    tokens: Sequence[str]
    kept: Mapping[str, Bool[Array, " t"]]
    """By method: whether each token is still there."""

    def __post_init__(self) -> None:
        for method, marks in self.kept.items():
            if len(marks) != len(self.tokens):
                raise ValueError(f"{method}: {len(marks)} marks for {len(self.tokens)} tokens")

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        paragraphs = (
            f"<p><strong>{escape(method)}</strong> ({int(np.sum(marks))} of {len(marks)})<br>"
            f"{self._words(marks)}</p>"
            for method, marks in self.kept.items()
        )
        return f'<div class="kvlab-text">{"".join(paragraphs)}</div>'

    def _words(self, marks: Bool[Array, " t"]) -> str:
        words = (escape(token).replace("\n", "⏎") for token in self.tokens)
        return " ".join(
            f"<span>{word}</span>" if kept else f'<span style="{GONE}">{word}</span>'
            for word, kept in zip(words, marks, strict=True)
        )

    def __repr__(self) -> str:
        """Return the numbers of tokens that are kept."""
        counts = (f"{method}: {int(np.sum(marks))}" for method, marks in self.kept.items())
        return f"KeptText({', '.join(counts)} of {len(self.tokens)})"
