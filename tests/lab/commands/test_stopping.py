"""Methods that fail and Ctrl-C: what has been found by then is not lost, and nothing else stays."""

import json
import signal
from importlib import import_module
from itertools import islice

import pytest

from kvlab.fast.lab.sweep import compare
from kvlab.reference.processes import process_pool
from support.outside import methods_named
from support.running import invoke
from support.sampling import slow
from support.shapes import shapes_checked

BROKEN = """
from dataclasses import dataclass
from kvlab.reference import Entries, EveryBlock, Method, Edges, Policy, Score
class Failing(Score):
    def score(self, state, seen, candidates, room):
        raise KeyError("depth")
@dataclass(frozen=True)
class Broken(Method):
    early: bool = False
    name = "broken"
    source = "nowhere"
    def policy(self, budget):
        if self.early:
            raise KeyError("depth")
        return Policy(self.name, Failing(), EveryBlock(), Edges(recent=4), Entries(budget))
"""
"""Fails when it is asked, or while it is built."""
COMPARE = "compare --problems 1 --task jumps@fewest=3,most=4 --budget 60% --no-controls"
NEEDLE = "needle --trials 1 --depths 1 --heat-map OUT"


@pytest.fixture(autouse=True)
def _shapes_are_not_checked(here):
    with shapes_checked(False):
        yield


def typed_in(typed, places):
    return invoke(*(places.get(word, word) for word in typed.split()))


@pytest.mark.parametrize(
    ("typed", "rows"),
    [
        (f"{COMPARE} --methods broken;knorm", "rows"),
        ("perplexity --windows 1 --methods broken;knorm --no-controls", "rows"),
        slow((f"{NEEDLE} --methods broken;knorm --no-controls", "lengths")),
        ("plan --prompt 64 --length 64 --methods broken@early=true;knorm", "methods"),
        ("simulate TRACE --budget 30 --workers 1 --methods broken;knorm", None),
        ("view OUT --trace TRACE --budget 30 --methods broken;knorm", "methods"),
    ],
)
def test_a_method_that_fails_is_a_row_beside_the_others(typed, rows, noise_file, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    places = {"TRACE": noise_file, "OUT": tmp_path / "out"}
    lines = [n for n, text in enumerate(BROKEN.splitlines(), 1) if "raise" in text]
    with methods_named(tmp_path / "broken.py"):
        data = typed_in(f"{typed} --json", places)
        shown = typed_in(typed, places) if rows in (None, "methods") else data  # models take time
    assert (shown.exit_code, data.exit_code) == (1, 1), (shown.output, shown.exception)
    reason = f"KeyError: 'depth' (broken.py, line {lines['early' in typed]})"
    assert reason in " ".join(shown.stdout.split())
    found = json.loads(data.stdout)[rows] if rows else json.loads(data.stdout)
    found = found[0]["rows"] if rows == "lengths" else found
    refusals = {row.get("method", row.get("spec")): row["refusal"] for row in found}
    assert refusals.pop("knorm") is None
    assert reason in refusals.popitem()[1]


def test_the_one_method_of_generate_is_named_when_it_fails(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    with methods_named(tmp_path / "broken.py"):
        found = typed_in("generate --method broken --budget 20", {})
    assert found.exit_code == 1
    assert "kvlab: broken: KeyError: 'depth' (broken.py, line" in found.stderr


STOPPED = {
    f"{NEEDLE} --methods full;tova": "evaluate.likelihood.rate",
    "perplexity --windows 1 --methods tova": "evaluate.likelihood.rate",
    "plan --methods full;tova --prompt 64 --length 64": "planning.most_entries",
    "view OUT --trace TRACE --methods full;tova --budget 30": "viewing.record_replay",
}


@pytest.mark.parametrize("typed", [*STOPPED, f"{COMPARE} --methods full;knorm --report OUT"])
def test_ctrl_c_says_what_there_is_and_leaves_no_folder(typed, noise_file, tmp_path, monkeypatch):
    """The key is pressed when the second row begins."""

    def first_of(jobs, workers):
        yield from compare.in_this_process(islice(jobs, 1))
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "in_processes", first_of)
    if typed in STOPPED:
        module, _, name = f"kvlab.fast.lab.{STOPPED[typed]}".rpartition(".")
        real, calls = getattr(import_module(module), name), iter((False, True))

        def interrupted(*arguments, **options):
            if next(calls):
                raise KeyboardInterrupt
            return real(*arguments, **options)

        monkeypatch.setattr(f"{module}.{name}", interrupted)
    places = {"TRACE": noise_file, "OUT": tmp_path / "made" / "deep" / "out"}
    found = typed_in(typed, places)
    assert found.exit_code == 130, (found.output, found.exception)
    assert "stopped: 1 row printed, no file written" in found.stderr
    assert [line for line in found.stdout.splitlines() if line.startswith(("full", "knorm"))]
    assert not (tmp_path / "made").exists()


def test_processes_never_see_ctrl_c():
    with process_pool(1) as submit:
        assert signal.SIGINT in submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
