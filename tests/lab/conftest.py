"""Commands as they are typed: what they print, and how they refuse."""

import json

import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.start import main


@pytest.fixture(autouse=True)
def unfinished(tmp_path_factory, monkeypatch):
    """Keep steps of stopped commands where no other test finds them; return the folder."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("kvlab.fast.lab.steps.cache_directory", lambda: place)
    return place / "unfinished"


def run(*arguments):
    """Run a command that must succeed; return what it prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, str(result.exception))
    return result.stdout


@pytest.fixture(scope="session")
def printed():
    return run


@pytest.fixture(scope="session")
def data():
    return lambda *arguments: json.loads(run(*arguments, "--json"))


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
