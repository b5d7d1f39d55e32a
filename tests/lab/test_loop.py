"""Long work goes on where it was stopped, and says meanwhile what it does."""

import os
import signal
from contextlib import suppress
from functools import partial

import pytest
from rich.console import Console

from kvlab.fast.lab import files, terminal
from kvlab.fast.lab.loop import Step, kept, run_all, until_stopped
from kvlab.fast.lab.sweep import jobs as doing
from kvlab.reference.simulator.trace import load_trace
from support.running import invoke
from support.shapes import shapes_checked

COMPARE = "compare --problems 1 --task jumps@fewest=3,most=4 --budget 60% --no-controls "
COMPARE += "--methods full;knorm;tova --workers 1"


def test_a_work_that_is_stopped_goes_on_and_another_one_does_not(unfinished, capsys):
    def work(until, **asked):
        done = []

        def do(number):
            if number == until:
                raise KeyboardInterrupt
            done.append(number)

        with kept("work", **asked) as store:
            run_all([Step(str(number), partial(do, number)) for number in range(4)], store)
        return done

    with pytest.raises(KeyboardInterrupt) as stop:
        work(2, size=1)
    (file,) = unfinished.iterdir()
    assert stop.value.__notes__ == [f"2 steps kept in {file}: the same command goes on from there"]
    with pytest.raises(KeyboardInterrupt):
        work(0, size=3)
    assert work(None, size=2) == [0, 1, 2, 3]
    assert [*unfinished.iterdir()] == [file]
    older = unfinished / "work-0123456789abcdef"
    older.write_bytes(b"a pickle")
    assert work(None, size=1) == [2, 3]
    said = capsys.readouterr().err
    assert f"going on after 2 steps in {file}" in said
    assert f"{older} was left by an older kvlab" in said
    assert work(None, size=1) == [0, 1, 2, 3]
    assert [*unfinished.iterdir()] == [older] and older.read_bytes() == b"a pickle"


def test_files_that_changed_meanwhile_are_read_anew(unfinished, tmp_path):
    """Weights in a folder, or a task's file, under the same name."""
    done, weights = [], tmp_path / "model" / "weights"
    weights.parent.mkdir()

    def work():
        with kept("work", model=str(weights.parent), how={"tasks": [tmp_path]}) as store:
            run_all([Step("row", lambda: done.append(weights.read_text()))], store)
            raise KeyboardInterrupt

    for text in ("one", "one", "two", "one"):
        if not weights.exists() or weights.read_text() != text:
            weights.write_text(text)
        with pytest.raises(KeyboardInterrupt):
            work()
    assert done == ["one", "two", "one"]


@pytest.mark.slow
def test_a_comparison_does_only_the_jobs_that_are_missing(monkeypatch):
    done = []

    def in_one(jobs, workers, most):
        for number, (job, found) in enumerate(doing.in_this_process(jobs)):
            if number == most:
                raise KeyboardInterrupt
            done.append(job.method)
            yield job, found

    results = []
    for most in (1, None):
        engine = partial(in_one, most=most)
        monkeypatch.setattr("kvlab.fast.lab.sweep.compare.in_processes", engine)
        with shapes_checked(False):
            results.append(invoke(*COMPARE.split()))
    stopped, whole = results
    assert (stopped.exit_code, whole.exit_code) == (terminal.STOPPED, 0)
    assert "1 step kept" in " ".join(stopped.stderr.split())
    assert sorted(done) == ["full", "knorm", "tova"]
    assert all(name in whole.stdout for name in done)


def test_a_trace_that_is_stopped_holds_what_was_written(tmp_path, monkeypatch):
    from kvlab.fast.lab import generation

    def put(self, value, real=generation.TokenTimer.put):
        real(self, value)
        if len(self.times) == 4:  # the prompt and three tokens
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(generation.TokenTimer, "put", put)
    out = tmp_path / "trace.npz"
    found = invoke("trace", "--max-new-tokens", 40, "-o", out)
    assert found.exit_code == terminal.STOPPED
    assert f"tokens recorded in {out}" in " ".join(found.stderr.split())
    trace = load_trace(out)
    assert 0 < trace.shape[3] - trace.prompt < 6


def test_the_second_ctrl_c_stops_at_once():
    with until_stopped("token") as stopped, suppress(KeyboardInterrupt):
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("was not stopped")


def test_lines_say_what_goes_on_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "SILENT", 0.01)
    said = []
    monkeypatch.setattr(terminal, "print_aside", said.append)
    with terminal.progress_bar() as progress:
        progress(3, 9, "h2o [at] 50%")
        while "3 of 9: h2o [at] 50%" not in said:
            pass
    with terminal.working("loading"):
        while "loading" not in said:
            pass
    monkeypatch.setattr(terminal, "errors", Console(stderr=True, force_terminal=True))
    said.clear()
    with terminal.progress_bar() as progress:
        progress(3, 9, "h2o")
    assert said == []


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    files.write_text(path, "old")
    link = tmp_path / "link"
    link.symlink_to(path)
    files.write_text(link, "new")
    assert path.read_text() == "new" and link.is_symlink()

    def pressed(file):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", pressed)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(path, "half")
    assert path.read_text() == "new"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "report.html"]
