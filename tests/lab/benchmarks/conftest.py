"""Benchmarks run as commands; one result that several tests look at."""

import json

import pytest
import typer
from typer.testing import CliRunner

from kvlab.fast.lab.benchmarks import end_to_end


def invoke(main, *arguments):
    """Run a benchmark as a command."""
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


@pytest.fixture(name="invoke")
def fixture_invoke():
    return invoke


@pytest.fixture(scope="session")
def whole_generations(tmp_path_factory):
    """Path and content of what `end_to_end` wrote of a tiny model."""
    path = tmp_path_factory.mktemp("end_to_end") / "result.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_to_end, "WARM_UP", 16)  # no kernel is compiled for a tiny model
        done = invoke(end_to_end.main, "--small", "--out", str(path))
    assert done.exit_code == 0, done.output
    return path, json.loads(path.read_text())
