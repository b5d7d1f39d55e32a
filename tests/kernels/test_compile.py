"""What the interpreter does not show: what compilers make of kernels, and how many are launched."""

import json
import os
import re
from pathlib import Path

import pytest

from kvlab.fast.kernels.choice import VARIABLE
from kvlab.reference.simulator.sizes import COUNTED_LAYERS, LAUNCHES
from support.running import python

REPORT = Path(__file__).parents[2] / "docs" / "study" / "results" / "kernels.json"
NO_VECTORS = {"keep_sets"}


@pytest.mark.slow
def test_every_kernel_compiles():
    assert not_interpreted("compile_kernels", "all").count("bytes shared") >= 60


@pytest.mark.slow
def test_compiled_kernels_are_no_worse_than_the_stored_report():
    """`make kernels-report` writes it anew."""
    now, stored = (
        json.loads(not_interpreted("report_kernels", "--once")),
        json.loads(REPORT.read_text()),
    )
    firsts = [*first_figures(now)]
    assert len(firsts) >= 11
    assert not [row for row in firsts if row[-1]["spilled"]]
    narrow = [kernel for kernel, *_, row in firsts if row["widest"] < 128]
    assert set(narrow) == NO_VECTORS
    if now["triton"] == stored["triton"]:
        known = {tuple(keys): figures for *keys, figures in first_figures(stored)}
        assert not [worse for *keys, row in firsts if (worse := behind(row, known[tuple(keys)]))]
        some = next(iter(known.values()))
        assert behind(some | {"barriers": some["barriers"] + 1}, some) == ["barriers"]


def first_figures(report):
    """Kernel, constants, configuration and figures on the first GPU."""
    for kernel, compiled in report["kernels"].items():
        for constants, tried in compiled.items():
            for configuration, figures in tried.items():
                if "sm_90" in figures:
                    named = dict(zip(report["figures"], figures["sm_90"], strict=True))
                    yield kernel, constants, configuration, named


MORE_IS_BETTER = {"occupancy", "widest", "wide", "tensor"}


def behind(now, stored):
    """Names of the figures that are worse than they were."""

    def worse(name):
        sign = -1 if name in MORE_IS_BETTER else 1
        return sign * (now[name] or 0) > sign * (stored[name] or 0)

    return [name for name in now if worse(name)]


EVICTING = (
    *("h2o", "tova", "caote:tova", "fast_caote:tova", "streaming_llm", "rkv"),
    *("lazy_eviction", "longflow", "keydiff"),
)
OTHERS = (
    *("ahakv@recent=16/64", "nacl/64", "snapkv@window=16/64"),
    *("random/64", "desirekv", "ddks", "kivi"),
)


@pytest.mark.slow
def test_a_token_launches_what_the_planner_counts():
    specs = "caote:h2o/64", *(f"{each}/64" for each in EVICTING), *OTHERS
    found = [*map(json.loads, not_interpreted("count_launches", *specs).splitlines())]
    counted = {"full" if spec is None else re.split("[/@]", spec)[0]: each for spec, each in found}
    assert len(counted) == 1 + len(specs)
    for method, launches in counted.items():  # less than one a layer apart
        assert launches == pytest.approx(LAUNCHES[method], abs=COUNTED_LAYERS - 1)
    assert max(LAUNCHES[each] for each in EVICTING) <= LAUNCHES["full"] + 2 * COUNTED_LAYERS


def not_interpreted(script: str, *arguments: str) -> str:
    """Return what a script prints that runs without Triton's interpreter."""
    interpreting = ("TRITON_INTERPRET", VARIABLE)
    environment = {name: x for name, x in os.environ.items() if name not in interpreting}
    environment["PYTHONPATH"] = "docs"
    done = python("-m", f"study.{script}", *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
