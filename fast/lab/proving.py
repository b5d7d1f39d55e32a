"""Checks claims of papers, and keeps what was found until all are checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvlab.fast.lab.loop import kept, run_all
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference import proofs
from kvlab.reference.proofs.claim import Claim, Finding


@dataclass(frozen=True)
class _Check:
    id: str
    label: str
    claim: Claim


def proved(
    chosen: Sequence[Claim],
    workers: int = 1,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[proofs.Result], object] = lambda result: None,
) -> list[proofs.Result]:
    """Check claims as `kvlab.reference.proofs.prove` does, but for those that were checked before.

    ``tell`` is called with each result in the order in which the checks end.
    """

    def engine(checks: Iterator[_Check]) -> Iterator[tuple[_Check, Any]]:
        waiting = {each.claim: each for each in checks}
        for result in proofs.prove(list(waiting), workers):
            yield waiting[result.claim], (result.finding, result.seconds)

    def told(check: _Check, found: tuple[Finding, float]) -> None:
        tell(proofs.Result(check.claim, *found))

    checks = [_Check(x.tag, f"{x.paper} {x.tag}", x) for x in chosen]
    with kept("prove", claims=[each.id for each in checks]) as store:
        found = run_all(checks, store, engine, tuple[Finding, float], progress, told)
    return [proofs.Result(each.claim, *found[each.id]) for each in checks]
