"""Commands as they are typed: what they print, and how they refuse."""

import json

import pytest

from kvlab.fast.lab.start import main
from kvlab.fast.lab.sweep import compare
from support import running


@pytest.fixture(autouse=True)
def unfinished(tmp_path_factory, monkeypatch):
    """Keep steps of stopped commands where no other test finds them; return the folder."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("kvlab.fast.lab.loop.cache_directory", lambda: place)
    return place / "unfinished"


@pytest.fixture
def computed_once(monkeypatch):
    """Let a comparison that was printed as data not be computed anew for people."""
    real, kept = compare.in_this_process, {}

    def engine(jobs, **how):
        jobs = list(jobs)
        missing = [job for job in jobs if job.id not in kept]
        for job, found in real(missing, **how) if missing else ():
            kept[job.id] = found
        yield from ((job, kept[job.id]) for job in jobs)

    monkeypatch.setattr(compare, "in_this_process", engine)


@pytest.fixture(scope="session")
def printed():
    return running.printed


@pytest.fixture(scope="session")
def data():
    return lambda *arguments: json.loads(running.printed(*arguments, "--json"))


@pytest.fixture
def refusal(monkeypatch, capfd):
    """Run a command that must be refused; return the one line that it prints."""

    def refused(*arguments):
        monkeypatch.setattr("sys.argv", ["kvlab", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        said = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
        assert stop.value.code == 2
        (line,) = [line for line in said if line.startswith("kvlab: ")]
        assert said[-1] == line and "Traceback" not in line
        return line

    return refused
