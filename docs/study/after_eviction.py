"""How much of what stored sweeps rated came after an eviction, of methods that decide at once.

    PYTHONPATH=docs python -m study.after_eviction

New results have a count of their own. Those of older sweeps have the lengths of their texts, from
which this follows where a method decides after every block and every token that follows; methods
that decide later have less.
"""

from collections.abc import Iterator
from typing import Any

from kvlab.fast.lab.evaluate.tasks import Rated, find_task
from kvlab.fast.lab.points import After, tokens_after
from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.lab.tables import Column, tabulate
from study.stored import RESULTS


def first_eviction(budget: int, prompt: int, tokens: int, block: int) -> int | None:
    """Return the tokens read until the first eviction, after a block or one of the next tokens."""
    ends = [*range(block, prompt, block), *range(prompt, tokens + 1)]
    return next((end for end in ends if end > budget), None)


def rated(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each task and budget of a sweep whose tokens were rated."""
    from kvlab.fast.lab.sweep.run import read_stored  # needs pyarrow

    stored = read_stored(RESULTS / name)
    jobs = {job.id: job for job in stored.plan.jobs()}
    counts: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in stored.rows:
        job = jobs[row.job]
        if job.budget is not None and row.tokens and (job.drafts or _rates(job)):
            prompt, tokens = row.prompt_tokens or 0, row.tokens
            read = prompt + tokens - 1
            given = read if not job.drafts and _rates(job) == "blocks" else prompt
            first = first_eviction(job.budget, given, read, job.block_size or given)
            counts.setdefault((job.task, job.budget), []).append(
                (tokens_after(first, prompt, tokens), tokens)
            )
    for (task, budget), found in counts.items():
        count, of = map(sum, zip(*found, strict=True))
        yield {"sweep": name, "task": task, "budget": budget, "after": After(count, of, "tokens")}


def _rates(job: Job) -> str:
    task = find_task(job.task)
    return task.feed if isinstance(task, Rated) else ""


if __name__ == "__main__":
    rows = [row for path in sorted(RESULTS.glob("*/plan.json")) for row in rated(path.parent.name)]
    shown = Column("after eviction", "after")
    print(tabulate(rows, (*map(Column, ("sweep", "task", "budget")), shown), words=2))
