"""The board: figures follow from a row's units, and what does not hold is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.fast.lab import board
from kvlab.fast.lab.evaluate.pairs import mcnemar
from kvlab.fast.lab.sweep.jobs import Result
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.run import Stored
from support.running import invoke, printed

ALONE = ("full", "h2o", "random")
PLANS = {x: make_plan(board.sweep_of("jumps", [x], None, None)) for x in ("h2o", "rpc")}
SOLVED = {"full": range(32), "h2o": range(24), "rpc": range(24), "random": range(20, 32)}


def made(job, after=100, **known):
    """Make up the units of a job: 100 written tokens after a prompt of 500."""
    own = {"job": job.id, "budget": job.budget, "prompt_tokens": 500, "tokens": 100, "nbytes": 9.0}
    own |= {name: getattr(job, name) for name in ("model", "task", "seed", "method")}
    own["after_eviction"] = 0 if job.method == "full" else after
    solved = SOLVED[job.method.partition(":")[0]]
    return [Result(problem=n, solved=n in solved, **own | known) for n in range(job.count)]


def row(after=100, method="h2o"):
    results = [unit for job in PLANS[method].jobs() for unit in made(job, after)]
    stored = Stored(PLANS[method], results, directory=Path(), run={"command": "kvlab"})
    return board.row_of(stored, "jumps", method)


def test_figures_by_hand(tmp_path):
    """Of 32 programs H2O alone solves 20, its control alone 8: (20 − 8)/32 more. RPC, which has no
    budget, has one line."""
    found = row()
    assert [each.budget for each in found.figures] == board.PROTOCOL["sweep"]["budgets"]
    for each in found.figures:
        assert (each.units, each.mean, each.control, each.gain) == (32, 24 / 32, 12 / 32, 12 / 32)
        assert each.p == mcnemar(20, 8) and each.low < each.gain < each.high
        assert (each.after_eviction, each.tokens, each.full_tokens, each.nbytes) == (1, 100, 100, 9)
    (own,) = row(method="rpc").figures
    assert (own.budget, own.gain, own.after_eviction) == ("own rule", 12 / 32, 1)
    again = board.read(board.write(found, tmp_path))
    assert again == found and not [*board.faults(again)]


def with_sweep(found, **changed):
    return replace(found, plan=replace(found.plan, sweep=replace(found.plan.sweep, **changed)))


FAULTS = {
    "mean = 0.9 at 20%, where its results give 0.75": lambda x: replace(
        x, figures=[replace(x.figures[0], mean=0.9), *x.figures[1:]]
    ),
    "protocol 0, where today's is 1": lambda x: replace(x, protocol=0),
    "a sweep that is not the protocol's": lambda x: with_sweep(x, problems=31),
    "h2o without its matched control, random:h2o": lambda x: with_sweep(x, methods=ALONE),
    "without results of random:h2o": lambda x: replace(x, results=x.results[:-32]),
    "only 80 %, not 90 %, of the tokens come after an eviction": lambda x: row(after=80),
    "nothing was evicted": lambda x: replace(
        x, results=[replace(each, after_eviction=0) for each in x.results]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_does_not_hold_is_refused(fault):
    assert any(fault in each for each in board.faults(FAULTS[fault](row())))


def test_what_is_done_again_must_agree(monkeypatch):
    monkeypatch.setattr(board, "do_job", lambda job: made(job, seconds_per_token=1.0))
    found = row()
    assert not [*board.do_again(found, 1, lambda *done: None)]
    found.results[40] = replace(found.results[40], solved=None)
    (told,) = board.do_again(found, 1, lambda *done: None)
    assert told.startswith("solved = None of unit")
    assert board.agrees(0.1, 0.10001) and not board.agrees(0.1, 0.2)


SHORT = {"models": ["jumps"], "tasks": ["jumps@fewest=3,most=4"], "measured": 1}


def test_a_row_is_measured_checked_and_refused_by_command(monkeypatch, tmp_path):
    monkeypatch.setitem(board.PROTOCOL, "sweep", {"budgets": ["20%"], "problems": 2, "batch": 1})
    monkeypatch.setitem(board.PROTOCOL, "least_units", 2)
    monkeypatch.setitem(board.TASKS, "jumps", SHORT)
    told = printed("board", "run", "--methods", "h2o", "--out", tmp_path)
    (file,) = tmp_path.glob("*.json")
    assert f"row: {file}" in " ".join(told.split())
    (found,) = board.read(file).figures
    mean, most, full = found.mean_nbytes or 0, found.nbytes or 0, found.full_nbytes or 0
    assert 0 < mean <= most < full
    assert "done again, agree" in printed("board", "check", file, "--share", 1)
    text = file.read_text().replace('"units": 2', '"units": 200')
    file.write_text(text.replace(board.digest("h2o"), "0"))
    refused = invoke("board", "check", file)
    assert refused.exit_code == 1 and "h2o's source is not the one" in refused.stderr


def test_a_failed_job_is_said_by_the_exit_code(monkeypatch, tmp_path):
    monkeypatch.setitem(board.TASKS, "jumps", SHORT)
    monkeypatch.setattr("kvlab.fast.lab.sweep.jobs.do_job", lambda job: 1 / 0)
    failed = invoke("board", "run", "--methods", "h2o", "--out", tmp_path)
    assert failed.exit_code == 1 and "failed: h2o" in failed.stderr
