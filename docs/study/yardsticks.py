"""How good yardsticks are: which planted bugs pass the tolerance rules of others, and ours.

PYTHONPATH=docs:tests python -m study.yardsticks docs  # stores and draws
"""

import json
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from kvlab.fast.lab.drawing import Picture, canvas, finish
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.terminal import working
from kvlab.reference.conformance import Status, published
from kvlab.reference.conformance.checker import belongs, run_case
from kvlab.reference.conformance.planned import method_cases, sized_cases
from kvlab.reference.conformance.targets import answer
from kvlab.reference.conformance.vectors import Case, Expected
from kvlab.reference.method import Example
from support.mutants import BUGS, ROOT, SIZED_BUGS, Bug, Copy

NEAR, FACTOR, SEEDS = 1e-2, 1.5, 4  # of flashinfer-bench, SOL-ExecBench; of gpuemu; of controls
RULES = ("all within 1e-2", "99 % within 1e-2", "95 % within 1e-2", "1.5 × p95 of controls", "ours")
SETS = {"plain": "plain random shapes", "published": "our published cases"}
PLAIN_BUDGET = 128  # of the plain stream's 256 entries
CONTROL = Bug("", "", ROOT / "attention.py", (("np.sqrt(d)", "np.sqrt(d, dtype=np.float32)"),))
copied = lru_cache(32)(Copy)


def cases(target: str, kind: str, seed: int = 0) -> list[Case]:
    """Return a target's published cases, or a draw of its plain ones, with answers in float64."""
    shown = [case for case in published() if belongs(case.target, target)]
    if kind == "published":
        return [replace(case, expected=answer(case)) for case in shown]
    budgets = {case.method: case.parameters["budget"] for case in shown if case.method}
    found = [] if budgets else [*sized_cases("plain", seed, target.__eq__)]
    for spec, budget in budgets.items():
        example = Example(spec, budget and PLAIN_BUDGET)
        steps = {case.target for case in shown if case.method == spec}
        with suppress(ValueError):  # the prompt is protected, and exceeds the budget
            found += method_cases(example, "plain", seed, steps.__contains__)
    return found


def judged(case: Case, e: Expected, x: np.ndarray, limit: float = np.inf) -> tuple[set[str], float]:
    """Return the rules of others that an output breaks, and its largest error.

    flashinfer-bench asks for NEAR absolutely or relatively, of all elements or of 95 %; and of keep
    sets for the sorted scores at the indices (else for what is kept); SOL-ExecBench
    for NEAR of both together, of 99 %; gpuemu for a limit. Equal infinities are right.
    """
    pair = [e.value, x]
    assert e.value.shape == x.shape
    if e.kind == "at_most":
        return set(), 0.0  # bytes, which no tolerance rule looks at
    if e.kind == "keep" and "scores" in case.inputs:
        pair = [np.sort(np.take_along_axis(case.inputs["scores"], x, axis=-1)) for x in pair]
    elif e.kind == "keep":
        entries = np.arange(case.inputs["positions"].shape[-1])
        pair = [(x[..., None] == entries).any(axis=-2) for x in pair]
    elif e.where is not None:
        pair = [x[e.where] for x in pair]
    true, x = (each.astype(np.float64).ravel() for each in pair)
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(np.where(true == x, 0, abs(x - true)), nan=np.inf, posinf=np.inf)
    either = (off <= NEAR * np.maximum(1, abs(true))).sum()
    both, most, n = (off <= NEAR * (1 + abs(true))).sum(), float(off.max(initial=0)), off.size
    kept = (either == n, both >= 0.99 * n, either >= 0.95 * n, most <= limit, True)
    return {rule for rule, fine in zip(RULES, kept, strict=True) if not fine}, most


def broken(copy: Copy, case: Case, limits: dict[str, float]) -> set[str]:
    """Return the rules that a copy's answer to a case breaks."""
    try:
        found = copy.answer(case)
        pairs = [(case.expected[n], x, limits[case.target + n]) for n, x in found.items()]
        rules = set().union(*(judged(case, *each)[0] for each in pairs))
    except Exception:  # another shape, no index, or whatever else a bug does
        return {*RULES}
    with patch.object(copy, "answer", lambda _: found):
        failed = run_case(copy, case).status == Status.FAILED
    return rules | ({RULES[-1]} if failed else set())


def calibrated(target: str, kind: str) -> dict[str, float]:
    """Return FACTOR × p95 of the largest errors of controls that keep the first rule, by output.

    A control is the right reference, fed float32 (in whole caches the model is in float64).
    """
    copy, errors = copied(CONTROL), defaultdict(list)
    for case in chain(*(cases(target, kind, n) for n in range(SEEDS if kind == "plain" else 1))):
        with patch.dict(copy.expected.__globals__, WIDE={np.dtype(np.int32): np.int64}):
            found = copy.answer(case)
        for name, expected in case.expected.items():
            rules, most = judged(case, expected, found[name])
            errors[case.target + name] += [] if RULES[0] in rules else [most]
    return {key: FACTOR * float(np.percentile(each or 0, 95)) for key, each in errors.items()}


def measure() -> dict[str, Any]:
    """Return the bugs that pass a rule wherever right code does, and how often that fails it.

    Bugs are asked whose target has plain cases.
    """
    bugs = sorted((*BUGS, *SIZED_BUGS), key=lambda bug: bug.target)
    targets = [each for each in dict.fromkeys(bug.target for bug in bugs) if cases(each, "plain")]
    bugs = [bug for bug in bugs if bug.target in targets]
    passing: dict[str, Any] = {kind: {rule: [] for rule in RULES} for kind in SETS}
    right: dict[str, Any] = {kind: {} for kind in SETS}
    for target, kind in product(targets, SETS):
        limits, asked = calibrated(target, kind), cases(target, kind)
        wrongly = [broken(copied(None), case, limits) for case in asked]
        right[kind] |= {case.name: wrong for case, wrong in zip(asked, wrongly, strict=True)}
        for bug in (bug for bug in bugs if bug.target == target):
            rules = {*RULES}
            for case, wrong in zip(asked, wrongly, strict=True):
                rules -= broken(copied(bug), case, limits) - wrong if rules else set()
            for rule in rules:
                passing[kind][rule].append(bug.name)
    counts = {
        kind: Counter(chain(["cases"] * len(each), *each.values())) for kind, each in right.items()
    }
    return {"bugs": len(bugs), "passing": passing, "right": counts}


def draw(result: dict[str, Any]) -> Picture:
    """Draw how many bugs pass each rule."""
    figure, (axes,) = canvas(height=3)
    for number, (kind, label) in enumerate(SETS.items()):
        values = [len(result["passing"][kind][rule]) for rule in RULES]
        bars = axes.barh(np.arange(len(RULES)) + 0.4 * number, values, 0.36, label=label)
        axes.bar_label(bars, fontsize=8, padding=2)
    axes.set(yticks=np.arange(len(RULES)) + 0.2, yticklabels=RULES)
    axes.set(xlabel=f"planted bugs that pass, of {result['bugs']}", ylim=(len(RULES) - 0.3, -0.5))
    return finish(figure, "Planted bugs that pass each tolerance rule, on two sets of cases.")


if __name__ == "__main__":
    images = Path(sys.argv[1]) / "images"
    with working("asking planted bugs"):
        found = measure()
    write_text(images / "yardsticks.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    draw(found).save(images / "yardsticks.svg")
