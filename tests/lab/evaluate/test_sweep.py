"""Sweeps in one process: what is asked, what is kept, what is done again."""

import json
import os
import shutil
import sys
import tomllib
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from kvlab.fast.lab.evaluate import backends
from kvlab.fast.lab.evaluate.backends import fingerprint
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.store import Store
from kvlab.fast.lab.sweep import jobs as doing, kept
from kvlab.fast.lab.sweep.design import make_sweep, only, read_sweep
from kvlab.fast.lab.sweep.jobs import Failure, in_this_process
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.published import write_parquet
from kvlab.fast.lab.sweep.run import (
    FAILURES,
    PLAN,
    RESULTS,
    choose_engine,
    read_rows,
    read_stored,
    run_sweep,
)
from kvlab.fast.lab.sweep.summary import summarise
from kvlab.reference import methods
from kvlab.reference.methods import read
from kvlab.reference.models import reasoner_directory
from support.outside import SOURCE, methods_named, write_files
from support.running import invoke
from support.sweeping import SMALL, kvlab, results, short_sweep, wait_until
from support.tables import cases

REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))
FOUND = {}
"""What was found for the jobs of `small`."""


def recorded(jobs):
    for job, found in in_this_process(jobs):
        FOUND[job.id] = found
        yield job, found


def again(jobs, most=None, failing=()):
    """Find again what was recorded, until it is stopped; fail at some methods."""
    for number, job in enumerate(jobs):
        if number == most:
            raise KeyboardInterrupt
        yield job, Failure("broken") if job.method in failing else FOUND[job.id]


def with_dtype(plan, dtype):
    return replace(plan, subjects=tuple(replace(each, dtype=dtype) for each in plan.subjects))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A plan, and a directory in which it was run undisturbed."""
    directory = tmp_path_factory.mktemp("sweep")
    (directory / "sweep.toml").write_text(SMALL)
    plan = make_plan(read_sweep(directory / "sweep.toml"))
    ran = run_sweep(plan, directory, recorded)
    assert (ran.done, ran.total, ran.failures) == (16, 16, ())
    return plan, directory


# --- jobs ----------------------------------------------------------------------------------------


def test_a_sweep_is_cut_into_jobs(small):
    plan, _ = small
    jobs = list(plan.jobs())
    (subject,) = plan.subjects
    assert (subject.model, subject.part.task) == ("jumps", "jumps@fewest=3,most=4")
    assert subject.budgets == {"40%": 49}
    assert [(job.method, job.budget) for job in jobs if job.seed == 3 and job.first == 0] == [
        ("full", None),
        *((method, 49) for method in ("h2o", "raas", "nacl")),
    ]
    assert [job.seed for job in jobs] == [0] * 8 + [3] * 8
    assert [job.measured for job in jobs if job.method == "full"] == [1, 0] * 2
    assert len({job.id for job in jobs}) == 16


def test_an_id_changes_with_all_that_results_depend_on(small):
    job = next(small[0].jobs())
    changes = {
        "backend": "fast",
        "fingerprint": "0",
        "task": "reasoning@variables=16",
        "seed": 1,
        "method": "h2o",
        "budget": 7,
        "first": 1,
        "count": 2,
        "measured": 0,
        "kvlab": "0.0.1",
        "outside": "another source",
        "device": "NVIDIA H100",
        "dtype": "bfloat16",
        "versions": "numpy 1.0",
        "library": "kvpress 0.5.5",
    }
    changed = [replace(job, **{name: value}).id for name, value in changes.items()]
    assert len({job.id, *changed}) == len(changes) + 1
    assert replace(job, model="elsewhere").id == job.id


def test_what_was_computed_elsewhere_or_otherwise_is_not_taken(tmp_path, monkeypatch):
    sweep = short_sweep()
    plan, here = make_plan(sweep), backends.device_here("fast")
    packages = f"torch {version('torch').partition('+')[0]}, transformers {version('transformers')}"
    assert (plan.device, plan.subjects[0].dtype, plan.versions) == (here, "float32", packages)
    assert run_sweep(plan, tmp_path, in_this_process).done == 1
    monkeypatch.setattr(backends, "device_here", lambda *asked: "NVIDIA H100")
    for changed, message in (
        (make_plan(sweep), f"device of jumps is {here} here, and the plan's NVIDIA H100"),
        (with_dtype(plan, "float16"), "number format of jumps is float32 here, and"),
        (replace(plan, versions="torch 9, transformers 9"), None),
        (plan, None),
    ):
        ran = run_sweep(changed, tmp_path, in_this_process)
        if message:
            ((_, failure),) = ran.failures
            assert message in failure.reason
        else:
            assert ran.done == (changed is not plan)


def test_workers_share_the_devices_of_a_sweep_and_load_its_format_once(tmp_path, monkeypatch):
    usual, on_one, fine = (
        make_plan(short_sweep(problems=2, batch=1, **more))
        for more in ({}, {"device": "cpu"}, {"dtype": "float64", "device": "cpu,cpu:0"})
    )
    ids = [[job.id for job in plan.jobs()] for plan in (usual, on_one, fine)]
    assert ids[0] == ids[1] and not {*ids[0]} & {*ids[2]}
    assert (fine.device, fine.subjects[0].dtype, fine.sweep.workers) == ("cpu", "float64", 2)
    loaded, places = [], []
    for number in range(3):
        monkeypatch.setattr(kept, "number", number)
        places.append(kept.place_of(next(fine.jobs()))[2:])
    assert places == [("float64", device, None) for device in ("cpu", "cpu:0", "cpu")]
    monkeypatch.setattr(
        kept, "load_backend", lambda *how: loaded.append(how[2:]) or backends.load_backend(*how)
    )
    assert run_sweep(fine, tmp_path, in_this_process).done == 2
    assert loaded == places[:1]


def test_a_model_of_the_hub_is_one_revision_of_it(monkeypatch):
    at = "kvlab.fast.lab.evaluate.backends.stored_directory"
    monkeypatch.setattr(at, lambda name: "/hub/snapshots/0123abc" if "some" in name else None)
    assert fingerprint("some/model") == fingerprint("some/model@main") == "some/model@0123abc"
    assert fingerprint("other/model") == "other/model"


def test_only_methods_that_draw_are_given_the_seed():
    assert read("nacl").seeded(5) == "nacl@seed=5"
    assert read("nacl@sinks=2").seeded(5) == "nacl@sinks=2,seed=5"
    assert read("nacl@seed=1").seeded(5) == "nacl@seed=1"
    assert read("h2o@every=16").seeded(5) == "h2o@every=16"


@pytest.mark.parametrize(("line", "message"), REFUSED["sweep"].items())
def test_a_wrong_sweep_is_refused_in_one_line(line, message, tmp_path, refusal):
    names = {"pairs", *(each.partition(" ")[0] for each in line.splitlines())}
    kept = [each for each in SMALL.splitlines() if each.partition(" ")[0] not in names]
    path = tmp_path / "sweep.toml"
    path.write_text("\n".join([line, *kept]))
    assert message in refusal("sweep", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / PLAN).exists()


def test_a_method_that_fits_one_of_the_budgets_is_run():
    sweep = {"methods": ["h2o@recent=55"], "problems": 1, "backend": "reference"}
    make_plan(make_sweep({**sweep, "budgets": [50, 60]})).check_methods()


def test_two_names_of_one_model_are_refused(tmp_path):
    other = tmp_path / "copy"
    shutil.copytree(reasoner_directory(), other)
    sweep = {"methods": ["full"], "budgets": [], "problems": 1, "backend": "reference"}
    for names in (["reasoner", str(other)], ["reasoner", str(reasoner_directory())]):
        with pytest.raises(ValueError, match="models names one model twice: 'reasoner' and '/"):
            make_plan(make_sweep({**sweep, "models": names}))
    (other / "README.md").write_text("more")
    assert fingerprint(str(other)) == fingerprint(str(reasoner_directory()))
    with (other / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    plan = make_plan(make_sweep({**sweep, "models": ["reasoner", str(other)]}))
    assert len({each.fingerprint for each in plan.subjects}) == 2


def test_a_key_that_is_needed_is_asked_for_and_one_of_all_tasks_refused():
    table = {"task": "jumps", "dtype": "float32"}
    with pytest.raises(ValueError, match=r"'dtype' holds for all tasks .* task, models, seeds, .*"):
        make_sweep({"methods": ["h2o"], "budgets": [40], "problems": 2, "tasks": [table]})
    with pytest.raises(ValueError, match="key 'budgets' is missing"):
        make_sweep({"methods": ["h2o"], "problems": 1})


@cases(__file__, "an_engine_has_a_process_for_each_device", "device asked workers")
def test_an_engine_has_a_process_for_each_device(device, asked, workers):
    engine, place = choose_engine(short_sweep(device=device), workers=asked)
    assert place is None and (engine is in_this_process) == (workers is None)
    assert getattr(engine, "keywords", {}) == ({} if workers is None else {"workers": workers})


@cases(__file__, "wrong_engines_are_refused", "sweep asked said")
def test_wrong_engines_are_refused(sweep, asked, said):
    with pytest.raises(ValueError, match=said):
        choose_engine(short_sweep(**sweep), **asked)


# --- what a job finds ----------------------------------------------------------------------------


def test_every_problem_has_a_row(small):
    rows = results(small[1])
    assert len(rows) == 16
    by_method = {}
    for row in rows:
        by_method.setdefault((row.method, row.budget), []).append(row)
    assert all(row.solved for row in by_method["full", None])
    assert all("budget = 49" in row.refusal for row in by_method["raas", 49])
    assert all(row.solved is None for row in by_method["raas", 49])
    measured = [row for row in by_method["h2o", 49] if row.problem == 0]
    assert [row.entries for row in measured] == [49, 49]
    assert all(row.output_error is None for row in by_method["h2o", 49] if row.problem)


# --- what is kept --------------------------------------------------------------------------------


def test_a_rerun_does_nothing_and_a_larger_sweep_only_what_is_new(small, tmp_path):
    plan, directory = small
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    ran = run_sweep(plan, tmp_path, recorded)
    assert (ran.done, ran.total) == (0, 16)
    assert results(tmp_path) == results(directory)
    methods = ("full", "streaming_llm")
    wider = replace(plan, sweep=replace(plan.sweep, methods=methods, pairs=()))
    ran = run_sweep(wider, tmp_path, partial(again, failing=methods))
    assert [job.method for job, _ in ran.failures] == ["streaming_llm"] * 4


def test_a_failed_job_is_named_and_tried_again(small, tmp_path):
    plan, directory = small
    ran = run_sweep(plan, tmp_path, partial(again, failing=("nacl",)))
    assert [job.method for job, _ in ran.failures] == ["nacl"] * 4
    written = tmp_path / FAILURES / f"{ran.failures[0][0].id}.txt"
    assert "broken" in written.read_text(), "until the job is done"
    points = [p for task in summarise(read_stored(tmp_path)) for p in task.points]
    assert {p.method for p in points if p.failed and "broken" in (p.refusal or "")} == {"nacl"}
    assert run_sweep(plan, tmp_path, again).done == 4 and not written.exists()
    assert results(tmp_path) == results(directory)


def test_an_error_in_code_is_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(doing, "_solve", lambda job, questions: [{}, {}])
    ((job, failure),) = run_sweep(make_plan(short_sweep()), tmp_path, in_this_process).failures
    assert failure.reason.startswith("zip()") and read_stored(tmp_path).missing() == [job]


def test_a_process_that_is_killed_fails_its_job_and_others_do_the_rest(
    small, tmp_path, monkeypatch
):
    """A stand-in for processes, of which the second is killed while it does RaaS."""
    pools = []

    @contextmanager
    def pool(workers, **options):
        pools.append([])

        def submit(attempt, job):
            if len(pools) == 1 and "raas" in pools[0]:
                raise BrokenProcessPool
            pools[-1].append(job.method)
            future = Future()
            if job.method == "raas" and len(pools) == 1:
                future.set_exception(BrokenProcessPool())
            else:
                future.set_result(FOUND[job.id])
            return future

        yield submit

    monkeypatch.setattr(doing, "process_pool", pool)
    ran = run_sweep(small[0], tmp_path, partial(doing.in_processes, workers=2))
    assert [(job.method, failure.reason[:20]) for job, failure in ran.failures] == [
        ("raas", "a process was killed")
    ]
    assert (ran.done, len(pools)) == (15, 2)
    assert len(results(tmp_path)) == 15


def test_what_an_older_kvlab_has_left_counts_and_is_named(small, tmp_path, capsys):
    """Files of Parquet, and one that it did not finish."""
    plan, directory = small
    older = tmp_path / "results"
    older.mkdir()
    first, *_ = found = {row.job: row for row in results(directory)}
    write_parquet([row for row in results(directory) if row.job != first], older / "x.parquet")
    half = older / "y.parquet.1.unfinished"
    half.write_bytes(b"PAR1")
    ran = run_sweep(plan, tmp_path, again)
    assert (ran.done, ran.total, len(found)) == (1, 16, 16)
    assert [row.written for row in results(tmp_path)] == [row.written for row in results(directory)]
    assert half.is_file() and f"{half} was left by an older kvlab" in capsys.readouterr().err
    half.rename(older / "y.parquet")
    with pytest.raises(ValueError, match=r"y\.parquet holds no results of a sweep .*; delete it"):
        run_sweep(plan, tmp_path, again)


def test_a_sweep_that_is_stopped_before_its_first_job_leaves_no_folder(
    small, tmp_path, monkeypatch
):
    def pressed(plan, directory):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvlab.fast.lab.sweep.run._write_plan", pressed)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(small[0], tmp_path / "new" / "deep", again)
    assert [*tmp_path.iterdir()] == []


def test_a_stored_sweep_says_how_it_was_run(small):
    stored = read_stored(small[1])
    assert stored.plan == small[0]
    assert stored.missing() == []
    assert {"python", "commit", "kvlab", "pyarrow"} <= stored.run["versions"].keys()
    assert stored.run["command"].startswith("kvlab")
    assert stored.plan.provenance == {
        "device": "cpu",
        "computed with": f"numpy {version('numpy')}",
        "number format of jumps": "float64",
    }
    before = replace(with_dtype(stored.plan, ""), device="", versions="")
    assert set(before.provenance.values()) == {"not recorded"}


@pytest.mark.parametrize("text", ["[{", '[{"later": 1}]'])
def test_a_row_that_cannot_be_read_is_named_with_its_file(small, tmp_path, text):
    shutil.copytree(small[1], tmp_path, dirs_exist_ok=True)
    with closing(Store(tmp_path / RESULTS)) as store:
        item, *_ = store.rows()
        store.keep(item, text)
    with pytest.raises(ValueError, match=rf"{RESULTS}: the row of {item} cannot be read"):
        read_stored(tmp_path)


def test_a_report_needs_no_file_of_problems(tmp_path):
    path, line = tmp_path / "own.jsonl", '{"prompt": "a", "answer": "b"}\n'
    path.write_text(line)
    plan = make_plan(short_sweep(methods=["full"], tasks=[str(path)]))
    run_sweep(plan, tmp_path, in_this_process)
    path.unlink()
    find_task.cache_clear()
    assert len(read_stored(tmp_path).rows) == 1


def test_a_plan_that_is_damaged_or_older_is_refused(tmp_path):
    for written in ("{}", '{"plan": {"entries": {}}, "run": {}}'):
        (tmp_path / PLAN).write_text(written)
        with pytest.raises(ValueError, match=r"plan\.json is damaged, or .* older kvlab .*again"):
            read_stored(tmp_path)


# --- methods from outside ------------------------------------------------------------------------


@pytest.mark.slow
def test_changed_code_of_outside_methods_is_run_again(tmp_path):
    """Jobs of kvlab's own methods are not, and each version of the code keeps its results."""
    files, found, done = write_files(tmp_path), [], []
    changed = SOURCE.replace('(state.entries["looks"] + 1) /', "age + 0 *")
    wanted = {"methods": ["tova", "caote:looks"], "budgets": [60], "measured": 1}
    for source in (SOURCE, changed, SOURCE):
        files[-1].write_text(source)
        with methods_named(*files):
            plan = make_plan(short_sweep(**wanted, backend="reference"))
            done.append(run_sweep(plan, tmp_path, in_this_process).done)
            stored = read_stored(tmp_path)
        found.append({row.method: row.output_error for row in stored.rows})
    assert done == [2, 1, 0]
    assert found[0] == found[2] and found[0]["tova"] == found[1]["tova"]
    assert found[0]["caote:looks"] != found[1]["caote:looks"] is not None
    assert stored.plan.outside and stored.run["KVLAB_METHODS"] == ":".join(map(str, files))
    with pytest.raises(
        ValueError, match=r"unknown method 'looks'.*last run had KVLAB_METHODS=.*py"
    ):
        read_stored(tmp_path)


def test_what_a_file_imports_from_its_folder_is_part_of_its_source(tmp_path):
    files, hashes = write_files(tmp_path), []
    for each in (None, *files):
        if each is not None:
            each.write_text(each.read_text() + "# another line")
        with methods_named(files[0]):
            hashes.append(methods.discover())
        for imported in ("looks", "pyramid"):
            sys.modules.pop(imported)
    assert len(set(hashes)) == 4


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def common(tmp_path):
    """The command that runs one job."""
    path = tmp_path / "one.toml"
    path.write_text('methods = ["full"]\nbudgets = []\nproblems = 1\nbackend = "reference"\n')
    return ["sweep", str(path), "--out", str(tmp_path / "out")]


def test_the_command_runs_and_says_what_it_did(common, data):
    assert [data(*common)["done now"] for _ in range(2)] == [1, 0]


def test_the_command_runs_some_methods_of_the_file_only(
    common, data, refusal, tmp_path, monkeypatch
):
    monkeypatch.setattr(doing, "do_job", lambda job: [])
    (tmp_path / "one.toml").write_text(
        'methods = ["full", "h2o", "tova"]\nbudgets = [200]\nproblems = 1\n'
        'pairs = [["h2o", "tova"], ["full", "h2o"]]\ncurves = ["tova"]\n'
    )
    assert data(*common, "--methods", "full; h2o")["jobs"] == 2
    whole = read_sweep(tmp_path / "one.toml")
    assert read_stored(tmp_path / "out").plan.sweep == whole
    sweep = only(whole, ("h2o", "full"))
    assert (sweep.methods, sweep.pairs, sweep.curves) == (("full", "h2o"), (("full", "h2o"),), ())
    assert "methods names 'raas'" in refusal(*common, "--methods", "raas")


def test_what_libraries_print_does_not_reach_stdout(common, monkeypatch):
    def chatter(job):
        print("(raylet) A worker died")
        return []

    monkeypatch.setattr(doing, "do_job", chatter)
    found = invoke(*common, "--json")
    assert json.loads(found.stdout)["done now"] == 1
    assert "(raylet) A worker died" in found.stderr


def children(process: int) -> set[Path]:
    """Return the processes that a process has started, but for that which cleans up after it."""
    stats = [path for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    of = {path.parent: path.read_text().rpartition(")")[2].split()[1] for path in stats}
    mine = {path for path, parent in of.items() if parent == str(process)}
    return {path for path in mine if b"spawn_main" in (path / "cmdline").read_bytes()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read in /proc")
def test_a_killed_sweep_leaves_no_process_behind(small, tmp_path):
    _, directory = small
    command = ("sweep", str(directory / "sweep.toml"), "--out", str(tmp_path / "out"))
    with kvlab(*command, "--workers", "2") as process:
        wait_until(lambda: read_rows(tmp_path / "out"))  # they are at work
        left = children(process.pid)
        process.kill()
        process.wait()
    assert len(left) == 2
    wait_until(lambda: not any(map(Path.exists, left)), seconds=60)


def test_ctrl_c_is_clean_and_the_same_command_goes_on(small, tmp_path, monkeypatch):
    _, directory = small
    out, engine = tmp_path / "out", "kvlab.fast.lab.sweep.run.in_this_process"
    command = ("sweep", str(directory / "sweep.toml"), "--out", str(out))
    monkeypatch.setattr(engine, partial(again, most=2))
    stopped = invoke(*command)
    assert (stopped.exit_code, len(results(out))) == (130, 2)
    assert "nothing that was done is lost" in " ".join(stopped.stderr.split())
    monkeypatch.setattr(engine, again)
    assert invoke(*command).exit_code == 0
    assert results(out) == results(directory)
