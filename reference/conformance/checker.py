"""Runs an implementation on test vectors and drawn cases; looks for small cases that fail."""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from itertools import count, cycle
from math import inf
from time import monotonic
from typing import Any

from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance import events
from kvlab.reference.conformance.implementation import (
    FailedError,
    Functions,
    Implementation,
    LostError,
    NotTestedError,
)
from kvlab.reference.conformance.made import made_case
from kvlab.reference.conformance.plan import SIZES, SMALL
from kvlab.reference.conformance.planned import PUBLISHED, any_case, method_cases, sized_cases
from kvlab.reference.conformance.report import ABOUT_GROUPS, Outcome, Report, Status
from kvlab.reference.conformance.targets import STEPS, mistake_and_margin, operation_of
from kvlab.reference.conformance.vectors import Case, read
from kvlab.reference.conformance.whole_cache import first_calls
from kvlab.reference.streams import Source

SECONDS = 5.0
"""Time that is spent on making one failure small at most."""

ALL_SECONDS = 40.0
"""Time that is spent on making the failures of one check small."""

TRIALS = 300
"""Cases that are drawn at most until one fails, too."""

MOST = 64
"""Numbers of choices above this one, those of seeds, are not lowered one by one."""

REDRAWN = 5
"""How often other numbers are drawn for a lowered size: those are chosen last."""

LATE = "the time was up"
"""Why a case was not tested for which there was none left."""

CALLS = 11
"""Calls after which an error counts as permanent if all of them were wrong."""

EVERY_SIZE = ("small", *SIZES)

Progress = Callable[[int, int, str], None]
"""Is told the number of cases done, of all cases, and the current target."""

# --- which cases ---------------------------------------------------------------------------------


@cache
def published() -> tuple[Case, ...]:
    """Return the cases that come with the package."""
    return tuple(read())


@lru_cache(maxsize=64)
def made_on_the_spot(name: str) -> tuple[Case, ...]:
    """Return the cases of a method without published ones, made of its examples."""
    examples = methods.examples_of(name)
    return tuple(case for example in examples for case in method_cases(example, "small"))


def cases(method: "Asked" = None) -> tuple[Case, ...]:
    """Return the published cases, and cases made on the spot for methods that have none.

    If a target or method is given, nothing is made of other methods.
    """
    asked = (method,) if isinstance(method, str) else method or methods.names()
    names = {re.split("[.:]", each)[0] for each in asked}.difference(PUBLISHED)
    unpublished = [name for name in methods.names() if name in names]
    return (*published(), *(case for name in unpublished for case in made_on_the_spot(name)))


Names = Sequence[str]

Asked = str | Names | None
"""Targets, or methods whose steps are asked for; None: all."""


def belongs(target: str, method: Asked) -> bool:
    """Whether a target is asked for, or is a step of a method that is."""
    names = (method,) if isinstance(method, str) else method
    return names is None or not {target, target.rpartition(".")[0]}.isdisjoint(names)


# --- checking ------------------------------------------------------------------------------------


def check(
    method: Asked,
    implementation: Any,
    *,
    arrays: str = "numpy",
    device: str | None = None,
    precision: str = "float32",
    groups: Names | None = None,
    exclude: Names = (),
    minimise: bool = True,
    calls: int = 1,
    sizes: Iterable[str] = ("small",),
    seed: int = 0,
    within: float = inf,
    progress: Progress = lambda done, everything, target: None,
    others: Iterable[Implementation] = (),
) -> Report:
    """Check an implementation against the test vectors.

    Args:
        method: ``"attend"``, ``"h2o.score"``, ``"h2o"`` (all steps), several, or None for all.
        implementation: a function; functions by target or step (docs/conformance.md says what they
            are given); or any `Implementation`.
        arrays: module whose arrays the functions take: numpy, torch, cupy or jax.numpy.
        device: where the arrays are, as that module names it.
        precision: number format of vectors and tolerance: float32, float16 or bfloat16.
        groups: groups, or names of cases with ``*`` and ``?``, to run; None: all.
        exclude: groups, or names of cases, to leave out.
        minimise: whether to look for the smallest inputs on which a group fails.
        calls: how often each case is asked; every answer has to be right.
        sizes: ``small``: the vectors; ``kernel``, ``long``: cases that are drawn on the spot.
        seed: seed of the numbers of drawn cases.
        within: seconds after which no planned case begins; until then others are drawn, too.
        progress: is told the number of cases done, of all cases, and the current target.
        others: the same implementation in other processes, which answer other targets meanwhile.

    Raises:
        ValueError: if a target, group, case or precision is unknown.
        TypeError: if an implementation is no function, or asks for an input that does not exist.
    """
    under_test: Implementation = implementation
    if not (hasattr(implementation, "offers") and hasattr(implementation, "answer")):
        one = method if isinstance(method, str) else None
        under_test = Functions(_by_target(one, implementation), arrays, device, precision)

    def wanted(target: str) -> bool:
        named = any(fnmatchcase(target, x.split("/")[0]) or "/" not in x for x in groups or "*")
        return named and belongs(target, method) and under_test.offers(target)

    everything, sizes = list[Case](), tuple(dict.fromkeys(sizes))
    for size in sizes:
        check_choice(EVERY_SIZE, sizes=size)
        everything += cases(method) if size == "small" else sized_cases(size, seed, wanted)
    asked, missing = _asked(under_test, everything, method, sizes)
    chosen = _selected(asked, groups or "*", exclude, sizes)
    spend = ALL_SECONDS if minimise else 0.0
    late = monotonic() + within
    found = _run_cases((under_test, *others), chosen, spend, calls, progress, late)
    found = replace(found, no_cases=missing)
    if within == inf or groups:
        return found
    return replace(found, outcomes=(*found.outcomes, *_further(under_test, found, seed, late)))


def _further(under_test: Implementation, report: Report, seed: int, late: float) -> list[Outcome]:
    """Ask for drawn cases of the targets that are tested, in turns, until it is late."""
    tried = {x.case.target for x in report.outcomes if x.status == Status.PASSED}
    targets = sorted(each for each in tried if "whole_cache" not in each)
    turns = cycle(targets)
    outcomes = list[Outcome]()
    while targets and monotonic() < late:
        outcomes += fuzz(next(turns), under_test, seed + len(outcomes), 1).outcomes
    return outcomes


def _run_cases(
    workers: Sequence[Implementation],
    chosen: Sequence[Case],
    seconds: float,
    calls: int,
    progress: Progress,
    late: float,
) -> Report:
    targets = dict.fromkeys(case.target for case in chosen)
    offered = [target for target in targets if workers[0].offers(target)]
    asked = [case for case in chosen if case.target in offered]
    found, failed = dict[str, Outcome](), set[tuple[str, str]]()
    batches = defaultdict[Any, list[Case]](list)
    met = Counter[tuple[str, str]]()
    for case in asked:  # where time may end, the first cases of all groups come first
        group = case.target, case.group
        batches[case.target if late == inf else met[group]].append(case)
        met[group] += 1
    total = len(asked)
    number = count()
    waiting = iter([*batches.values()])

    def work(under_test: Implementation) -> None:
        nonlocal seconds, failed
        for batch in waiting:
            for case in batch:
                progress(next(number), total, case.target)
                group, began = (case.target, case.group), monotonic()
                if began > late:
                    found[case.name] = Outcome(case, Status.NOT_TESTED, LATE)
                    continue
                allowed = 0.0 if group in failed else seconds
                found[case.name] = outcome = run_case(under_test, case, allowed, calls)
                failed |= {group} if outcome.status == Status.FAILED else set()
                if outcome.smallest is not None:
                    seconds -= min(seconds, monotonic() - began)

    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            others = [pool.submit(work, each) for each in workers[1:]]
            try:
                work(workers[0])
            finally:
                deque(waiting, maxlen=0)  # what stops the first leaves the others one target
            for each in others:
                each.result()
    except KeyboardInterrupt as stop:
        statuses = Counter(each.status for each in found.values())
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        stop.add_note(f"{statuses.total()} of {total} cases run: {counts or 'none'}")
        raise
    progress(total, total, "done")
    outcomes = (found[case.name] for target in offered for case in asked if case.target == target)
    return Report(tuple(outcomes), tuple(target for target in targets if target not in offered))


def fuzz(target: str, under_test: Implementation, seed: int, count: int) -> Report:
    """Ask an implementation ``count`` drawn cases, several times in a row, until one fails."""
    if not under_test.offers(target):
        raise ValueError(f"the implementation offers none of {target}")
    outcomes: list[Outcome] = []
    source = Source(f"fuzz {target}", seed)
    while len(outcomes) < count and not (outcomes and outcomes[-1].status == Status.FAILED):
        case = any_case(target, lambda values: values[_any_of(source, values)])
        if case is not None:
            outcomes.append(run_case(under_test, case, SECONDS, CALLS))
    return Report(tuple(outcomes), ())


def _any_of(source: Source, values: Sequence[Any]) -> int:
    return int(source.integers(0, len(values), 1)[0])


def _by_target(method: str | None, implementation: Any) -> dict[str, Any]:
    if isinstance(implementation, Mapping):
        steps = [name for name in implementation if name in STEPS]
        if steps and (method is None or method.rpartition(".")[2] in STEPS):
            name = steps[0]
            raise ValueError(f"target = {name!r} needs a method, as in 'h2o.{name}' or '*.{name}'")
        return {f"{method}.{x}" if x in STEPS else x: f for x, f in implementation.items()}
    if not callable(implementation):
        allowed = "must be a function or functions by target"
        raise TypeError(f"implementation {allowed}, got {implementation!r}")
    if method is None or method.partition(":")[0] in methods.names():
        needed = "needs a target, as in check('h2o.score', f)"
        raise TypeError(f"a function alone {needed}, got {method!r}")
    return {method: implementation}


def _asked(
    under_test: Implementation, everything: Sequence[Case], method: Asked, sizes: Names
) -> tuple[list[Case], tuple[str, ...]]:
    """Return the cases of what is asked for, and what has none at these sizes, but at others.

    Everything else has some that are offered, and something has.
    """
    names = (method,) if method is None or isinstance(method, str) else method
    missing = list[str]()
    for each in names:
        own = dict.fromkeys(case.target for case in everything if belongs(case.target, each))
        has = sizes if own or each is None else _sizes_with(each)
        if not has:
            operation_of(each or "")
            raise ValueError(f"there are no vectors for {each!r}")
        if {*has} & {*sizes} and not any(map(under_test.offers, own)):
            of = ", ".join(own) or each or "what has cases of these sizes"
            raise ValueError(f"the implementation offers none of {of}")
        missing += [] if own else [f"{each} (--sizes {', '.join(has)})"]
    if len(missing) == len(names):
        asked = f"a case of what is asked; there are some of {', '.join(missing)}"
        raise ValueError(f"sizes = {', '.join(sizes)} must have {asked}")
    return [case for case in everything if belongs(case.target, method)], (*missing,)


def _sizes_with(method: str) -> list[str]:
    """Return the sizes that have a case of a target or of a method."""
    wanted = partial(belongs, method=method)
    small = any(wanted(case.target) for case in cases(method))
    return ["small"] * small + [x for x in SIZES if any(True for _ in sized_cases(x, 0, wanted))]


def _selected(chosen: Sequence[Case], groups: Names, exclude: Names, sizes: Names) -> list[Case]:
    """Return the cases of some groups, or those that fit a name, without those to exclude."""
    known = sorted({case.group for case in chosen})

    def fitting(told: Names) -> set[str]:
        found = set[str]()
        for each in told:
            own = {x.name for x in chosen if x.group == each or fnmatchcase(x.name, each)}
            if not own and ("/" in each or each in ABOUT_GROUPS):
                kind, others = "case" if "/" in each else "group", {*EVERY_SIZE} - {*sizes}
                hint = f"; others may be at --sizes {', '.join(sorted(others))}" * bool(others)
                asked = f"what is asked, at --sizes {', '.join(sizes)}{hint}"
                raise ValueError(f"{kind} = {each!r} must be a {kind} of {asked}")
            if not own:
                check_choice(known, group=each)
            found |= own
        return found

    wanted = fitting(groups) - fitting(exclude)
    return [case for case in chosen if case.name in wanted]


# --- one case ------------------------------------------------------------------------------------


def run_case(
    under_test: Implementation, case: Case, seconds: float = 0.0, calls: int = 1
) -> Outcome:
    """Let an implementation answer one case so often; every answer has to be right.

    If it fails, so many seconds may be spent on finding a small case that fails, too.
    """
    try:
        margins: list[float | None] = []
        while len(margins) < calls:
            mistake, margin = _judged(under_test, case)
            if mistake is not None:
                break
            margins.append(margin)
        else:
            least = min((each for each in margins if each is not None), default=None)
            return Outcome(case, Status.PASSED, margin=least)
        late = f"in call {len(margins) + 1} of the same case: " if margins else ""
        if _right_without_slices(under_test, case):
            mistake = f"where inputs are slices, {mistake}"
        failed = Outcome(case, Status.FAILED, f"{late}{mistake}")
        if not seconds:
            return failed
        times = 1 + sum(_mistake(under_test, case) is not None for _ in range(CALLS - 1))
        if times < CALLS:
            often = f"intermittent, wrong in {times} of {CALLS} calls: {failed.reason}"
            return replace(failed, reason=often)
        return replace(failed, smallest=_smallest(under_test, case, min(seconds, SECONDS)))
    except NotTestedError as why:
        return Outcome(case, Status.NOT_TESTED, str(why))
    except LostError as how:
        return Outcome(case, Status.FAILED, str(how))


def _mistake(under_test: Implementation, case: Case) -> str | None:
    """Return what is wrong with an implementation's answer, None if it is right."""
    return _judged(under_test, case)[0]


def _judged(under_test: Implementation, case: Case) -> tuple[str | None, float | None]:
    """Return what is wrong with an implementation's answer, and a right one's margin."""
    for expected in case.expected.values():
        if expected.tolerance and under_test.precision not in expected.tolerance:
            raise NotTestedError(f"there is no tolerance for {under_test.precision}")
    try:
        found = under_test.answer(case)
    except (NotTestedError, LostError):
        raise
    except FailedError as why:
        return str(why), None
    except (Exception, SystemExit) as error:  # whatever a kernel does is a finding
        return f"{type(error).__name__}: {error}", None
    return mistake_and_margin(case, found, under_test.precision)


def _right_without_slices(under_test: Any, case: Case) -> bool:
    if not getattr(under_test, "slices", False):
        return False
    under_test.slices = False
    try:
        alone = all(_mistake(under_test, case) is None for _ in range(3))
    finally:
        under_test.slices = True
    return alone and _mistake(under_test, case) is not None


# --- small cases ---------------------------------------------------------------------------------


def _smallest(under_test: Implementation, case: Case, seconds: float) -> Outcome | None:
    """Return a small case of the same target and method that fails, too, if one is found in time.

    Cases are drawn until one fails. What was chosen about it is then lowered, number by number, for
    as long as it still fails: the first of several values is the simplest.
    """
    deadline = monotonic() + seconds
    best: tuple[list[int], Outcome] | None = None

    def failing(smaller: Case | None) -> Outcome | None:
        try:
            reason = None if smaller is None else _mistake(under_test, smaller)
        except (NotTestedError, LostError):
            return None
        return None if reason is None else Outcome(smaller or case, Status.FAILED, reason)

    if case.operation == "whole_cache":
        counts = range(1, len(case.inputs["calls"]))
        shorter = (failing(first_calls(case, count)) for count in counts)
        return next((each for each in shorter if each or monotonic() > deadline), None)
    if case.operation == "events":
        return _fewer_events(case, failing, deadline)
    source = Source(f"smallest {case.name}")

    def tried(numbers: Sequence[int]) -> tuple[list[int], Outcome] | None:
        taken: list[int] = []

        def choose(values: Sequence[Any]) -> Any:
            given = numbers[len(taken)] if len(taken) < len(numbers) else _any_of(source, values)
            taken.append(min(given, len(values) - 1))
            return values[taken[-1]]

        found = failing(any_case(case.target, choose, case))
        return None if found is None else (taken, found)

    variants = [*SMALL.get(case.target, {}).get("variant", ())]
    first = [variants.index(case.group)] if case.group in variants else []
    for number in range(TRIALS):
        best = best or tried(first if number % 2 == 0 else [])
        if best is not None or monotonic() > deadline:
            break
    place = unchanged = 0
    while best is not None and unchanged < len(best[0]) and monotonic() < deadline:
        place %= len(best[0])
        before, number, after = best[0][:place], best[0][place], best[0][place + 1 :]
        lower = [less for less in (0, 1, number // 2, min(number - 1, MOST)) if 0 <= less < number]
        tails = [after, *[after[:-2]] * REDRAWN]
        asked = ([*before, less, *tail] for less in lower for tail in tails)
        found = next((x for each in asked if (x := tried(each))), None)
        best = found or best
        place, unchanged = (place, 0) if found else (place - 1, unchanged + 1)
    return None if best is None else best[1]


def _fewer_events(
    case: Case, failing: Callable[[Case | None], Outcome | None], deadline: float
) -> Outcome | None:
    """Leave out one event after the other, for as long as the script still fails."""
    best, event = None, 0
    while event < len(case.inputs["script"]) and monotonic() < deadline:
        try:
            name = f"{case.target}/fewer"
            found = failing(made_case(name, case.group, None, events.without(case, event)))
        except ValueError:  # the others make no sense without it
            found = None
        best, event = (found, 0) if found else (best, event + 1)
        case = best.case if best else case
    return best
