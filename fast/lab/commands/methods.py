"""``kvlab methods`` and ``kvlab recurrence``: the reference alone, but for a check of files."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typer import Exit

from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import print_caption, print_json, print_line, print_table, progress_bar
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.method import field_docstrings
from kvlab.reference.models import EMBEDDED
from kvlab.reference.outside import OUTSIDE, named
from kvlab.reference.simulator.observed import intervals, recurrence as sum_up


def methods(
    name: str | None = None,
    files: list[Path] | None = None,
    divergences: bool = False,
    json: bool = False,
) -> None:
    """List methods, their options and variants, or the divergences of one; check one's own."""
    if name == "check":
        _check(files or [], json)
        return
    if files:
        raise ValueError(f"files = {files[0]} needs the word check before it")
    method = None if name is None else registry.base_name(name)
    if method is not None:
        registry.divergences(method)  # refuses an unknown name
    if divergences:
        _show_divergences((method,) if method else registry.names(), json)
        return
    described = registry.describe()
    if method is not None:
        described = {method: described[method]}
    if json:
        print_json({"methods": described, "variants": registry.variants()})
        return
    rows = [
        (each, entry["source"], _options_of(entry["options"])) for each, entry in described.items()
    ]
    print_table(Table(("method", "source", "options"), rows, words=3))
    for note in registry.notes((name or "",)):
        print_line(note)
    if method is not None:
        meanings = field_docstrings(registry.lookup(method))
        rows = [(each, meanings.get(each, "")) for each in described[method]["options"]]
        print_table(Table(("option", "means"), rows, words=2))
    print_caption(f"options of every method: {_options_of(registry.OF_EVERY_METHOD)}")
    if method is None:
        print_table(Table(("variant", "is"), list(registry.variants().items()), words=2))


def _check(files: Sequence[Path], as_json: bool) -> None:
    """Compare the PyTorch side of methods in files with their NumPy side, step by step."""
    from kvlab.fast.lab.conformance import IMPLEMENTATIONS
    from kvlab.reference.conformance.checker import check
    from kvlab.reference.conformance.report import Status, describe, to_plain

    if not files or not all(each.is_file() for each in files):
        given = " ".join(map(str, files))
        raise ValueError(f"files = {given!r} must be Python files with methods of your own")
    before = registry.names()
    os.environ[OUTSIDE] = os.pathsep.join([*named(), *map(str, files)])
    registry.discover_again()
    own = [each for each in registry.names() if each not in before]
    if not own:
        raise ValueError(f"files = {', '.join(map(str, files))} define no method that is new")
    with progress_bar() as progress:
        found = check(own, IMPLEMENTATIONS, arrays="torch", progress=progress)
    if as_json:
        print_json(to_plain(found))
    else:
        ended = Counter((x.case.target, x.status) for x in found.outcomes)
        told = (Status.PASSED, Status.FAILED)
        steps = dict.fromkeys(target for target, status in ended if status in told)
        rows = [(step, *(str(ended[step, each]) for each in told)) for step in steps]
        print_table(Table(("step", "agree", "differ"), rows))
        for each in found.failures()[:1]:
            print_line(describe(each))
    if not found.passed:
        raise Exit(1)


def _options_of(defaults: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={str(value).lower()}" for name, value in defaults.items())


def _show_divergences(names: tuple[str, ...], as_json: bool) -> None:
    found = {name: registry.divergences(name) for name in names}
    if as_json:
        print_json(found)
        return
    for name, entries in found.items():
        for entry in map(asdict, entries):  # a name and a text have room even where five have none
            print_table(Table((name, entry.pop("topic")), [*entry.items()], words=2))
        if not entries and len(found) == 1:
            print_line(f"{name}: no divergences")


def recurrence(
    problems: int = 20,
    task: str | None = None,
    seed: int = 0,
    threshold: float = 0.01,
    model: Path | None = None,
    json: bool = False,
) -> None:
    """Measure how often tokens become important again (LazyEviction Fig. 3c)."""
    name = str(model or "reasoner")
    draw = find_task(task or EMBEDDED.get(name, "reasoning")).problems
    directory = Path(model_location(name, hub=False))
    asked: dict[str, Any] = {"problems": problems, "threshold": threshold}
    found = {**asked, **sum_up(intervals(directory, seed=seed, draw=draw, **asked))}
    if json:
        print_json(found)
        return
    rows = [("tokens with a recurrence (MRI > 1)", f"{100 * found['share_recurring']:.1f} %")]
    for quantile, steps in found["quantiles"].items():
        rows.append((f"MRI, {quantile} quantile", f"{steps:.0f} steps"))
    title = "token importance recurrence, full cache"
    print_table(Table(("figure", "value"), rows, title=title))
