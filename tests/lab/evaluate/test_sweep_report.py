"""What is made of a sweep's results, on results whose figures can be worked out by hand."""

import csv
import json
import os
import re
import tomllib
from dataclasses import replace
from html import escape
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from markdown import Markdown

from kvlab.fast.lab.evaluate.controls import controls_of, gains_table, matched, seen
from kvlab.fast.lab.evaluate.pairs import paired_tests, winners
from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    holm,
    mcnemar,
    mean_interval,
    paired_shares,
    sign_flips,
    wilson,
)
from kvlab.fast.lab.points import ORACLE
from kvlab.fast.lab.sweep.curves import QUALITIES, front_of
from kvlab.fast.lab.sweep.design import make_sweep, read_sweep
from kvlab.fast.lab.sweep.jobs import MEASURED, Result
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.lab.sweep.published import read_parquet
from kvlab.fast.lab.sweep.report import accuracy_cell, accuracy_table, told_once, write_report
from kvlab.fast.lab.sweep.run import read_stored, run_sweep
from kvlab.fast.lab.sweep.summary import SOLVED as BY_SOLVED, against_full, pooled, summarise
from kvlab.fast.lab.tables import Bold, escape_markdown, html_of, plain
from kvlab.reference import methods
from study.stored import RESULTS, stored_summary
from support.sweeping import made
from support.tables import cases
from support.tolerances import DECIMALS, EXACT

DOCS = Path(__file__).resolve().parents[3] / "docs"
SWEEP = {
    "methods": ["full", "h2o", "tova", "rkv@every=16", "raas"],
    "budgets": [50, 60],
    "models": ["reasoner"],
    "tasks": ["reasoning"],
    "problems": 20,
    "batch": 20,
    "seeds": [0, 1],
    "measured": 2,
    "backend": "reference",
    "pairs": [["h2o", "tova"], ["full", "h2o"]],
}
SOLVED = {
    ("full", None): lambda n: True,
    ("h2o", 50): lambda n: n < 8,  # 0 to 7: 8 of 20
    ("tova", 50): lambda n: 6 <= n < 18,  # 12 of 20, 2 of them h2o's
    ("rkv@every=16", 50): lambda n: True,
    ("h2o", 60): lambda n: n % 2 == 0,
    ("tova", 60): lambda n: n % 2 == 0,
    ("rkv@every=16", 60): lambda n: True,
}


def found(job):
    """Make up the rows of a job."""
    solved = SOLVED.get((job.method, job.budget))
    known = {name: getattr(job, name) for name in ("model", "task", "seed", "method", "budget")}
    known |= {"job": job.id, "prompt_tokens": 90}
    if solved is None:
        known["refusal"] = "budget is < 90 & too small"
        return [Result(**known, problem=n) for n in range(job.count)]
    known |= {"answer_correct": True, "tokens": 100, "seconds_per_token": 0.002}
    most = {"rkv@every=16": 15.0}.get(job.method, 0.0) + (job.budget or 200)
    figures = dict.fromkeys(MEASURED, 0.25) | {"entries": most, "average_bits": 8.0}
    return [
        Result(**known, problem=n, solved=solved(n), **(figures if n < job.measured else {}))
        for n in range(job.count)
    ]


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The directory of a complete sweep with made-up results."""
    directory = tmp_path_factory.mktemp("sweep")
    plan = make_plan(make_sweep(SWEEP))
    run_sweep(plan, directory, lambda jobs: ((job, found(job)) for job in jobs))
    return directory


@pytest.fixture
def stored(complete):
    return read_stored(complete)


def without(stored, job):
    return replace(stored, rows=[row for row in stored.rows if row.job != job.id])


# --- statistics ----------------------------------------------------------------------------------


def test_wilson_by_hand():
    """8 of 10: z = 1.96; the centre is (.8 + z²/20)/(1 + z²/10) = .716738."""
    share = wilson([True] * 8 + [False] * 2)
    assert (share.low + share.high) / 2 == pytest.approx(0.716738, abs=1e-5)
    assert (share.low, share.high) == pytest.approx((0.490162, 0.943314), abs=1e-5)
    assert wilson([False] * 5).low == pytest.approx(0.0, abs=DECIMALS)
    assert wilson([True] * 5).high == pytest.approx(1.0, abs=DECIMALS)


def test_mcnemar_by_hand():
    """1 against 5: 2 · (C(6,0) + C(6,1)) / 2⁶ = 14/64."""
    assert mcnemar(1, 5) == mcnemar(5, 1) == pytest.approx(14 / 64, abs=DECIMALS)
    assert mcnemar(0, 10) == pytest.approx(2 / 2**10, abs=DECIMALS)
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0


def test_holm_by_hand():
    """Of three, the smallest counts three times, the next twice, the last once, never falling."""
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04], abs=DECIMALS)
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def log_likelihood(alone, difference: float, b: int, c: int, n: int):
    """Of b pairs that the second alone solved, c that the first alone solved, n in all."""
    cells = ((b, alone + difference), (c, alone), (n - b - c, 1 - 2 * alone - difference))
    return sum(count * np.log(np.maximum(share, 1e-300)) for count, share in cells if count)


@cases(__file__, "tango_s_interval", "c b n")
def test_tango_s_interval_ends_where_the_score_test_begins_to_reject(c, b, n):
    """The share of the first alone is found by trying; at an end the statistic is 1.96."""
    found, turned = paired_shares(c, b, n), paired_shares(b, c, n)
    for end in (found.low, found.high):
        shares = np.linspace(max(0.0, -end), (1 - end) / 2, 200_001)
        alone = shares[log_likelihood(shares, end, b, c, n).argmax()]
        spread = sqrt(n * (2 * alone + end * (1 - end)))
        assert abs(b - c - n * end) / spread == pytest.approx(1.96, abs=1e-3)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def test_no_interval_of_shares_is_a_point():
    """0 of 60 against 0 of 60: the ends are z²/(60 + z²) = 3.8415/63.8415."""
    end = pytest.approx(0.060172, abs=1e-6)
    none, all_of_one = paired_shares(0, 0, 60), paired_shares(0, 60, 60)
    assert (none.mean, -none.low, none.high) == (0.0, end, end)
    assert all_of_one.low < all_of_one.high == 1.0


def test_signs_are_flipped_by_hand():
    """Of 2⁴ choices for 1, 2, 3, −1, two sums are ±7 and four are ±5, as far as the observed 5."""
    assert sign_flips([1, 2, 3, -1]) == 6 / 16
    assert sign_flips([0.1] * 6) == 2 / 2**6
    assert sign_flips([0.0, 0.0]) == 1.0
    drawn = np.random.default_rng(0).normal(size=40)
    assert sign_flips(drawn + 1) < 0.001 < 0.2 < sign_flips(drawn - drawn.mean() + 0.1)


# --- summary -------------------------------------------------------------------------------------


def test_points_are_summed_over_seeds(stored):
    (summary,) = summarise(stored)
    point = summary.point("h2o", 50)
    assert (point.problems, point.solved) == (40, 0.4)
    assert point.interval == wilson([True] * 16 + [False] * 24)
    assert point.measured["entries"].mean == 50
    assert point.seconds_per_token.mean == pytest.approx(0.002, abs=DECIMALS)
    assert summary.point("full", 50) is summary.point("full", None)
    assert summary.point("raas", 60).refusal == (
        "does not fit 40 of 40 problems: budget is < 90 & too small"
    )
    with pytest.raises(KeyError):
        summary.point("snapkv", 50)


def test_pairs_are_tested_on_the_same_problems(stored):
    """h2o alone solves 6 of 20, tova alone 10, in both seeds; at 60 they solve the same."""
    (summary,) = summarise(stored)
    pairs = [("h2o", "tova", 50), ("h2o", "tova", 60), ("full", "h2o", 50), ("full", "h2o", 60)]
    assert [(test.measure, test.first, test.second, test.budget) for test in summary.tests] == [
        (measure, *pair) for measure in ("solved", "output error", "KL") for pair in pairs
    ]
    small, large, against_full, _ = solved = summary.tests[:4]
    assert (small.only_first, small.only_second) == (12, 20)
    assert small.p == pytest.approx(mcnemar(12, 20), abs=EXACT)
    assert small.difference.mean == pytest.approx(-0.2, abs=DECIMALS)
    assert small.difference.low < -0.2 < small.difference.high
    assert small.verdict == large.verdict == "no difference shown"
    assert (large.p, large.difference.mean) == (1.0, 0.0)
    assert large.difference.low < 0 < large.difference.high
    assert (against_full.only_first, against_full.only_second) == (24, 0)
    assert against_full.verdict == "full"
    assert [test.p_adjusted for test in solved] == holm([test.p for test in solved])
    assert {test.p_adjusted for test in summary.tests[4:]} == {1.0}, "the same error everywhere"


def held(stored, peaks):
    """Sum a sweep up in which h2o's measured problems held so many entries at most."""
    rows = []
    for row in stored.rows:
        if (row.method, row.budget) == ("h2o", 60):
            peak = dict(enumerate(peaks)).get(row.problem)
            row = replace(row, **(dict.fromkeys(MEASURED) if peak is None else {"entries": peak}))
        rows.append(row)
    (summary,) = summarise(replace(stored, rows=rows))
    return summary


@pytest.mark.parametrize(
    ("peaks", "holds", "mark"),
    [
        pytest.param((50.0, 60.0), True, "", id="held"),
        pytest.param((50.0, 62.0), False, " †", id="one problem above it, the mean below"),
        pytest.param((62.0, None), False, " †", id="one measured"),
        pytest.param((None, None), None, " ?", id="none measured"),
    ],
)
def test_the_measured_problems_tell_of_the_budget(stored, peaks, holds, mark):
    """Where nothing was measured, nothing is said of the budget."""
    summary = held(stored, peaks)
    point, shown = summary.point("h2o", 60), f"50.0 (35.2–64.8){mark}"
    assert point.holds_budget is holds
    assert accuracy_cell(summary, point) == shown
    assert summary.winners == {}, "R-KV, which solves all, never held its budget"
    assert summary.point("full", None).holds_budget is True


def points(budget=50, **solved):
    """Points of 40 problems, of which each method solves the first so many."""
    return [
        made(method, budget, solved=[n < count for n in range(40)])
        for method, count in solved.items()
    ]


@pytest.mark.parametrize(
    ("given", "winning"),
    [
        pytest.param(points(h2o=20, tova=0, knorm=5), {50: "h2o"}, id="two are worse"),
        pytest.param(points(h2o=20, tova=18, knorm=5), {}, id="one is not shown to be worse"),
        pytest.param(points(h2o=20, tova=20, knorm=5), {}, id="two are the best"),
        pytest.param(points(h2o=20), {}, id="nothing to compare with"),
        pytest.param(points(h2o=0, tova=0), {}, id="nothing is solved"),
        pytest.param(points(h2o=9, tova=0, oracle=40), {50: "h2o"}, id="the oracle is no method"),
    ],
)
def test_the_winner_is_shown_to_be_better_than_every_other(given, winning):
    assert winners(given, BY_SOLVED) == winning


def test_a_perplexity_has_the_interval_of_its_loss_beside_the_full_cache_s():
    """The full cache's loss is 1 in each window, so that the ends are those of a mean."""
    losses = {"full": [1.0] * 4, "h2o": [1.1, 1.2, 1.3, 1.4]}
    full, h2o = against_full(
        [made(name, None, loss=each, tokens=[9] * 4) for name, each in losses.items()]
    )
    mean, found = mean_interval(losses["h2o"]), h2o.perplexity_interval
    assert [*vars(found).values()] == pytest.approx([exp(each) for each in vars(mean).values()])
    assert full.perplexity_interval is None


def test_the_front_is_what_none_beats_with_fewer_bytes():
    points = [(20, 0.4), (None, 1.0), (10, 0.5), (30, 0.7), (20, 0.7), (40, 0.3)]
    given = [(size, Interval(mean, mean, mean)) for size, mean in points]
    assert front_of(given, QUALITIES[0]) == ([10, 20], [50, 70])
    assert front_of(given, QUALITIES[2]) == ([10, 20, 40], [0.5, 0.4, 0.3])


def test_controls_are_shared_and_run_once():
    """Methods share a control if nothing but the score differs; what evicts nothing has none."""
    asked = ("full", "kivi", "oracle", "h2o", "caote:h2o", "tova", "knorm", "ahakv@recent=7")
    own = ("random:h2o", "random:tova", "random:knorm", "random:ahakv@recent=7")
    assert controls_of(asked) == own
    assert controls_of((*asked, *own)) == controls_of(("unknown",)) == ()
    assert controls_of((*asked, "random@recent=7", "random")) == own[:2]
    assert make_sweep(SWEEP | {"controls": True}).runs[5:7] == own[:2]


def test_methods_are_compared_with_their_own_controls_and_marked(stored):
    """At 60 H2O solves 40 and its control 35 of 40: p = 2⁻⁴ is not significant."""
    half, more = {"h2o": 30, "random:h2o": 9, "tova": 0}, {"h2o": 40, "random:h2o": 35}
    given = [*points(**half, oracle=40, random=0, knorm=9), *points(**more, budget=60)]
    names = [*half, ORACLE, "random", "knorm"]
    gains = paired_tests(given, matched(names, names), BY_SOLVED)
    better = [(each.first, each.budget) for each in gains if each.verdict == each.first]
    assert better == [("h2o", 50), ("knorm", 50)] and len(gains) == 3
    most = max(gains, key=lambda each: each.difference.mean)
    shares = [f"{100 * share:.0f} % " for share in (most.first_mean, most.second_mean)]
    assert f"50 {most.first} solves {shares[0]}" in seen(gains)
    assert shares[1].strip() in seen(gains) and seen([]) == ""
    assert seen([each for each in gains if each.verdict != each.first]).startswith("On so few")
    table = gains_table(gains, BY_SOLVED)
    assert table.notes == ["At no budget significantly better than their controls: none"]
    assert table.columns == ["gain over the control", "50", "60"]
    assert table.rows[0][:1] == ("h2o",) and isinstance(table.rows[0][1], Bold)
    assert table.rows[0][1].text.startswith("+52.5 (+") and table.rows[0][2].endswith(" ≈")
    (summary,) = summarise(stored)
    for own, shown in (((gains[1],), "50.0 (35.2–64.8) ≈"), ((), Bold("50.0 (35.2–64.8)"))):
        best = replace(summary, gains=own, winners={60: "h2o"})
        assert accuracy_cell(best, best.point("h2o", 60)) == shown


def test_budgets_that_are_one_number_on_the_first_task_stay_two(stored):
    (found,) = summarise(stored)
    both = [replace(found, budgets={"50": 50, "25%": at}) for at in (50, 60)]
    assert ("h2o", "50") in pooled(both) and ("h2o", "25%") in pooled(both)


def test_a_seed_counts_when_it_is_complete(stored):
    job = next(j for j in stored.plan.jobs() if j.method == "tova" and j.seed == 1)
    partly = without(stored, job)
    (summary,) = summarise(partly)
    assert summary.seeds == (0,)
    assert summary.point("tova", job.budget).problems == 20
    assert partly.missing() == [job]
    (summary,) = summarise(replace(partly, failures={job.id: "broken"}))
    failed = summary.point("tova", job.budget)
    assert summary.seeds == (0, 1) and (failed.failed, failed.refusal) == (True, "broken")
    other = next(j for j in stored.plan.jobs() if j.method == "h2o" and j.seed == 0)
    (summary,) = summarise(without(partly, other))
    assert summary.seeds == (0, 1)
    assert summary.point("tova", job.budget).refusal == "20 of 40 problems run"
    assert summary.point("tova", 60).solved == 0.5


# --- the report ----------------------------------------------------------------------------------


def test_the_report_is_whole_in_every_form(stored, tmp_path):
    outside = os.pathsep.join(["/home/me/mine.py", "/home/me/mine_fast.py"])
    stored = replace(stored, run={**stored.run, "KVLAB_METHODS": outside})
    write_report(stored, tmp_path / "deep")
    html, text, plain, latex, table = (
        (tmp_path / "deep" / f"report.{form}").read_text()
        for form in ("html", "md", "json", "tex", "csv")
    )
    plain = json.loads(plain)
    rows = {(row.job, row.problem): row.solved for row in stored.rows}
    of_parquet = read_parquet(tmp_path / "deep" / "report.parquet")
    assert {(row.job, row.problem): row.solved for row in of_parquet} == rows
    assert html.count("<svg") == len(re.findall(r"\((\S+\.svg)\)", text)) == 2
    assert "budget is &lt; 90 &amp; too small" in html
    assert "| method | no budget | 50 | 60 |\n| --- | --: | --: | --: |\n| full | 100.0 (" in text
    assert "| h2o |  | 40.0 (26.3–55.4) | 50.0 (35.2–64.8) |" in text
    assert "| rkv@every=16 |  | 100.0 (91.2–100.0) † | 100.0 (91.2–100.0) † |" in text
    assert "| raas |  | – | – |" in text and "| full |  | 200 | " in text
    assert "40 problems, drawn with seeds 0, 1." in text
    assert "| 12 | 20 | −20.0 (−" in text, "the first less the second"
    assert [test["verdict"] for test in plain["tasks"][0]["tests"]][2] == "full"
    assert plain["sweep"]["problems"] == 20
    assert r"{@{}r@{}}40.0 \\ {\scriptsize (26.3–55.4)}\end{tabular} & " in latex
    assert "KVLAB_METHODS=mine.py:mine_fast.py" in text and "/home/me" not in text + latex + html
    for absent in ("accepted", "∅", "≈", "permutation", "nats:"):
        assert absent not in text.partition("## Run it again")[0], "it does not occur"
    (again,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert make_sweep(tomllib.loads(again)) == stored.plan.sweep
    for name in ("commit", "python", "numpy", "model reasoner"):
        assert f"| {name} |" in text
    rows = [*csv.DictReader(table.splitlines())]
    assert len(rows) == len(plain["tasks"][0]["points"])
    assert [(row["spec"], row["budget"], row["accuracy"]) for row in rows[:2]] == [
        ("full", "", "1.0"),
        ("h2o", "50", "0.4"),
    ]


def test_a_draft_without_an_interval_is_a_share_and_no_perplexity(stored):
    point = made("h2o", 60, accepted=[0.5], loss=[2.0], tokens=[1])
    (summary,) = summarise(stored)
    assert accuracy_cell(replace(summary, points=(point,)), point) == "50.0 ?"
    assert plain("reported", point)["accepted"] == 0.5


def test_a_legend_says_once_what_occurs(stored):
    (summary,) = summarise(stored)
    table = accuracy_table(summary)
    assert len(table.legend) == 2, "intervals, and R-KV held more than its budget"
    *_, bold, mcnemar = accuracy_table(replace(summary, winners={60: "h2o"})).legend
    assert bold.startswith("Bold: ") and mcnemar == "p < 0.05 by McNemar's exact test"
    why = "does not fit 40 of 40 problems: budget is < 90 & too small"
    assert table.notes == [f"raas, {budget}: {why}" for budget in (50, 60)]
    table = replace(table, legend=["a", "b"], notes=["of this"])
    first, second = told_once([table, table])
    assert first == table
    assert second.legend == ["Other marks and columns: as in the tables before"]


def test_the_command_reports(stored, tmp_path, printed):
    assert "40.0 (26.3–55.4)" in printed("report", stored.directory, "--out", tmp_path)


def test_a_report_needs_results(stored, tmp_path):
    with pytest.raises(ValueError, match="holds no results of this sweep yet"):
        write_report(replace(stored, rows=[]), tmp_path)


@given(st.text(alphabet="a1 .<>&;|*_`[]()#\\$~", max_size=20))
@example("p < 0.05 & &lt; <b>")
def test_site_and_reports_show_text_as_it_is(text):
    """Python-Markdown, which makes the site, knows fewer escapes than the reports' CommonMark."""
    line = f"x{text}x"
    shown = Markdown(extensions=["tables"]).convert(escape_markdown(line))
    assert shown == f"<p>{escape(line, quote=False)}</p>"
    assert html_of(escape_markdown(line)) == f"<p>{escape(line)}</p>\n"


# --- the study -----------------------------------------------------------------------------------


def test_the_study_asks_for_every_method():
    sweep = read_sweep(RESULTS / "study" / "sweep.toml")
    newer = read_sweep(RESULTS / "baselines" / "sweep.toml")
    named = {methods.base_name(spec) for spec in (*sweep.methods, *newer.methods)}
    assert set(methods.names()) == named - {ORACLE} | {"openvino"}, (
        "an engine's rule, on its own page"
    )
    assert sweep.budgets == ("30%", "40%", "50%", "70%") and sweep.controls
    assert sweep.problems * len(sweep.seeds) >= 300


@pytest.mark.slow
def test_the_study_is_of_the_model_in_the_package_and_says_what_the_pages_say_of_it(tmp_path):
    sweep, stored = read_sweep(RESULTS / "study" / "sweep.toml"), read_stored(RESULTS / "study")
    unknown: dict[str, Any] = {"kvlab": "", "device": "", "versions": ""}
    (subject,) = (replace(each, dtype="") for each in make_plan(sweep).subjects)
    unknown["subjects"] = (subject,)
    assert replace(make_plan(sweep), **unknown) == stored.plan
    assert set(sweep.seeds) - {job.seed for job in stored.missing()}
    (summary,) = write_report(stored, tmp_path)
    assert (summary.point("full", None).solved or 0.0) > 0.96
    assert summary.point("streaming_llm", min(summary.budgets.values())).solved == 0.0


def test_the_table_of_pages_and_heads_is_what_its_data_say():
    found = stored_summary("granularity")
    page = (DOCS / "methods.md").read_text("utf-8")
    written = page.partition("### What it costs")[2].partition("\n## ")[0]
    heading, *lines = [line[2:-2].split(" | ") for line in re.findall(r"^\| .*\|$", written, re.M)]
    shares = {}
    for options, *cells in lines:
        for base, cell in zip(heading[1:], cells, strict=True):
            if cell != "–":
                base, options = base.strip("`"), options.strip("`")
                own = "" if " " in options else ("," if "@" in base else "@") + options
                shares[base + own] = cell
    assert set(shares) == {each.method for each in found.points} - {"full"}
    for method, cell in shares.items():
        point = found.point(method, "50%")
        assert cell == point.interval.written(".1f", scale=100) + found.gain_mark(point), method
    assert not any(any(control.outcomes) for control in found.controls), "as the page says"
    assert found.point("full", None).interval.written(".1f", scale=100) in written
