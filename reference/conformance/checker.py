"""Runs an implementation on test vectors, and reports."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any

from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance import vectors
from kvlab.reference.conformance.building import drawn_case, made_of_examples, sized_cases
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.expecting import difference
from kvlab.reference.conformance.groups import SIZED
from kvlab.reference.conformance.implementation import (
    Functions,
    Implementation,
    LostError,
    NotTestedError,
    RaisedError,
)
from kvlab.reference.conformance.minimise import SECONDS, minimised
from kvlab.reference.conformance.report import Group, Outcome, Report, Status
from kvlab.reference.conformance.targets import OPERATIONS, described, operation_of
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

ALL_SECONDS = 40.0
"""Time that is spent on making the failures of one check small."""

CALLS = 11
"""Calls after which an error counts as permanent if all of them were wrong."""

Progress = Callable[[int, int, str], None]
"""Is told the number of cases done, of all cases, and the current target."""


def check(
    method: str | None,
    implementation: Any,
    *,
    arrays: str = "numpy",
    device: str | None = None,
    precision: str = "float32",
    groups: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    minimise: bool = True,
    calls: int = 1,
    spec: str = vectors.LATEST,
    sizes: Iterable[str] = ("small",),
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Check an implementation against the test vectors.

    Args:
        method: what is implemented: a building block (``"attend"``), a step of a method
            (``"h2o.score"``), a method (``"h2o"``: all its steps), or None for everything.
        implementation: a function for one target; functions by target; or for a method, functions
            by step (``{"score": ..., "keep": ...}``). A function is given the inputs and
            parameters that it names (``kvlab conformance show h2o.score`` lists them) and returns
            an array, a tuple in the order of the outputs, or a dictionary. It raises
            NotImplementedError for what it does not do. Or any object that has ``precision``,
            ``offers`` and ``answer``: see `Implementation`.
        arrays: module whose arrays the functions take: numpy, torch, cupy or jax.numpy.
        device: where the arrays are, as that module names it.
        precision: number format of queries, keys and values: float32, float16 or bfloat16; it
            sets the tolerance, too.
        groups: groups to run; None: all.
        exclude: groups to leave out.
        minimise: whether to look for the smallest inputs on which a group fails.
        calls: how often each case is asked; every answer has to be right.
        spec: version of the specification whose vectors are used.
        sizes: ``small``: the vectors; ``kernel``, ``long``: cases that are drawn on the spot.
        seed: seed of the numbers of drawn cases.
        progress: is told the number of cases done, of all cases, and the current target.

    Raises:
        ValueError: if a target, group or precision is unknown.
        TypeError: if an implementation is no function, or asks for an input that does not exist.
    """
    under_test = _implementation(method, implementation, arrays, device, precision)
    everything = _of_sizes(method, under_test, sizes, seed, spec)
    chosen = _selected(everything, method, groups, exclude)
    offered = [case for case in chosen if under_test.offers(case.target)]
    if not offered:
        raise ValueError(f"the implementation offers none of {', '.join(targets(chosen))}")
    by_group = _run_cases(under_test, offered, minimise, calls, progress)
    order = targets(offered)
    found = [Group(*key, tuple(outcomes)) for key, outcomes in by_group.items()]
    return Report(
        tuple(sorted(found, key=lambda group: order.index(group.target))),
        tuple(target for target in targets(chosen) if not under_test.offers(target)),
    )


def _of_sizes(
    method: str | None, under_test: Implementation, sizes: Iterable[str], seed: int, spec: str
) -> list[Case]:
    """Return the cases of all sizes; drawn ones alone of what is asked for and offered."""

    def wanted(target: str) -> bool:
        asked = method is None or method in (target, target.rpartition(".")[0])
        return asked and under_test.offers(target)

    found: list[Case] = []
    for size in sizes:
        check_choice(("small", *SIZED), sizes=size)
        found += cases(method, spec) if size == "small" else sized_cases(size, seed, wanted)
    return found


def fuzz(target: str, under_test: Implementation, seed: int, count: int) -> Report:
    """Ask an implementation drawn cases until one fails; each is asked several times in a row.

    Args:
        target: a building block, or a step of a method.
        under_test: the implementation.
        seed: the same seed draws the same cases.
        count: cases that are drawn at most.

    Raises:
        ValueError: if the target is unknown, is not offered, or is a whole cache.
    """
    if not under_test.offers(target):
        raise ValueError(f"the implementation offers none of {target}")
    outcomes: list[Outcome] = []
    source = Source(f"fuzz {target}", seed)
    while len(outcomes) < count:
        case = drawn_case(target, lambda values: values[int(source.integers(0, len(values), 1)[0])])
        if case is None:
            continue
        outcomes.append(run_case(under_test, case, SECONDS, CALLS))
        if outcomes[-1].status == Status.FAILED:
            break
    return Report((Group(target, "drawn", tuple(outcomes)),), ())


def _run_cases(
    under_test: Implementation,
    offered: Sequence[Case],
    minimise: bool,
    calls: int,
    progress: Progress | None,
) -> dict[tuple[str, str], list[Outcome]]:
    by_group: dict[tuple[str, str], list[Outcome]] = {}
    seconds = ALL_SECONDS if minimise else 0.0
    for number, case in enumerate(offered):
        if progress is not None:
            progress(number, len(offered), case.target)
        outcomes = by_group.setdefault((case.target, case.group), [])
        first = not any(each.status == Status.FAILED for each in outcomes)
        began = monotonic()
        outcomes.append(run_case(under_test, case, seconds if first else 0.0, calls))
        if outcomes[-1].smallest is not None:
            seconds -= min(seconds, monotonic() - began)
    if progress is not None:
        progress(len(offered), len(offered), "done")
    return by_group


@lru_cache(maxsize=2)
def published(spec: str = vectors.LATEST) -> tuple[Case, ...]:
    """Return the cases that come with the package, of a version of the specification."""
    return tuple(case for each in vectors.directories(spec) for case in vectors.read(each))


def cases(method: str | None = None, spec: str = vectors.LATEST) -> tuple[Case, ...]:
    """Return the published cases, and cases made on the spot for methods that have none.

    Args:
        method: a target or method; of other methods nothing is made. None: of every method.
        spec: version of the specification.
    """
    unpublished = (
        name
        for name in methods.names()
        if name not in vectors.published_methods()
        and (method is None or name == re.split("[.:]", method)[0])
    )
    return (*published(spec), *(case for name in unpublished for case in made_on_the_spot(name)))


@lru_cache(maxsize=64)
def made_on_the_spot(name: str) -> tuple[Case, ...]:
    """Return the cases of a method without published ones."""
    return tuple(made_of_examples(name))


def _implementation(
    method: str | None,
    implementation: Any,
    arrays: str,
    device: str | None,
    precision: str,
) -> Implementation:
    if hasattr(implementation, "offers") and hasattr(implementation, "answer"):
        return implementation
    if isinstance(implementation, Mapping):
        functions = {_full_target(method, name): f for name, f in implementation.items()}
    elif callable(implementation):
        if method is None or any(
            case.target.rpartition(".")[0] == method for case in cases(method)
        ):
            raise TypeError(
                f"a function alone needs a target, as in check('h2o.score', f), got {method!r}"
            )
        functions = {method: implementation}
    else:
        raise TypeError(
            f"implementation must be a function or functions by target, got {implementation!r}"
        )
    return Functions(functions, arrays, device, precision)


def _full_target(method: str | None, name: str) -> str:
    operation = OPERATIONS.get(name)
    if operation is None or not operation.of_method:
        return name
    if method is None or method.rpartition(".")[2] in OPERATIONS:
        raise ValueError(f"target = {name!r} needs a method, as in 'h2o.{name}' or '*.{name}'")
    return f"{method}.{name}"


def _selected(
    everything: Sequence[Case],
    method: str | None,
    groups: Iterable[str] | None,
    exclude: Iterable[str],
) -> list[Case]:
    """Return the cases of a target or method, in these groups.

    Raises:
        ValueError: if a target has no cases, or a group is unknown.
    """
    chosen = [case for case in everything if method is None or belongs(case, method)]
    if not chosen:
        operation_of(method or "")
        raise ValueError(f"there are no vectors for {method!r}")
    known = {case.group for case in everything}
    wanted, unwanted = known if groups is None else set(groups), set(exclude)
    for group in (*wanted, *unwanted):
        if group not in known:
            raise ValueError(f"group = {group!r} must be one of {', '.join(sorted(known))}")
    return [case for case in chosen if case.group in wanted - unwanted]


def belongs(case: Case, method: str) -> bool:
    """Whether a case is about a target, or about a step of a method."""
    return method in (case.target, case.target.rpartition(".")[0])


def targets(listed: Iterable[Case]) -> list[str]:
    """Return the targets of cases, each once, in order."""
    return list(dict.fromkeys(case.target for case in listed))


# --- one case ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """One wrong answer."""

    reason: str
    """What is wrong, in words."""
    compared: bool = False
    """Whether the numbers are wrong: the function ended, and returned arrays of the right shape."""


def run_case(
    under_test: Implementation, case: Case, seconds: float = 0.0, calls: int = 1
) -> Outcome:
    """Let an implementation answer one case.

    Args:
        under_test: the implementation.
        case: what it is asked.
        seconds: time for making a failure small.
        calls: how often it is asked; every answer has to be right.
    """
    try:
        mistakes = (_wrong(under_test, case) for _ in range(calls))
        number, mistake = next(((n, x) for n, x in enumerate(mistakes, 1) if x), (1, None))
        if mistake is None:
            return Outcome(case, Status.PASSED)
        late = f"in call {number} of the same case: " if number > 1 else ""
        reason = f"{late}{mistake.reason}"
        failed = Outcome(case, Status.FAILED, reason, compared=mistake.compared)
        if not seconds:
            return failed
        times = 1 + sum(_wrong(under_test, case) is not None for _ in range(CALLS - 1))
        if times < CALLS:
            often = f"intermittent, wrong in {times} of {CALLS} calls: {reason}"
            return replace(failed, reason=often)

        def reason_of(smaller: Case) -> str | None:
            found = _wrong(under_test, smaller)
            return None if found is None else found.reason

        return replace(failed, smallest=minimised(case, reason_of, min(seconds, SECONDS)))
    except NotTestedError as why:
        return Outcome(case, Status.NOT_TESTED, str(why))
    except LostError as how:
        return Outcome(case, Status.FAILED, str(how))


def _wrong(under_test: Implementation, case: Case) -> Mistake | None:
    """Return what is wrong with an implementation's answer, None if it is right.

    Raises:
        NotTestedError: if it does not do what the case asks for.
        LostError: if its process crashed or hung.
    """
    for expected in case.expected.values():
        if expected.tolerance and under_test.precision not in expected.tolerance:
            raise NotTestedError(f"there is no tolerance for {under_test.precision}")
    try:
        found = under_test.answer(case)
    except (NotTestedError, LostError):
        raise
    except RaisedError as error:
        return Mistake(str(error))
    except (Exception, SystemExit) as error:  # whatever a kernel does is a finding
        return Mistake(f"{type(error).__name__}: {error}")
    return _shape_mistake(case, found) or _first_difference(case, found, under_test.precision)


def _shape_mistake(case: Case, found: Mapping[str, Array]) -> Mistake | None:
    outputs = described(case).outputs
    for name, expected in case.expected.items():
        if name in found and found[name].shape != expected.value.shape:
            shapes = f"{found[name].shape}, expected {expected.value.shape}"
            return Mistake(f"{name} has the shape {shapes}")
        if name not in found and not outputs[name].optional:
            return Mistake(f"{name} was not returned")
    return None


def _first_difference(case: Case, found: Mapping[str, Array], precision: str) -> Mistake | None:
    """Return what is wrong with the first wrong output.

    Survivors are compared first, because numbers follow from them. The operation's ``judge`` comes
    last, because it looks at all outputs together.
    """
    operation = described(case)
    for name in sorted(case.expected, key=lambda name: case.expected[name].kind == "numbers"):
        if name in found:
            axes = operation.outputs[name].axes
            reason = difference(case.expected[name], found[name], precision, axes)
            if reason is not None:
                return Mistake(f"{name} {reason}", compared=True)
    reason = operation.judge(found, case.parameters) if operation.judge is not None else None
    return None if reason is None else Mistake(f"{next(iter(case.expected))} {reason}", True)
