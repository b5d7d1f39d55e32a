"""Methods recorded step by step on one text, and the page that plays what they keep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path

from markupsafe import Markup

from kvlab.fast.lab.points import Row, measure_points, points
from kvlab.fast.lab.reports import write_page
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.recorder import record_generation, record_replay, token_texts
from kvlab.reference.simulator.timeline import Run, Timeline, against, thinned, write
from kvlab.reference.simulator.trace import load_trace
from kvlab.reference.tasks import jumps, needle
from kvlab.reference.transformer import Transformer, end_of_text, load_tokenizer

PAGE = 2**18
"""Entries in the snapshots of all methods, by default."""

WORDS, NEEDLES = 120, 2
"""Words of the passage of `needle_source`, and numbers hidden in it; it asks for the first."""


@dataclass(frozen=True)
class Source:
    """A text to continue, or a trace, on which methods are recorded."""

    name: str
    record: Callable[..., Run]
    """Called with a policy and what `record_generation` and `record_replay` both take."""
    tokens: int | None = None
    """Tokens of a recorded text; None if the model writes one."""


@dataclass(frozen=True, kw_only=True)
class ViewedRow(Row):
    """What a method read and kept, and whether it solved the problem."""

    tokens_read: int | None = None
    entries: float | None = None
    """Entries per KV head after the last step, mean over layers and heads."""
    solved: bool | None = None
    holds_budget: bool | None = None


@dataclass(frozen=True)
class Viewed:
    """What `record_methods` found."""

    timeline: Timeline
    rows: tuple[ViewedRow, ...]


def record_methods(
    source: Source,
    specs: Sequence[str],
    budget: int | str,
    *,
    block_size: int | None = None,
    threshold: float = 0.01,
    most_values: int | None = None,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[ViewedRow], object] = lambda row: None,
) -> Viewed:
    """Record one method after the other.

    A method that cannot run is refused in its row, and ``tell`` is called with each row as soon as
    it is there. The budget is entries, or percent of what the full cache holds in the end. More
    ``most_values``, entries in the snapshots of a method, make a page finer, and larger; by default
    all methods share a number that makes it 3 MB at most.
    """
    check_at_least(0, threshold=threshold)
    check_at_least(1, most_values=most_values, block_size=block_size)
    most_values = most_values or PAGE // max(1, len(specs))
    options = {"block_size": block_size, "threshold": threshold}
    full = None if source.tokens else source.record(methods.get("full"), **options)
    entries = budget_entries(budget, full.read if full else source.tokens or 1)
    runs, wrong = [], set()

    def measure(spec: str, budget: int | None) -> ViewedRow:
        run = source.record(
            methods.get(spec, budget),
            budget=budget,
            progress=lambda done, total: progress(done, total, spec),
            **options,
        )
        run = against(run, full) if full else run
        if run.failure:
            wrong.add(run.step_before(run.failure["position"]))
        runs.append(thinned(run, most_values, wrong))
        kept = float(run.entries()[-1])
        found = {"tokens_read": run.read, "entries": kept, "solved": run.solved}
        held = budget is None or kept <= budget
        return ViewedRow(method=spec, budget=budget, holds_budget=held, **found)

    rows = measure_points(points(specs, [entries]), measure, ViewedRow, tell=tell)
    return Viewed(Timeline(source.name, threshold, tuple(runs)), rows)


def problem_source(number: int = 0, max_new_tokens: int = 192) -> Source:
    """Let an embedded model run a short held-out jump program, and grade what it writes."""
    problem = jumps.held_out(number + 1, size=jumps.SIZES[250])[number]
    return text_source(
        problem.prompt,
        embedded_directory("jumps"),
        max_new_tokens,
        lambda text: jumps.grade(problem, text).solution_correct,
    )


def needle_source(directory: Path, number: int = 0, max_new_tokens: int = 128) -> Source:
    """Let a model that reads English find a number at the beginning of a passage of the novel."""
    problem = needle.haystacks(NEEDLES * (number + 1), 0, WORDS, NEEDLES)[NEEDLES * number]
    tokens = len(load_tokenizer(directory).encode(problem.solution).ids)
    found = partial(needle.is_found, problem)
    return text_source(problem.prompt, directory, min(tokens, max_new_tokens), found)


def text_source(
    text: str,
    directory: Path,
    max_new_tokens: int = 192,
    solved: Callable[[str], bool] | None = None,
) -> Source:
    """Let a model in a directory, which the reference can read, continue a text.

    ``solved`` says whether what is written is right.
    """
    check_at_least(1, max_new_tokens=max_new_tokens)
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    given = {"prompt": text, "max_new_tokens": max_new_tokens, "stop": end_of_text(directory)}
    record = partial(record_generation, model, tokenizer, solved=solved, **given)
    return Source(directory.name, record)


def trace_source(path: Path, directory: Path | None = None) -> Source:
    """Ask methods about a recorded generation; ValueError if its tokens are not the tokenizer's.

    ``directory`` has a tokenizer, which gives the texts of the tokens; None: the embedded model's
    if the trace is of one, else token ids stand for texts.
    """
    recorded = load_trace(path)
    name = recorded.metadata.model
    if directory is None and name in EMBEDDED:
        directory = embedded_directory(name)
    ids = recorded.tokens.tolist()
    if directory is None:
        texts = [f"{token} " for token in ids]
    else:
        tokenizer = load_tokenizer(directory)
        if max(ids) >= (known := tokenizer.get_vocab_size()):
            raise ValueError(f"{directory} knows {known} tokens, {path} holds token {max(ids)}")
        texts = token_texts(tokenizer, ids)
    return Source(name, partial(record_replay, recorded, texts), len(ids))


def write_viewer(timeline: Timeline, path: Path) -> None:
    """Write a page that plays a timeline and needs no other file; an old one is replaced."""
    stored = write(timeline).replace("<", "\\u003c")  # it must not end the script
    said = dumps(methods.summaries(run.method for run in timeline.runs))
    write_page(path, "viewer.html.jinja", timeline=Markup(stored), said=Markup(said))
