from types import SimpleNamespace

import pytest

from kvlab.fast.lab.commands.compare import task_of, told_at_the_end
from kvlab.fast.lab.sweep.compare import compare
from kvlab.fast.lab.sweep.design import Sweep
from support.tolerances import DECIMALS

SPECS = ("full", "kivi@residual=32", "streaming_llm")
SHORT = {"models": ("jumps",), "tasks": ("jumps@fewest=3,most=4",), "backend": "reference"}
"""Programs of some 90 tokens."""


@pytest.fixture(scope="module")
def comparison():
    return compare(Sweep(SPECS, ("30%", "90%"), 2, seeds=(1,), batch=1, measured=2, **SHORT))


@pytest.fixture(scope="module")
def rows(comparison):
    found = {}
    for row in comparison.summary.plain()["rows"]:
        found.setdefault(row["spec"], []).append(SimpleNamespace(**row))
    return found


def test_without_a_task_a_model_must_be_one_whose_task_is_known():
    assert task_of("reasoner") == "reasoning"
    with pytest.raises(ValueError, match=r"task must be given for model = 'smollm2'.*perplexity"):
        task_of("smollm2")


def test_the_end_names_what_view_takes(monkeypatch):
    monkeypatch.setattr("kvlab.fast.lab.commands.compare.seen", lambda gains: "Seen.")
    assert told_at_the_end((), "jumps", own=False).endswith("view run.html --budget 50%")
    assert told_at_the_end((), "reasoner", own=True).endswith('--model reasoner --prompt "…"')
    assert told_at_the_end((), "owner/name", own=False) == "Seen.", "view reads no hub"


def test_every_method_has_a_row_at_every_budget(comparison, rows):
    assert [len(rows[spec]) for spec in SPECS] == [1, 1, 2]
    mean = round(comparison.summary.mean_length)
    assert comparison.summary.budgets == {"30%": -(-3 * mean // 10), "90%": -(-9 * mean // 10)}


def test_rows_say_what_methods_cost_and_spoil(comparison, rows):
    (full,), (kivi,), (small, large) = (rows[spec] for spec in SPECS)
    assert full.output_error < DECIMALS
    assert (full.kl, full.agreement, full.average_bits) == (0.0, 1.0, 16.0)
    assert 4 < kivi.average_bits < 16
    assert small.entries == comparison.summary.budgets["30%"]
    assert small.output_error > large.output_error > 0
    assert small.kilobytes < large.kilobytes


# --- the command ---------------------------------------------------------------------------------


def test_compare_prints_json_and_writes_a_page(data, tmp_path, here):
    page = tmp_path / "deep" / "page.html"
    setting = ("--task", SHORT["tasks"][0], "--problems", 1, "--backend", "reference")
    options = ("--methods", "full; tova; raas", "--budget", 20, "--report", page)
    found = data("compare", *setting, *options)
    assert [row["spec"] for row in found["rows"]] == ["full", "tova", "raas"]
    assert found["budgets"] == {"20": 20}
    html = page.read_text()
    assert html.count("<svg") == 1 and "does not fit 1 of 1 problems" in html
