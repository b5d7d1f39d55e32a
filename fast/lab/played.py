"""A program that a model runs under several methods: what they evicted, and what it then wrote."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Group
from rich.text import Text

from kvlab.reference.simulator.timeline import GONE, Run
from kvlab.reference.tasks.jumps import read_tokens

LAST = 2
"""Lines of what is written that are shown."""


def side_by_side(runs: Sequence[Run], styled: bool) -> Group:
    """Draw runs beside each other until the first answer turns wrong, and say why it does.

    What at least half of the heads have evicted by then is struck out; where nothing can be
    ``styled``, what was needed and lost stands between tildes.
    """
    failed = [run for run in runs if run.failure]
    end = min((run.failure["position"] for run in failed if run.failure), default=0)
    texts = [Text("\n").join(_lines(run, end or len(run.texts) - 1, styled)) for run in runs]
    reasons = [_reason(run, run.failure) for run in failed if run.failure]
    return Group(Columns(texts, padding=(0, 3)), *reasons[:1])


def _lines(run: Run, end: int, styled: bool) -> Iterator[Text]:
    """Draw a run up to the token at ``end``: the program, and the last lines that are written."""
    step = int(np.searchsorted(run.steps, end)) - 1
    gone = (run.stored(step) == GONE).mean(axis=(0, 1)) >= 0.5
    gone[run.steps[step] :] = False
    failure = run.failure or {"position": None, "lost": ()}
    last = ("✗", "bold red") if failure["position"] == end else ("✓", "bold green")
    lines, program = [Text()], 0
    for position, text in enumerate(read_tokens(run.texts[: end + 1])):
        program = len(lines) if position == run.prompt else program
        lines += [Text()] * text.startswith("\n")
        lines[-1].append(" " * text.startswith(" "))
        text, lost = text.strip(), position in failure["lost"]
        if position == end:
            lines[-1].append(f"{text} {last[0]}", last[1])
        elif text and (lost or (styled and gone[position])):
            struck = "bold red strike" if lost else "dim strike"
            lines[-1].append(text if styled else f"~{text}~", struck)
        else:
            lines[-1].append(text)
    hidden = slice(program, max(program, len(lines) - LAST))
    lines[hidden] = [Text("… (left out)")] * bool(lines[hidden])
    yield Text(run.method, "bold")
    yield from lines
    yield Text()


def _reason(run: Run, failure: Mapping[str, Any]) -> Text:
    """Say where a run turns wrong, which `Run.failure` knows."""
    texts, named, position = read_tokens(run.texts), [], failure["position"]
    right = read_tokens([*run.texts[:position], failure["expected"]])[-1]
    for at, much in zip(failure["lost"], failure["attention"], strict=True):
        begins = [each for each in texts[: at + 1] if each.startswith("\n")]
        line = f" in line {begins[-1].split()[-1]}" if begins else ""
        named.append(f"“{texts[at].strip()}”{line} ({much:.0%} of its attention)")
    why = f": there a head attends to {', '.join(named)}, and has lost that here" if named else ""
    said = f"Under {run.method} the model writes {texts[position].strip()}, which is wrong. The "
    return Text(f"{said}full cache writes {right.strip()}{why}.")
