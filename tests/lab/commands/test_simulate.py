"""``kvlab simulate``, as it is typed."""

import json

import numpy as np
import pytest
from noise import noise
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app, main
from kvlab.reference import methods
from kvlab.reference.simulator.replay import replay
from kvlab.reference.simulator.trace import save_trace


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "noise.npz"
    save_trace(noise(), path)
    return path


def test_figures_are_those_of_the_replay(trace):
    arguments = ["simulate", str(trace), "--methods", "h2o full", "--budget", "12", "--budget"]
    result = CliRunner().invoke(app, [*arguments, "30%", "--workers", "1", "--json"])
    assert result.exit_code == 0, result.output
    small, large, full = json.loads(result.stdout)
    assert [small["budget"], large["budget"], full["budget"]] == [12, 21, None]
    fates = [one for (one,) in replay(noise(), [methods.get("h2o", 12)])]
    masses = [fate.mass[:, 20:].mean() for fate in fates]
    assert small["mass"] == pytest.approx(np.mean(masses))
    assert small["kilobytes"] == 2 * 2 * 12 * 16 * 2 / 1024
    assert small["mass"] < large["mass"] < full["mass"] == pytest.approx(1)
    assert 0 < small["skill"] < 1
    assert small["regret"] > large["regret"] > 0
    assert small["hits"] <= large["hits"] < full["hits"] == 1
    assert (full["entries"], full["error"]) == (70, pytest.approx(0))
    assert (full["skill"], full["premature"], full["refusal"]) == (None, None, None)


def test_the_table_names_every_method(trace):
    result = CliRunner().invoke(app, ["simulate", str(trace), "--methods", "h2o;tova"])
    assert result.exit_code == 0, result.output
    assert "noise: 20 tokens given, 50 generated" in result.stdout
    assert "tova" in result.stdout


def test_a_bound_gives_less_skill_than_the_best_keep_sets(trace):
    skills = []
    for way in ("--exact", "--bound"):
        arguments = ["simulate", str(trace), "--methods", "h2o", "--budget", "12", way, "--json"]
        (row,) = json.loads(CliRunner().invoke(app, arguments).stdout)
        skills.append(row["skill"])
    assert skills[0] > skills[1] > 0


def test_methods_that_do_not_fit_are_refused_in_their_row(trace):
    arguments = ["simulate", str(trace), "--methods", "raas tova kivi", "--budget", "12"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    raas, tova, kivi = json.loads(result.stdout)
    assert "budget = 12 must be at least the 20 entries" in raas["refusal"]
    assert "group = 32 must divide the head dimension 8" in kivi["refusal"]
    assert raas["mass"] is None
    assert tova["mass"] > 0


def test_the_report_shows_who_was_kept(trace, tmp_path):
    arguments = ["simulate", str(trace), "--methods", "h2o tova raas", "--budget", "12"]
    result = CliRunner().invoke(app, [*arguments, "--report", str(tmp_path / "r.html")])
    assert result.exit_code == 0, result.output
    html = (tmp_path / "r.html").read_text()
    assert html.count("<svg") == 3
    assert ">tova</td>" in html
    assert "budget = 12 must be at least the 20 entries" in html


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--methods", "nonsense"], "unknown method 'nonsense'"),
        (["--methods", " "], "methods must name at least one method"),
        (["--budget", "0"], "budget = '0' must be at least 1 entry"),
        (["--methods", "kivi@group=3"], "group"),
        (["--methods", "raas", "--budget", "12"], "no method could run; raas: budget = 12"),
        (["--threshold", "-1"], "threshold = -1.0 must be between 0 and 1"),
        (["--gap", "-1"], "gap = -1 must be at least 0"),
        (["--report", "/"], "report = / is a directory"),
    ],
)
def test_bad_input_ends_with_one_line(trace, monkeypatch, capfd, arguments, reason):
    monkeypatch.setattr("sys.argv", ["kvlab", "simulate", str(trace), *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert reason in capfd.readouterr().err
