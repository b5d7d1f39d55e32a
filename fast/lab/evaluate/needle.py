"""Needle in a haystack over depths and lengths, under methods and budgets (CAOTE, Fig. 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from kvlab.fast import methods
from kvlab.fast.lab.drawing import Picture, canvas, finish
from kvlab.fast.lab.evaluate.likelihood import Passage, Reading, likelihoods
from kvlab.fast.lab.evaluate.pairs import Measure
from kvlab.fast.lab.evaluate.statistics import Interval, wilson
from kvlab.fast.lab.generation import token_ids
from kvlab.fast.lab.points import HeldRow, Told, marked_budget, measure_points, points
from kvlab.fast.lab.tables import Column
from kvlab.fast.lab.terminal import Report
from kvlab.reference.checks import check_at_least
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import needle as task
from kvlab.reference.tasks import reasoning


@dataclass(frozen=True)
class Haystack(Passage):
    """A passage in which needles are hidden; its rated tokens hold the answers."""

    needles: Sequence[tuple[int, slice]]
    """Index of each needle's depth in `Grid.depths`, and the place of its answer."""
    length: int
    """Index of the haystack's length in `Grid.lengths`."""


@dataclass(frozen=True)
class Grid:
    """Haystacks of several lengths, with needles at several depths."""

    lengths: tuple[int, ...]
    """Tokens."""
    depths: tuple[float, ...]
    """Share of the text before the needle, 0 to 1."""
    haystacks: tuple[Haystack, ...]

    def count(self, found: Sequence[Sequence[bool]] | None = None) -> np.ndarray:
        """Return the needles by depth and length: of each haystack those found, or all."""
        counts = np.zeros((len(self.depths), len(self.lengths)), dtype=int)
        for number, haystack in enumerate(self.haystacks):
            for needle, (depth, _) in enumerate(haystack.needles):
                counts[depth, haystack.length] += found is None or found[number][needle]
        return counts


@dataclass(frozen=True, kw_only=True)
class SearchedRow(HeldRow):
    """What one method at one budget found."""

    accuracy: float | None = None
    """Share of needles found: the answer is what the model writes greedily, token by token."""
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    found: list[list[int]] | None = None
    """Needles found, by depth and length."""
    missed: tuple[float, ...] = ()
    """Share of the needles of each haystack that were not found."""


@dataclass(frozen=True)
class Search:
    """What `search_needles` found."""

    reading: Reading
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    hidden: list[list[int]]
    """Needles, by depth and length."""
    rows: tuple[SearchedRow, ...]


def search_needles(
    model: Any,
    grid: Grid,
    reading: Reading,
    report: Report = lambda done, total, what: None,
    tell: Callable[[SearchedRow], object] = lambda row: None,
) -> Search:
    """Look for every needle under every method at every budget.

    Args:
        model: a decoder of transformers.
        grid: haystacks.
        reading: methods, budgets, and how haystacks are read. A budget in percent is a share of
            each haystack.
        report: is called with (haystacks done, haystacks in all, the method).
        tell: is called with each row as soon as it is there.

    Raises:
        ValueError: if no method could run.
    """
    hidden, sizes = grid.count(), [len(each) for each in grid.haystacks]

    def measure(method: str, budget: str | None, told: Told) -> SearchedRow:
        entries = [None if budget is None else budget_entries(budget, n) for n in sizes]
        policy_at = partial(methods.get, method)
        rated = likelihoods(model, policy_at, grid.haystacks, entries, *reading.how, told)
        found = [
            [bool(each.greedy[place].all()) for _, place in haystack.needles]
            for haystack, each in zip(grid.haystacks, rated, strict=True)
        ]
        counts = grid.count(found)
        right, trials = int(counts.sum()), int(hidden.sum())
        low, high = wilson(right, trials)
        return SearchedRow(
            method=method,
            budget=budget,
            holds_budget=all(
                most is None or each.entries <= most
                for each, most in zip(rated, entries, strict=True)
            ),
            accuracy=right / trials,
            accuracy_low=low,
            accuracy_high=high,
            found=counts.tolist(),
            missed=tuple(1 - sum(own) / len(own) for own in found),
        )

    asked = points(reading.methods, reading.budgets)
    rows = measure_points(asked, len(sizes), measure, SearchedRow, report, tell)
    return Search(reading, grid.lengths, grid.depths, hidden.tolist(), rows)


def problem_haystacks(tokenizer: Any, depths: Sequence[float], trials: int, seed: int = 0) -> Grid:
    """Hide nothing: every definition in the embedded model's problems is a needle.

    Args:
        tokenizer: tokenizer of the embedded model.
        depths: 0 is the first definition, 1 the last; each needle counts at the nearest depth.
        trials: problems of each length.
        seed: seed of the problems.

    Raises:
        ValueError: if there is no depth, a depth is not allowed, or ``trials`` is below 1.
    """
    check_grid(depths, trials)
    lengths, haystacks = [], []
    for number, variables in enumerate(reasoning.HELD_OUT_VARIABLES):
        for problem in reasoning.held_out(trials, seed, variables):
            places = task.steps(problem)
            last = len(places) - 1
            nearest = [int(np.abs(np.array(depths) - k / last).argmin()) for k in range(last + 1)]
            needles = list(zip(nearest, places, strict=True))
            prompt, solution = (token_ids(tokenizer, x) for x in (problem.prompt, problem.solution))
            haystacks.append(Haystack(prompt, solution, needles, number))
        lengths.append(len(haystacks[-1]))
    return Grid(tuple(lengths), tuple(depths), tuple(haystacks))


def text_haystacks(
    tokenizer: Any,
    hay: str,
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    seed: int = 0,
    chat: bool = False,
) -> Grid:
    """Hide secret numbers in a text.

    Args:
        tokenizer: tokenizer of the model.
        hay: the text; a text longer than needed is cut, each time at another place.
        lengths: tokens of the whole prompt, question included, at most.
        depths: share of the text before the needle.
        trials: needles at each depth in each length.
        seed: seed of cities, numbers and cuts.
        chat: apply the tokenizer's chat template.

    Raises:
        ValueError: if a number is not allowed, a length leaves no room for a text, or the text is
            too short.
    """
    check_grid(depths, trials)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths = {list(lengths)} must be positive")
    straw = token_ids(tokenizer, hay)
    if len(straw) < max(lengths):
        raise ValueError(f"the text has {len(straw)} tokens, lengths asks for {max(lengths)}")
    haystacks = []
    for number, length in enumerate(lengths):
        for depth in range(len(depths)):
            for trial in range(trials):
                rng = np.random.default_rng([seed, number, depth, trial])
                hidden = task.draw(rng)
                start = int(rng.integers(len(straw) - length + 1))
                cut = tokenizer.decode(straw[start : start + length], skip_special_tokens=True)
                prompt = _prompt_of(tokenizer, cut, hidden, depths[depth], length, chat)
                answer = _answer_of(tokenizer, prompt, hidden.answer, chat)
                needles = [(depth, slice(0, len(answer)))]
                ids = _ids(tokenizer, prompt, chat)
                haystacks.append(Haystack(ids, answer, needles, number))
    return Grid(tuple(lengths), tuple(depths), tuple(haystacks))


def check_grid(depths: Sequence[float], trials: int) -> None:
    """Raise ValueError if depths or trials are such that no needle can be hidden."""
    if not depths:
        raise ValueError("depths must name at least one")
    if wrong := [depth for depth in depths if not 0 <= depth <= 1]:
        raise ValueError(f"depth = {100 * wrong[0]:g} % must be between 0 and 100 %")
    check_at_least(1, trials=trials)


def _prompt_of(
    tokenizer: Any, hay: str, hidden: task.Needle, depth: float, length: int, chat: bool
) -> str:
    """Shorten the hay until everything fits."""
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
    """Return the answer's ids as they follow the prompt."""
    before, whole = _ids(tokenizer, prompt, chat), _ids(tokenizer, prompt + answer, chat)
    if whole[: len(before)] == before:
        return whole[len(before) :]
    return tokenizer(answer, add_special_tokens=False)["input_ids"]


def columns(grid: Grid) -> tuple[Column, ...]:
    """Return the columns of the rows: shares over all needles, and by length."""
    hidden = grid.count().sum(axis=0)

    def share(row: SearchedRow, number: int) -> float | None:
        return None if row.found is None else sum(d[number] for d in row.found) / hidden[number]

    lengths = [
        Column(str(length), partial(share, number=number), ".2f", width=7)
        for number, length in enumerate(grid.lengths)
    ]
    return (*COLUMNS, *lengths)


COLUMNS = (
    Column("method"),
    Column("budget", marked_budget),
    Column("found", lambda row: _share(row), width=18),
)


def _share(row: SearchedRow) -> str | None:
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return None
    return Interval(row.accuracy, row.accuracy_low, row.accuracy_high).written(2)


def measure_of(found: Search) -> Measure:
    """Return by what `paired_tests` compares rows: needles found, or if a haystack has several,
    whose answers depend on one cache, the share that was missed of each haystack.
    """
    needles = sum(map(sum, found.hidden))
    if all(len(row.missed) == needles for row in found.rows if row.refusal is None):
        return Measure("found", lambda row: tuple(share == 0 for share in row.missed), sign=1)
    return Measure("share missed", lambda row: row.missed)


def title(grid: Grid) -> str:
    """Say what is hidden."""
    return (
        f"{grid.count().sum()} needles: share found, with 95 % interval; then by length in tokens"
    )


def heat_map(found: Search) -> Picture:
    """Draw the share of needles found over depth and length, one panel per row."""
    rows = [row for row in found.rows if row.found is not None]
    across = min(3, len(rows))
    down = -(-len(rows) // across)
    figure, panels = canvas(across, down, 9, 0.6 + 2.4 * down, sharex=True, sharey=True)
    drawn = [_panel(axes, found, row) for axes, row in zip(panels, rows, strict=False)]
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("depth of the needle, %", fontsize=9)
    bar = figure.colorbar(drawn[-1], ax=panels, shrink=0.7, label="share found")
    bar.outline.set_visible(False)  # type: ignore[attr-defined]
    return finish(figure, "Share of needles found over depth and length, per method.")


def _panel(axes: Axes, found: Search, row: SearchedRow) -> Any:
    hidden = np.array(found.hidden, dtype=float)
    share = np.array(row.found) / np.where(hidden > 0, hidden, np.nan)
    mesh = axes.pcolormesh(share, vmin=0, vmax=1, cmap="viridis", edgecolors="white", linewidth=0.5)
    axes.set_xticks(np.arange(len(found.lengths)) + 0.5, [f"{n}" for n in found.lengths])
    axes.set_yticks(np.arange(len(found.depths)) + 0.5, [f"{100 * d:.0f}" for d in found.depths])
    axes.tick_params(labelsize=7)
    axes.set_ylim(len(found.depths), 0)
    budget = "" if row.budget is None else f", {row.budget}"
    axes.set_title(f"{row.method}{budget}: {row.accuracy:.2f}", fontsize=8)
    return mesh
