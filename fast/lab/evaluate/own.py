"""Problems and texts of one's own, from files."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvlab.reference.checks import check_choice
from kvlab.reference.tasks import english


@dataclass(frozen=True)
class OwnProblem:
    """A line of a file of problems."""

    prompt: str
    solution: str
    compare: str

    @classmethod
    def read(cls, line: str, place: str) -> "OwnProblem":
        """Read a line; ValueError, which names the place, if it is no problem."""
        try:
            told = json.loads(line, parse_int=str, parse_float=str)  # 5 is the answer "5"
            prompt, answer = told["prompt"], told["answer"]
            compare = told.get("compare", "exact")
            if not (prompt and answer and isinstance(prompt, str) and isinstance(answer, str)):
                raise TypeError("prompt and answer must be texts that are not empty")
            check_choice((*COMPARED,), compare=compare)
        except KeyError as error:
            raise ValueError(f"{place}: {error} is missing") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{place}: {error}") from None
        return cls(prompt, answer, compare)


def _is_last_number(answer: str, text: str) -> bool:
    numbers = re.findall(r"-?\d[\d,]*\.?\d*", text)
    return bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer.replace(",", ""))


COMPARED: Mapping[str, Callable[[str, str], bool]] = {
    "exact": lambda answer, text: text.strip().partition("\n")[0].strip() == answer.strip(),
    "contains": lambda answer, text: answer in text,
    "number": _is_last_number,
}
"""How a text is compared with the answer: its first line, any part of it, its last number."""


def passage(text: str | None) -> str:
    """Return the novel, or a file; of one in JSONL its texts, with an empty line between them.

    ValueError if a line of it has no ``text``.
    """
    if text is None:
        return english.novel()
    found = Path(text).read_text(encoding="utf-8")
    if not text.endswith(".jsonl"):
        return found
    texts = []
    for place, line in lines_of(text, found):
        try:
            texts.append(json.loads(line)["text"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{place}: must be a JSON object with a text") from None
    return "\n\n".join(texts)


def lines_of(name: str, content: str) -> Iterator[tuple[str, str]]:
    """Yield the place of every line of a file that is not empty, and the line."""
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            yield f"{name}, line {number}", line
