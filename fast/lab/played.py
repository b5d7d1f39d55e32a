"""A program that a model runs under several methods: what they evicted, and what it then wrote."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from rich.text import Text

from kvlab.reference.simulator.timeline import GONE, Run
from kvlab.reference.tasks.jumps import read_tokens

LAST = 2
"""Lines of what is written that are shown."""


def side_by_side(runs: Sequence[Run], width: int, styled: bool) -> Iterator[Text]:
    """Draw runs beside each other until the first answer turns wrong, and say why it does.

    What at least half of the heads have evicted by then is struck out, or, where nothing can be
    ``styled``, between tildes.
    """
    end = min((run.failure["position"] for run in runs if run.failure), default=0)
    columns = [[*_lines(run, end or len(run.texts) - 1, styled)] for run in runs]
    each = max(len(line) for lines in columns for line in lines) + 3
    beside = max(1, (width + 2) // each)
    for first in range(0, len(columns), beside):
        some = columns[first : first + beside]
        for row in range(max(map(len, some))):
            parts = [lines[row] if row < len(lines) else Text() for lines in some]
            for part in parts[:-1]:
                part.pad_right(each - len(part))
            yield Text.assemble(" ", *parts)
    yield Text()
    for run in runs:
        if run.failure and run.failure["position"] == end:
            yield _reason(run, **run.failure)


def _lines(run: Run, end: int, styled: bool) -> Iterator[Text]:
    """Draw a run up to the token at ``end``: the program, and the last lines that are written."""
    step = int(np.searchsorted(run.steps, end)) - 1
    gone = (run.stored(step) == GONE).mean(axis=(0, 1)) >= 0.5
    failure = run.failure or {"position": None, "lost": ()}
    mark, colour = ("✗", "red") if failure["position"] == end else ("✓", "green")
    lines, program = [Text()], 0
    for position, text in enumerate(read_tokens(run.texts[: end + 1])):
        program = len(lines) if position == run.prompt else program
        if text.startswith("\n"):
            lines.append(Text())
        lines[-1].append(" " * text.startswith(" "))
        text, lost = text.strip(), position in failure["lost"]
        if position == end:
            lines[-1].append(f"{text} {mark}", f"bold {colour}")
        elif lost or (text and position < run.steps[step] and gone[position]):
            struck = "bold red strike" if lost else "dim strike"
            lines[-1].append(*((text, struck) if styled else (f"~{text}~",)))
        else:
            lines[-1].append(text)
    hidden = slice(program, max(program, len(lines) - LAST))
    if lines[hidden]:
        lines[hidden] = [Text("…")]
    yield Text(run.method, "bold")
    yield from lines if styled else (Text(re.sub("~( ?)~", r"\1", line.plain)) for line in lines)


def _reason(run: Run, position: int, expected: str, lost: Sequence[int]) -> Text:
    """Say where a run turns wrong."""
    texts = read_tokens(run.texts)
    right = read_tokens([*run.texts[:position], expected])[-1]
    begins = [[x for x in texts[: at + 1] if x.startswith("\n")][-1:] for at in lost]
    named = [
        f"“{texts[at].strip()}”" + "".join(f" in line {x.split()[-1]}" for x in line)
        for at, line in zip(lost, begins, strict=True)
    ]
    why = f", because it still attends to {', '.join(named)}" if lost else ""
    return Text(
        f"Under {run.method} the model writes {texts[position].strip()}, which is wrong. The full "
        f"cache writes {right.strip()}{why}."
    )
