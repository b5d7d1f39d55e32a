"""English that comes with the package: a novel to read, and to hide things in, and questions.

Jane Austen's *Northanger Abbey* (1818) is in the public domain; ``data/README.md`` says where the
text is from.
"""

import lzma
import re
from functools import cache
from importlib.resources import files

import numpy as np

from kvlab.reference.checks import check_between

BOOK = "northanger_abbey.txt.xz"
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<!No\.) ")


def novel() -> str:
    """Return the novel, one line per paragraph, with an empty line between paragraphs."""
    packed = (files("kvlab.reference.tasks") / "data" / BOOK).read_bytes()
    return lzma.decompress(packed).decode("utf-8")


def passage(rng: np.random.Generator, words: int) -> str:
    """Draw a place of the novel and cut sentences out from there, of so many words, rounded up."""
    sentences = novel_sentences()
    lengths = np.array([len(sentence.split()) for sentence in sentences])
    check_between(1, int(lengths.sum()) - 1, words=words)
    left = lengths[::-1].cumsum()[::-1]
    first = int(rng.integers(int((left >= words).sum())))
    last = first + int(np.searchsorted(lengths[first:].cumsum(), words)) + 1
    return " ".join(sentences[first:last])


@cache
def novel_sentences() -> tuple[str, ...]:
    """Return the sentences of the novel without its headings."""
    paragraphs = [each for each in novel().split("\n\n") if not each.startswith("CHAPTER")]
    text = " ".join(" ".join(paragraphs).split())
    return tuple(SENTENCE_END.split(text))


def questions() -> tuple[str, ...]:
    """Return questions and requests of everyday life, written for kvlab."""
    written = (files("kvlab.reference.tasks") / "data" / "questions.txt").read_text("utf-8")
    return tuple(written.splitlines())
