"""Needle in a haystack over depths and lengths, under methods and budgets (CAOTE, Fig. 2)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.fast import methods
from kvlab.fast.lab.evaluate.compare import batched, takes_budget
from kvlab.fast.lab.evaluate.likelihood import likelihoods
from kvlab.fast.lab.evaluate.perplexity import encoded
from kvlab.fast.lab.evaluate.statistics import wilson
from kvlab.fast.lab.pages import svg
from kvlab.reference import methods as registry
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import needle as task
from kvlab.reference.tasks import reasoning


@dataclass(frozen=True)
class Haystack:
    """A text in which needles are hidden, as token ids."""

    prompt: Sequence[int]
    written: Sequence[int]
    """What follows the prompt; it holds the answers."""
    needles: Sequence[tuple[int, slice]]
    """Number of the depth of each needle, and where its answer is in ``written``."""
    length: int
    """Number of the length."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.written)


@dataclass(frozen=True)
class Grid:
    """Haystacks of several lengths, needles at several depths."""

    lengths: tuple[int, ...]
    """Tokens."""
    depths: tuple[float, ...]
    """Share of the text before the needle, 0 to 1."""
    haystacks: tuple[Haystack, ...]


@dataclass(frozen=True)
class Settings:
    """How to search."""

    specs: tuple[str, ...]
    """Methods in registry syntax."""
    budgets: tuple[str, ...]
    """Entries, or percent of each haystack."""
    block_size: int | None = 128
    batch_size: int = 1


@dataclass(frozen=True)
class Row:
    """One method at one budget."""

    method: str
    budget: str | None
    refusal: str | None = None
    """Why the method could not run; the figures below are then None."""
    accuracy: float | None = None
    """Share of needles found: the answer is what the model writes greedily, token by token."""
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    found: list[list[int]] | None = None
    """Needles found, by depth and length."""


@dataclass(frozen=True)
class Search:
    """What `search` found."""

    settings: Settings
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    hidden: list[list[int]]
    """Needles, by depth and length."""
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def search(
    model: Any,
    grid: Grid,
    settings: Settings,
    report: Callable[[int, int, str], None] | None = None,
) -> Search:
    """Look for every needle under every method at every budget.

    Args:
        model: a decoder of transformers.
        grid: haystacks.
        settings: how to search.
        report: called with (haystacks done, haystacks in all, the method).

    Raises:
        ValueError: if a method, a budget or a number is not allowed, or no method could run.
    """
    check(settings)
    hidden = np.zeros((len(grid.depths), len(grid.lengths)), dtype=int)
    for haystack in grid.haystacks:
        for depth, _ in haystack.needles:
            hidden[depth, haystack.length] += 1
    asked, rows = list(_pairs(settings)), []
    for number, (spec, budget) in enumerate(asked):

        def told(done: int, number: int = number, spec: str = spec) -> None:
            if report is not None:
                total = len(asked) * len(grid.haystacks)
                report(number * len(grid.haystacks) + done, total, spec)

        try:
            found = _found(model, spec, budget, grid, settings, told)
        except ValueError as error:
            rows.append(Row(spec, budget, str(error)))
        else:
            right, trials = int(found.sum()), int(hidden.sum())
            rows.append(
                Row(
                    spec, budget, None, right / trials, *wilson(right, trials), found=found.tolist()
                )
            )
    if all(row.refusal for row in rows):
        raise ValueError(f"no method could run; {rows[0].method}: {rows[0].refusal}")
    return Search(settings, grid.lengths, grid.depths, hidden.tolist(), tuple(rows))


def check(settings: Settings) -> None:
    """Raise ValueError on what is known to fail before a model is loaded."""
    for name in ("batch_size", "block_size"):
        count = getattr(settings, name)
        if count is not None and count < 1:
            raise ValueError(f"{name} = {count} must be at least 1")
    for text in settings.budgets:
        budget_entries(text, 100)
    list(_pairs(settings))


def _pairs(settings: Settings) -> Iterator[tuple[str, str | None]]:
    for spec in settings.specs:
        registry.parse(spec)
        if not takes_budget(spec):
            yield spec, None
        elif not settings.budgets:
            raise ValueError(f"{spec} needs a budget")
        else:
            yield from ((spec, budget) for budget in settings.budgets)


def _found(
    model: Any,
    spec: str,
    budget: str | None,
    grid: Grid,
    settings: Settings,
    told: Callable[[int], None],
) -> np.ndarray:
    """Count what is found, by depth and length; haystacks with one budget share a batch."""
    counts, done = np.zeros((len(grid.depths), len(grid.lengths)), dtype=int), 0
    groups: dict[int | None, list[Haystack]] = {}
    for haystack in grid.haystacks:
        entries = None if budget is None else budget_entries(budget, len(haystack))
        groups.setdefault(entries, []).append(haystack)
    for entries, haystacks in groups.items():
        policy = methods.get(spec, entries)
        for some in batched(haystacks, settings.batch_size):
            rated = likelihoods(
                model,
                policy,
                [haystack.prompt for haystack in some],
                [haystack.written for haystack in some],
                settings.block_size,
            )
            for haystack, likelihood in zip(some, rated, strict=True):
                for depth, place in haystack.needles:
                    counts[depth, haystack.length] += bool(likelihood.greedy[place].all())
            done += len(some)
            told(done)
    return counts


# --- haystacks -----------------------------------------------------------------------------------


def problems(tokenizer: Any, depths: Sequence[float], trials: int, seed: int = 0) -> Grid:
    """Hide nothing: every definition of the embedded model's problems is a needle.

    Args:
        tokenizer: of the embedded model.
        depths: 0 is the first definition, 1 the last; each counts at the nearest.
        trials: problems of each length.
        seed: of the problems.

    Raises:
        ValueError: if there is no depth or one is not allowed, or ``trials`` is below 1.
    """
    check_grid(depths, trials)
    lengths, haystacks = [], []
    for number, variables in enumerate(reasoning.HELD_OUT_VARIABLES):
        for problem in task.definitions(trials, variables, seed):
            places = task.steps(problem)
            last = len(places) - 1
            needles = [(task.nearest(k / last, depths), place) for k, place in enumerate(places)]
            prompt, solution = (encoded(tokenizer, x) for x in (problem.prompt, problem.solution))
            haystacks.append(Haystack(prompt, solution, needles, number))
        lengths.append(len(haystacks[-1]))
    return Grid(tuple(lengths), tuple(depths), tuple(haystacks))


def texts(
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
        tokenizer: of the model.
        hay: the text; it is cut, each time at another place, if it is longer than needed.
        lengths: tokens of the whole prompt, question included, at most.
        depths: share of the text before the needle.
        trials: needles at each depth in each length.
        seed: of cities, numbers and cuts.
        chat: apply the tokenizer's chat template.

    Raises:
        ValueError: if a number is not allowed, a length leaves no room for a text, or the text is
            too short.
    """
    check_grid(depths, trials)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths = {list(lengths)} must be positive")
    straw = encoded(tokenizer, hay)
    if len(straw) < max(lengths):
        raise ValueError(f"the text has {len(straw)} tokens, lengths asks for {max(lengths)}")
    haystacks = []
    for number, length in enumerate(lengths):
        for depth in range(len(depths)):
            for trial in range(trials):
                rng = np.random.default_rng([seed, number, depth, trial])
                hidden = task.secret_number(rng)
                start = int(rng.integers(len(straw) - length + 1))
                cut = tokenizer.decode(straw[start : start + length], skip_special_tokens=True)
                prompt = _prompt_of(tokenizer, cut, hidden, depths[depth], length, chat)
                answer = _answer_of(tokenizer, prompt, hidden.answer, chat)
                needles = [(depth, slice(0, len(answer)))]
                ids = _ids(tokenizer, prompt, chat)
                haystacks.append(Haystack(ids, answer, needles, number))
    return Grid(tuple(lengths), tuple(depths), tuple(haystacks))


def check_grid(depths: Sequence[float], trials: int) -> None:
    """Raise ValueError if no needle would be hidden, or none could be."""
    if not depths:
        raise ValueError("depths must name at least one")
    if wrong := [depth for depth in depths if not 0 <= depth <= 1]:
        raise ValueError(f"depth = {wrong[0]} must be between 0 and 1")
    if trials < 1:
        raise ValueError(f"trials = {trials} must be at least 1")


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
    """Return the request and how its answer begins."""
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


# --- the heat map --------------------------------------------------------------------------------


def heat_map(found: Search) -> str:
    """Draw the share of needles found over depth and length, one panel per row, as SVG."""
    rows = [row for row in found.rows if row.found is not None]
    across = min(3, len(rows))
    down = -(-len(rows) // across)
    figure = Figure(figsize=(9, 0.6 + 2.4 * down), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    drawn = None
    for axes, row in zip(panels, rows, strict=False):
        drawn = _panel(axes, found, row)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("depth of the needle, %", fontsize=9)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=list(panels), shrink=0.7, label="share found")
        bar.outline.set_visible(False)  # type: ignore[attr-defined]
    return svg(figure)


def _panel(axes: Axes, found: Search, row: Row) -> Any:
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
