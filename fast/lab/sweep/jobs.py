"""Does jobs: a method answers problems, and is measured on some of them.

A job becomes rows, one per problem. This file says how a job is done, and has the engines, which do
many: in this process, in several processes, or (`cluster`) on a cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import groupby, islice
from multiprocessing import get_context
from statistics import fmean
from time import perf_counter
from traceback import format_exc
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.backends import Answer, Backend, FastBackend, Request
from kvlab.fast.lab.evaluate.tasks import Own, Question, Rated, find_task, rates_texts
from kvlab.fast.lab.points import ORACLE, RefusalError, most_entries, reason, tokens_after
from kvlab.fast.lab.sweep import kept
from kvlab.fast.lab.sweep.kept import backend_of, once
from kvlab.fast.lab.sweep.plan import Job
from kvlab.reference import methods
from kvlab.reference.generators import seeded
from kvlab.reference.policy import Policy
from kvlab.reference.processes import process_pool, threads_of_processes


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found on one problem: a row of the results, which has a column for every field.

    Who fills which columns, of `_solve` and `_rate` a job runs one:

    - `do_job`: all up to ``refusal``.
    - `_solve`, where the method writes: ``solved``, ``answer_correct``, ``tokens``,
      ``after_eviction``, ``seconds_per_token`` and ``written``.
    - `_rate`, where a text or a draft is rated: ``solved``, ``loss``, ``tokens``,
      ``after_eviction``, ``seconds_per_token``, ``entries`` and ``nbytes``; of drafts also
      ``accepted`` and ``until_rejected``.
    - `_measure`, after either on the job's first problems: all from ``output_error`` to
      ``mean_nbytes``, but for what `_rate` has filled.

    None is what does not apply; new columns have this default, and no default ever changes.
    """

    job: str
    model: str
    task: str
    seed: int
    method: str
    budget: int | None
    problem: int
    prompt_tokens: int | None = None
    refusal: str | None = None
    solved: bool | None = None
    answer_correct: bool | None = None
    loss: float | None = None
    """Of the rated tokens, mean in nats."""
    accepted: float | None = None
    """Of a draft's tokens that the task counts, the share that the full cache accepts."""
    until_rejected: int | None = None
    """Those before the first that it rejects."""
    tokens: int | None = None
    """Tokens that were written or rated."""
    after_eviction: int | None = None
    """How many of them come after an eviction."""
    output_error: float | None = None
    """From here on as in `kvlab.reference.measure.Measurement`: means, most bytes, last bits."""
    kl: float | None = None
    agreement: float | None = None
    entries: float | None = None
    nbytes: float | None = None
    average_bits: float | None = None
    steps: int | None = None
    """Over which error, KL, agreement and ``mean_nbytes`` are means; the first feeds no token."""
    steps_after_eviction: int | None = None
    mean_nbytes: float | None = None
    seconds_per_token: float | None = None
    written: str | None = None
    """The answer, if the problem is one's own."""


MEASURED = ("output_error", "kl", "agreement", "entries", "nbytes", "average_bits")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why a job was given up; the job counts as missing, and the next run tries it again."""

    reason: str
    trace: str = ""


Done = tuple[Job, list[Result] | Failure]

Engine = Callable[[Iterable[Job]], Iterator[Done]]
"""Takes jobs when it gets to them, and yields each once it is done; closing it stops what runs."""


def lasts(outcome: list[Result] | Failure) -> bool:
    """Say whether what became of a job is kept: a failure is not, so the job is tried again."""
    return not isinstance(outcome, Failure)


def attempt(job: Job) -> list[Result] | Failure:
    """Do a job; an error becomes a `Failure`, so that the other jobs go on."""
    try:
        return do_job(job)
    except Exception as error:
        return Failure(reason(error)["refusal"], format_exc())


def do_job(job: Job) -> list[Result]:
    """Do a job; the same job gives the same results, except for the time that it took.

    What draws from the generators that the process shares is given the job's seed.

    A method that a problem's length rules out is refused on this problem, and one that turns out to
    be unable on all of the job's. Any other error is an error of the job, and no result. ValueError
    if methods from outside were changed meanwhile.
    """
    if job.outside and job.outside != methods.discover():
        raise ValueError(f"{job.method} was changed while the sweep ran; run the sweep again")
    questions = _questions(job)
    refusals = {each.number: _refusal(job, each) for each in questions}
    fitting = [each for each in questions if refusals[each.number] is None]
    figures: dict[int, Figures] = {}
    try:
        with seeded(job.draw_seed):
            figures = _figures(job, fitting) if fitting else {}
    except RefusalError as error:
        refusals |= {each.number: str(error) for each in fitting}
    about = {name: getattr(job, name) for name in ("model", "task", "seed", "method", "budget")}
    return [
        Result(
            job=job.id,
            problem=each.number,
            prompt_tokens=len(each.prompt),
            refusal=refusals[each.number],
            **about,
            **figures.get(each.number, {}),
        )
        for each in questions
    ]


def _figures(job: Job, questions: Sequence[Question]) -> dict[int, Figures]:
    """Return what is found on each question, by number: all are done, and some measured, too.

    A job of drafts rates what the full cache wrote, a task of ratings its own texts; in all others
    the method writes.
    """
    solve = _rate if job.rates else _solve
    found = {each.number: row for each, row in zip(questions, solve(job, questions), strict=True)}
    measured = [each for each in questions if each.number < job.first + job.measured]
    for question, row in zip(measured, _measure(job, measured) if measured else (), strict=True):
        found[question.number] = row | found[question.number]
    return found


def _refusal(job: Job, question: Question) -> str | None:
    """Say why a method cannot take a prompt, without running the method."""
    # In blocks the last token alone is only predicted; else a question may come later.
    given = question.shared or len(question.prompt)
    read = len(question) - 1 if _feed(job) == "blocks" else given
    try:
        _policy(job, [question]).check(read)
    except ValueError as error:
        return str(error)
    return None


def _policy(job: Job, questions: Sequence[Question]) -> Policy:
    """Return the job's policy; the oracle's knows when each question needs a token next."""
    if job.method != ORACLE:
        return methods.get(job.seeded, job.budget)
    from kvlab.fast.lab.evaluate.oracle import oracle_policy

    task = find_task(job.task)
    assert job.budget is not None and task.recent is not None
    return oracle_policy([task.next_use(q.problem) for q in questions], job.budget, task.recent)


def _solve(job: Job, questions: Sequence[Question]) -> list[Figures]:
    """Let the method write answers, and grade them; what this fills is in `Result`."""
    policy, backend, task = _policy(job, questions), backend_of(job), find_task(job.task)
    written, seconds = _write(backend, policy, questions, job.to_first_error, job.block_size)
    found = []
    for question, (tokens, first) in zip(questions, written, strict=True):
        answer = backend.decode(tokens)
        outcome = task.grade(question.problem, answer)
        if isinstance(task, Own):
            tokens = task.graded(question.problem, tokens, backend.decode)
        known = outcome.solved or not job.to_first_error
        found.append(
            {
                "solved": outcome.solved,
                "answer_correct": outcome.answer_correct if known else None,
                "tokens": len(tokens) if known else None,
                "after_eviction": tokens_after(first, len(question.prompt), len(tokens)),
                "seconds_per_token": seconds,
                "written": answer if isinstance(task, Own) else None,
            }
        )
    return found


def _rate(job: Job, questions: Sequence[Question]) -> list[Figures]:
    """Ask how likely the method finds texts, or the drafts in their place; see `Result`."""
    from kvlab.fast.lab.evaluate.likelihood import Passage, likelihoods, rate
    from kvlab.fast.methods import port

    task, backend = find_task(job.task), backend_of(job)
    assert isinstance(backend, FastBackend)
    passages = [Passage(each.prompt, each.solution) for each in questions]
    started = perf_counter()
    how: Any = {"block_size": job.block_size, "feed": _feed(job), "batch_size": len(passages)}
    if job.drafts:
        # `rate` takes a method by name, which the oracle, which may draft, does not have.
        policy, budgets = port(_policy(job, questions)), [None] * len(passages)
        found = likelihoods(backend.model, lambda _: policy, passages, budgets, **how)
    else:
        found = rate(backend.model, job.seeded, job.budget, passages, **how)
    took = (perf_counter() - started) / sum(len(each.rated) for each in passages)
    return [
        {
            "solved": _solved(job, question, each.greedy),
            **(_accepted(each.greedy[task.counts(len(each.greedy))]) if job.drafts else {}),
            "loss": -float(each.logprobs.mean()),
            "tokens": len(each.logprobs),
            "after_eviction": each.after_eviction,
            "seconds_per_token": took,
            "entries": float(each.entries),
            "nbytes": float(each.nbytes),
        }
        for question, each in zip(questions, found, strict=True)
    ]


def _feed(job: Job) -> str:
    """Return how tokens after the prompt are fed: a draft is written, whatever the task says."""
    task = find_task(job.task)
    return task.feed if isinstance(task, Rated) and not job.drafts else "steps"


def _solved(job: Job, question: Question, greedy: np.ndarray) -> bool | None:
    """Say whether a method would write what is rated, and this is right; None if nothing is asked.

    ``greedy`` marks the tokens that it would write. A task's own text is right. A draft is what the
    full cache wrote in place of the solution, which may be wrong: it is graded, once per method.
    """
    task = find_task(job.task)
    if not task.one_answer:
        return None
    if not isinstance(task, Rated):
        draft = backend_of(job).decode(question.solution)
        if not task.grade(question.problem, draft).solved:
            return False
    return bool(greedy[question.asked or slice(None)].all())


def _accepted(drafted: np.ndarray) -> Figures:
    """Count a draft's tokens that would be accepted; ``drafted`` marks those of the method."""
    until = int(np.logical_and.accumulate(drafted).sum())
    return {"accepted": float(drafted.mean()), "until_rejected": until}


def _write(
    backend: Backend,
    policy: Policy,
    questions: Sequence[Question],
    to_first_error: bool = False,
    block_size: int | None = None,
) -> tuple[list[Answer], float]:
    """Write an answer to every question, cut at its limit; return the seconds per token, too.

    Questions about one text are written together; the seconds are a mean over questions.
    """
    limit, (stop, *others) = max(q.limit for q in questions), {q.stop for q in questions}
    cut, seconds = [], []
    for beginning, group in groupby(questions, key=lambda each: each.prompt[: each.shared]):
        some = list(group)
        request = Request(
            prompts=[each.prompt[each.shared :] for each in some],
            limit=limit,
            stop=None if others else stop,  # a stop of one might be within another's answer
            solutions=[each.solution for each in some] if to_first_error else None,
            block_size=block_size,
            text=beginning,
        )
        started = perf_counter()
        written = backend.write(policy, request)
        took = (perf_counter() - started) / sum(len(each.tokens) for each in written)
        cut += [
            Answer(tokens[: each.limit], first)
            for (tokens, first), each in zip(written, some, strict=True)
        ]
        seconds += [took] * len(some)
    return cut, fmean(seconds)


def _measure(job: Job, questions: Sequence[Question]) -> list[Figures]:
    """Compare steps of the method with the full cache's, over its answers; see `Result`."""
    answers = _full_answers(job)
    tokens, logits = zip(*(answers[each.number] for each in questions), strict=True)
    prompts = [each.prompt for each in questions]
    found = backend_of(job).measure(_policy(job, questions), prompts, tokens, logits)
    return [
        {
            "output_error": float(measured.output_error.mean()),
            "kl": float(measured.kl.mean()),
            "agreement": float(measured.agreement.mean()),
            "entries": most_entries(measured.entries[None]),
            "nbytes": float(measured.nbytes.max()),
            "mean_nbytes": float(measured.nbytes.mean()),
            "average_bits": float(measured.average_bits[-1]),
            "steps": len(measured.kl),
            "steps_after_eviction": int(measured.after_eviction.sum()),
        }
        for measured, _ in found
    ]


# --- what jobs ask, once for all methods ----------------------------------------------------------


def _key(job: Job, *more: Any) -> tuple[Any, ...]:
    """Return what the questions and the full cache's answers of a job depend on, and ``more``.

    Questions depend on ``count`` and ``drafts``, too. Answers do not: they are to the first
    ``measured`` questions, which are the same however many are drawn, and drafts forbid
    ``measured`` (`Part` in design.py). Device and number format are those of the plan: what a
    process keeps is of one plan.
    """
    return (job.fingerprint, job.backend, job.task, job.text, job.seed, job.first, *more)


def _questions(job: Job) -> list[Question]:
    """Return the job's questions; of drafts with the full cache's answers as solutions."""
    task, backend = find_task(job.task), backend_of(job)

    def draw() -> list[Question]:
        asked = backend.tokenizer, backend.encode, job.first + job.count, job.seed
        questions = task.questions(*asked)[job.first :]
        return _with_full_answers(job, questions) if job.drafts else questions

    return once("questions", _key(job, job.count, job.drafts), draw)


def _with_full_answers(job: Job, questions: Sequence[Question]) -> list[Question]:
    """Put what the full cache writes in the place of each solution: methods then draft this."""
    backend, most = backend_of(job), max(len(each.solution) for each in questions)
    assert isinstance(backend, FastBackend)
    rated = rates_texts(job.task)
    request = Request(
        prompts=[each.prompt for each in questions],
        limit=most if rated else max(each.limit for each in questions),
        stop=backend.model.generation_config.eos_token_id if rated else questions[0].stop,
    )
    written = backend.write(methods.get("full"), request)
    return [replace(each, solution=own) for each, (own, _) in zip(questions, written, strict=True)]


def _full_answers(job: Job) -> dict[int, tuple[list[int], np.ndarray]]:
    """Return what the full cache answers to what is measured, and its logits, by number."""
    questions = _questions(job)[: job.measured]

    def answer() -> dict[int, tuple[list[int], np.ndarray]]:
        backend, full = backend_of(job), methods.get("full")
        answers = [list(each.solution) for each in questions]
        if not rates_texts(job.task):
            answers = [tokens for tokens, _ in _write(backend, full, questions)[0]]
        measured = backend.measure(full, [each.prompt for each in questions], answers)
        return {
            question.number: (answer, logits)
            for question, answer, (_, logits) in zip(questions, answers, measured, strict=True)
        }

    return once("answers", _key(job, job.measured), answer)


# --- engines -------------------------------------------------------------------------------------


def in_this_process(jobs: Iterable[Job], loaded: tuple[Any, Any] = (None, None)) -> Iterator[Done]:
    """Do one job after the other, see `Engine`; ``loaded`` is a backend behind its `place_of`."""
    kept.start(*loaded)
    try:
        for job in jobs:
            yield job, attempt(job)
    finally:
        kept.start()


def _count_off(started: Any) -> None:
    with started.get_lock():
        kept.number, started.value = started.value, started.value + 1


def in_processes(jobs: Iterable[Job], workers: int) -> Iterator[Done]:
    """Do jobs in processes of one thread, each with a model and device of its own; see `Engine`.

    If one is killed, what all were doing has failed, and `run_all` calls the engine anew.
    """
    context, jobs = get_context("spawn"), iter(jobs)
    options: Any = {"initializer": _count_off, "initargs": (context.Value("i"),)}
    with threads_of_processes(1), process_pool(workers, mp_context=context, **options) as submit:
        running: dict[Future, Job] = {}
        while True:
            try:
                for job in islice(jobs, workers - len(running)):
                    running[submit(attempt, job)] = job
            except BrokenProcessPool:
                # The job just taken is dropped: without a row, the loop hands it out again.
                jobs = iter(())
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    found = future.result()
                except BrokenProcessPool:
                    found = Failure("a process was killed, perhaps because memory was full")
                yield running.pop(future), found
