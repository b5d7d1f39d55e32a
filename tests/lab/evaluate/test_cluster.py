"""Sweeps on a Ray cluster of two nodes on this machine, in which processes are killed."""

import json
import os
import signal
import socket
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from support.outside import methods_named, write_files
from support.sweeping import SMALL, Gate, finished, kvlab, results, wait_until

pytest.importorskip("ray", reason="Ray is in the extra 'sweep'")

from ray.exceptions import RayTaskError, WorkerCrashedError

from kvlab.fast.lab.sweep import cluster
from kvlab.fast.lab.sweep.design import read_sweep
from kvlab.fast.lab.sweep.jobs import Failure, attempt
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.run import read_stored
from kvlab.reference import methods

pytestmark = pytest.mark.slow

TITLE = b"ray::run_job"


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes with a core each; nothing but the commands below connects to it."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A sweep, and the results of running it in one process."""
    directory = tmp_path_factory.mktemp("undisturbed")
    path = directory / "sweep.toml"
    path.write_text(SMALL)
    finished("sweep", str(path), "--out", str(directory))
    return path, results(directory)


def workers(made) -> list[int]:
    """Process ids of the sweep's workers on the nodes of a cluster."""
    raylets = {
        process.process.pid
        for node in made.list_all_nodes()
        for process in node.all_processes["raylet"]
    }
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            title = (directory / "cmdline").read_bytes()
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if title.startswith(TITLE) and parent in raylets:
            found.append(int(directory.name))
    return found


@pytest.fixture
def held(tmp_path):
    """A gate before the jobs of the cluster, and the lines that put it there."""
    gate = Gate(tmp_path / "gate")
    return gate, gate.holding("cluster")


def test_a_killed_worker_is_replaced_and_nothing_is_lost(nodes, undisturbed, held, tmp_path):
    (path, expected), (gate, lines) = undisturbed, held
    out = tmp_path / "out"
    command = ("sweep", str(path), "--out", str(out), "--engine", "ray", "--json")
    with kvlab(*command, before=lines, RAY_ADDRESS=nodes.address) as process:
        gate.wait_until_held(process, workers=2)
        victims = workers(nodes)
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        wait_until(lambda: process.poll() is not None or set(workers(nodes)) - set(victims))
        gate.open()
        printed, said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    assert "16/16" in said
    assert json.loads(printed)["jobs"] == 16  # what Ray says of the dead worker is not among it
    assert results(out) == expected


def processes_of_ray(ancestor: int) -> set[Path]:
    """Return the processes below one, which are Ray's; they stay in the set when it has ended."""
    found, parents = {ancestor}, {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (directory / "stat").read_text().rpartition(")")[2].split()
            parents[int(directory.name)] = int(stat[1])
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {Path(f"/proc/{number}") for number in found - {ancestor}}


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_ends_leaves_no_process_behind_and_its_sweep_goes_on(
    undisturbed, held, tmp_path, signalled
):
    """Without an address, on a cluster of its own."""
    (path, expected), (gate, lines), out = undisturbed, held, tmp_path / "out"
    command = ("sweep", str(path), "--out", str(out), "--engine", "ray", "--workers", "2")
    with kvlab(*command, before=lines, RAY_ADDRESS="") as process:
        gate.wait_until_held(process, workers=2)
        left = processes_of_ray(process.pid)
        assert len([x for x in left if (x / "cmdline").read_bytes().startswith(TITLE)]) == 2
        process.send_signal(signalled)
        process.communicate(timeout=900)
    wait_until(lambda: not any(map(running, left)), seconds=30)  # Ray's agents alone stay longer
    assert len(read_stored(out).missing()) > 0
    if signalled == signal.SIGKILL:
        finished(*command, RAY_ADDRESS="")
        assert results(out) == expected


def running(directory: Path) -> bool:
    """Say whether a process runs; one that has ended may wait for its parent."""
    with suppress(OSError):
        return (directory / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def deaf():
    """Give the address of a port at which nobody answers what is asked."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_cluster_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(cluster, "STARTING", 8.0)
    with deaf() as address:
        monkeypatch.setenv(cluster.ADDRESS, address)
        words = f"^RAY_ADDRESS = {address} cannot be reached: no answer within 8 seconds$"
        with pytest.raises(ConnectionError, match=words), cluster.connected():
            pass


ABORTS = """
import os, sys
def init(*arguments, **options):
    print("[2026 C 1 1] raylet died: no free memory\\n*** stack ***\\n" + "    frame\\n" * 45,
          file=sys.stderr, flush=True)
    os.abort()
"""


def test_ray_that_aborts_does_not_end_the_driver(tmp_path, monkeypatch):
    """A stand-in for it: the process that starts it is another one."""
    (tmp_path / "ray.py").write_text(ABORTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    words = r"^Ray cannot start here: .*no free memory$"
    with pytest.raises(ConnectionError, match=words), cluster.connected():
        pass


# --- without a cluster ---------------------------------------------------------------------------


class Cluster:
    """A cluster whose tasks all end as ``answer`` says; it counts them."""

    def __init__(self, answer):
        self.answer, self.tasks, self.cancel = answer, [], None

    def remote(self, *arguments, **options):
        if not arguments:
            return lambda function: self
        self.tasks.append(arguments[0])
        return len(self.tasks)

    def wait(self, references, **options):
        return references, []

    def get(self, reference):
        return self.answer(self.tasks[reference - 1])


@pytest.fixture
def run_on(monkeypatch, undisturbed):
    """Return a function that runs two jobs on a `Cluster`."""
    jobs = list(make_plan(read_sweep(undisturbed[0])).jobs())[:2]

    def run(answer):
        made = Cluster(answer)
        monkeypatch.setattr(cluster, "ray", made)
        monkeypatch.setattr(cluster, "gpus_per_worker", lambda gpus: 0)
        monkeypatch.setattr(cluster, "connected", nullcontext)
        return jobs, made, list(cluster.on_cluster(jobs, workers=1))

    return run


def test_a_job_that_kills_its_processes_is_given_up(run_on):
    died = []

    def answer(job):
        if not died or died[0] == job:
            died.append(job)
            raise WorkerCrashedError
        return ["row"]

    jobs, made, found = run_on(answer)
    failure = Failure(f"{cluster.MOST_DEATHS} processes died of it")
    assert found == [(jobs[0], failure), (jobs[1], ["row"])]
    assert made.tasks == [jobs[0]] * cluster.MOST_DEATHS + [jobs[1]]


@pytest.mark.parametrize(
    ("error", "seen", "message"),
    [
        (ModuleNotFoundError("kvlab"), ConnectionError, "cannot run kvlab: .*kvlab"),
        (ValueError("a worker of the cluster has kvlab 0"), ValueError, "has kvlab 0"),
    ],
)
def test_a_task_that_cannot_do_its_job_ends_the_sweep(run_on, error, seen, message):
    def answer(job):
        raise RayTaskError("run_job", str(error), error).as_instanceof_cause()

    with pytest.raises(seen, match=message):
        run_on(answer)


def test_a_cluster_that_is_not_there_is_refused_at_once(monkeypatch):
    monkeypatch.setenv(cluster.ADDRESS, "127.0.0.1:1")
    with (
        pytest.raises(ConnectionError, match=r"RAY_ADDRESS = 127\.0\.0\.1:1 cannot be reached"),
        cluster.connected(),
    ):
        pass


def test_a_worker_gets_a_gpu_where_there_are_any(monkeypatch):
    resources = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 5.0}},
        {"Alive": False, "Resources": {"CPU": 100.0, "GPU": 100.0}},
    ]
    monkeypatch.setattr("ray.nodes", lambda: resources)
    assert [cluster.gpus_per_worker(asked) for asked in (None, 0, 0.25, 2)] == [1, 0, 0.25, 2]
    with pytest.raises(ValueError, match="gpus = 3 per worker is more than a node of the cluster"):
        cluster.gpus_per_worker(3)
    monkeypatch.setattr("ray.nodes", lambda: resources[1:])
    assert cluster.gpus_per_worker(None) == 0


def test_a_worker_imports_the_methods_that_the_driver_names(tmp_path):
    *_, looks = write_files(tmp_path)
    with methods_named():
        given = cluster.relevant_versions(), str(looks)
        assert cluster.run_job(None, lambda job: methods.read("caote:looks").from_outside, *given)


def test_other_versions_are_refused():
    theirs = {**cluster.relevant_versions(), "kvlab": "0.0.1"}
    with pytest.raises(ValueError, match=r"a worker of the cluster has kvlab .*, not 0\.0\.1"):
        cluster.run_job(None, attempt, theirs, "")
