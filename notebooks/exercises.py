"""Exercises of the notebooks: ``solutions/`` has their hints, solutions and checks."""

import re
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any

Exercise = tuple[list[str], str, str]
"""Hints, a solution, and a check that computes with the names of the notebook."""
DEFINED = r"^(?:def |class )?(\w+)(?= =|\()"
"""The names that a solution defines."""


def read(notebook: str) -> dict[int, Exercise]:
    """Return the exercises of a notebook by number; a cell has hints, a solution and a check."""
    path = Path(__file__).parent / "solutions" / f"{notebook}.py"
    text = path.read_text("utf-8") if path.exists() else ""
    found: dict[int, Exercise] = {}
    for number, cell in enumerate(re.split(r"^# %%.*\n", text, flags=re.MULTILINE)[1:], start=1):
        answer, check = cell.split("\n# check\n")
        lines = answer.split("\n")
        hints = list(takewhile(lambda line: line.startswith("#"), lines))
        told = " ".join(hints).replace(" #  ", "").split("# - ")[1:]
        found[number] = [hint.strip() for hint in told], "\n".join(lines[len(hints) :]), check
    return found


def predicted(notebook: Any) -> list[Any]:
    """Return the cells whose outputs a reader predicts first: the code after a text that asks."""
    asked, found = False, []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            asked = "redict first" in " ".join(cell.source.split())
        elif asked and "exercise" not in cell.metadata.get("tags", []):
            found.append(cell)
    return found


def _is_empty(answer: Any) -> bool:
    def stub() -> None: ...

    if isinstance(answer, type):
        own = (each for name, each in vars(answer).items() if not name.startswith("__"))
        return any(map(_is_empty, own))
    code = getattr(answer, "__code__", None)
    return answer is ... or (code is not None and code.co_code == stub.__code__.co_code)


class Exercises:
    """The exercises of a notebook: ``attempt(1)`` checks what the notebook has for the first."""

    def __init__(self, notebook: str, names: dict[str, Any]) -> None:
        self.exercises, self.names, self.tried = read(notebook), names, Counter[int]()

    def __call__(self, number: int) -> None:
        """Say whether an answer is right; if not, what fails, and one hint more at each attempt."""
        hints, solution, check = self.exercises[number]
        if any(_is_empty(self.names.get(name)) for name in re.findall(DEFINED, solution, re.M)):
            print(f"Exercise {number}: still empty.")
            return
        try:
            exec(check, dict(self.names))
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            told = "\n".join(str(error).split("\n\n")[:2])  # of many vectors, the first that fails
            print(f"Exercise {number}: not yet. {kind}{told}"[:400].strip())
            self.tried[number] = min(self.tried[number] + 1, len(hints))
            for place, hint in enumerate(hints[: self.tried[number]], start=1):
                print(f"  Hint {place} of {len(hints)}: {hint}")
        else:
            print(f"Exercise {number}: right.")
