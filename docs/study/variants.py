"""Kernels of another checkout of kvlab beside those of this one, in one process and in turn.

    PYTHONPATH=docs python -m study.variants CHECKOUT --only quantise --entries 4096 --out FILE

Cases and sizes are those of ``kvlab.fast.lab.benchmarks.kernels``; a row has the quartiles of both,
those of the ratio within a pair of runs, and the configurations that Triton chose for each.
``--small`` runs a small case once, on any device.
"""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from kvlab.fast.lab.benchmarks import kernels
from kvlab.fast.lab.benchmarks.noted import quartiles
from kvlab.fast.lab.benchmarks.results import Measure, gpu_or_small, run_benchmark
from kvlab.fast.lab.loop import Step

PACKAGES = {"kvlab": "package", "kvlab.reference": "reference", "kvlab.fast": "fast"}
"""Folders of a checkout."""
MODULE = "kvlab.fast.lab.benchmarks.kernels"


def imported(checkout: Path) -> Any:
    """Import the kernels' benchmark of another checkout; its modules are called ``other.kvlab…``.

    Raises:
        FileNotFoundError: if it is no checkout of kvlab.
    """
    own = {name: sys.modules.pop(name) for name in [*sys.modules] if within(name)}
    try:
        for name, folder in PACKAGES.items():
            place = checkout.resolve() / folder / "__init__.py"
            spec: Any = spec_from_file_location(name, place)
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return import_module(MODULE)
    finally:
        for name in [name for name in sys.modules if within(name)]:
            sys.modules[f"other.{name}"] = sys.modules.pop(name)
        sys.modules.update(own)


def within(name: str) -> bool:
    """Say whether a module is one of kvlab's."""
    return name.partition(".")[0] == "kvlab"


def compared(
    group: int, size: kernels.Size, other: Any, repeats: int, only: str
) -> list[dict[str, Any]]:
    """Time a group of cases of both, each pair in turn."""
    theirs = other.Size(**vars(size))
    runs = {case.kernel: case.run for case in other.CASES[group](theirs)}
    rows = []
    for case in kernels.CASES[group](size):
        if case.kernel in runs and any(part in case.kernel for part in only.split(",")):
            both = [case.run, runs[case.kernel]]
            mine, its = kernels.seconds(both, size.device, repeats)
            ratio = [a / b for a, b in zip(mine, its, strict=True)]
            facts = {key: x for key, x in vars(case).items() if key != "run"}
            times = {"this": quartiles(mine), "other": quartiles(its), "ratio": quartiles(ratio)}
            rows.append(facts | times)
    return rows


def main(
    checkout: Annotated[Path, typer.Argument(exists=True, help="Another checkout of kvlab.")],
    only: Annotated[str, typer.Option(help="Parts of kernels' names, with commas.")] = "",
    batch: int = 1,
    entries: int = 4096,
    repeats: int = 50,
    small: bool = False,
    out: Path | None = None,
) -> None:
    """Time kernels of two checkouts in turn."""
    asked, device = locals(), gpu_or_small("variants", small)
    most, heads = (64, 1) if small else (entries, kernels.KV_HEADS)
    size = kernels.Size(batch, most, device, torch.bfloat16, heads)
    other = imported(checkout)

    def parts(measure: Measure) -> dict[str, list[dict[str, Any]]]:
        steps = [
            Step(cases.__name__, lambda n=n: compared(n, size, other, repeats, only))
            for n, cases in enumerate(kernels.CASES)
        ]
        return {"variants": [row for rows in measure(steps).values() for row in rows]}

    run_benchmark("variants", device, asked, {}, parts)


if __name__ == "__main__":
    typer.run(main)
