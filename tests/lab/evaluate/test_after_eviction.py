"""How often what is measured happened: tokens that come after an eviction."""

import json

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.lab.engines import agreement
from kvlab.fast.lab.evaluate.backends import Request, load_backend
from kvlab.fast.lab.evaluate.likelihood import Passage, rate
from kvlab.fast.lab.evaluate.pairs import paired_tests, winners
from kvlab.fast.lab.evaluate.tasks import Question, Windows, find_task
from kvlab.fast.lab.points import NOTHING, After, tokens_after
from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.summary import ALONG, LOSS, summarise
from kvlab.fast.lab.tables import layout
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from support.models import tiny
from support.running import printed
from support.sweeping import made
from support.tables import cases
from support.texts import byte_model

TEXT = [int(token) for token in torch.randint(1, 97, (40,), generator=torch.manual_seed(1))]
PASSAGES = [Passage(TEXT[:7], TEXT[7:]), Passage(TEXT[:5], TEXT[9:30])]


def test_tokens_after_an_eviction_by_hand():
    """Of prompt 4 and rated tokens 4 to 9, token p is predicted by p - 1.

    Six tokens attended to everything, so token 5 did, which predicts 6, and 7, 8, 9 come after.
    """
    found = [tokens_after(first, 4, 6) for first in (None, 10, 9, 8, 6, 3, 0)]
    assert found == [0, 0, 0, 1, 3, 6, 6]


@cases(__file__, "what_is_counted_is_what_tokens_attended_to", "spec budget feed")
def test_what_is_counted_is_what_tokens_attended_to(spec, budget, feed):
    """A rated token counts if the token before it missed an older one in some layer.

    DDKS stores entries in fewer bits where others evict.
    """
    model, missed, lowered = tiny("llama"), set(), {}

    def watch(block, result):
        kept = result.cache
        held = (kept if spec.startswith("caote") else result).positions[0, 0].tolist()
        for token in block.clock.positions[0].tolist():
            if not {*held, token} >= set(range(token + 1)) or lowered.get(block.layer):
                missed.add(token)
        lowered[block.layer] = kept.positions[0, 0][kept.bits()[0, 0] < 16].tolist()

    passage = PASSAGES[0]
    fed, prompt = [*passage.prompt, *passage.rated[:-1]], len(passage.prompt)
    first = prompt if feed == "steps" else len(fed)
    with torch.inference_mode(), compress(model, spec, budget, 6, watch=watch) as cache:
        model(torch.tensor([fed[:first]]), past_key_values=cache)
        for token in fed[first:]:
            model(torch.tensor([[token]]), past_key_values=cache)
    wanted = len(missed & set(range(prompt - 1, len(fed))))
    (found,) = rate(model, spec, budget, [passage], 6, feed, 1)
    assert found.after_eviction == wanted
    assert (wanted > 0) == (spec != "full" and budget != 39)


def test_rows_of_a_batch_are_counted_apart():
    """After a prompt of 7, the 13th of 12 entries is evicted; of the shorter row also."""
    together = rate(tiny("llama"), "h2o", 12, PASSAGES, None, "steps", 2)
    assert [each.after_eviction for each in together] == [40 - 1 - 13, 26 - 1 - 13]


@pytest.mark.parametrize("spec", ["tova", "caote:h2o@evict_before_attend=true", "full"])
def test_both_backends_note_the_same_first_eviction(spec):
    fast, reference = (load_backend(name, reasoner_directory()) for name in ("fast", "reference"))
    prompt = fast.encode(find_task("reasoning").problems(1, 0)[0].prompt)
    budget = None if spec == "full" else len(prompt) + 3
    request = Request([prompt], 8, None)
    wanted = {"tova": len(prompt) + 4, "full": None}.get(spec, len(prompt) + 3)
    for backend in (fast, reference):
        (answer,) = backend.write(methods.get(spec, budget), request)
        assert answer.first_eviction == wanted, type(backend)
        ((measured, _),) = backend.measure(methods.get(spec, budget), [prompt], [answer.tokens])
        read = [len(prompt) + step for step in range(8)]
        after = [wanted is not None and tokens > wanted for tokens in read]
        assert measured.after_eviction.tolist() == after, type(backend)
        assert sum(after) == {"tova": 3, "full": 0}.get(spec, 4)


@cases(__file__, "the_default_block_lets_most_come_after_an_eviction", "window budgets block")
def test_the_default_block_lets_most_come_after_an_eviction(window, budgets, block):
    questions = [Question(0, None, [0], [0] * (window - 1))]
    assert Windows().block_for(questions, budgets) == block


def test_rows_that_measure_nothing_are_in_no_test_and_win_none():
    """h2o is better than its control in all of ten windows; tova's row is the full cache's."""
    counts = {"random:h2o": 5, "h2o": 5, "tova": 0}
    losses = {"random:h2o": (2.0,) * 10, "h2o": (1.0,) * 10, "tova": (0.5,) * 10}
    rows = [
        made(name, 9, After(count, 50, "tokens"), loss=losses[name])
        for name, count in counts.items()
    ]
    (test,) = paired_tests(rows, [("h2o", "random:h2o"), ("tova", "random:h2o")], LOSS)
    assert test.verdict == test.first == "h2o"
    assert winners(rows, LOSS) == {9: "h2o"}


def test_error_and_kl_count_the_steps_after_an_eviction():
    """Both answers end after an eviction, but of 217 + 215 steps only 4 + 4 come after one."""
    counts = {"steps": (217, 215), "steps_after_eviction": (4, 4), "kl": (1e-9, 2e-9)}
    row = made("h2o", 9, After(2, 2, "answers"), **counts)
    none = made("tova", 9, After(2, 2, "answers"), **counts | {"steps_after_eviction": (0, 0)})
    assert row.steps_after_eviction == After(8, 432, "steps")
    assert made("kivi", None, **counts).steps_after_eviction is None
    _, kl = ALONG
    assert paired_tests([row, none], [("h2o", "tova")], kl) == []
    assert f"0 % {NOTHING}" in layout("compare").table([none]).rows[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("after")
    byte_model(folder / "model")
    (folder / "text.txt").write_text("A cat sat on a mat. " * 20, encoding="utf-8")
    return folder


def perplexity(place, *more, method="h2o"):
    asked = ["perplexity", "--model", place / "model", "--text", place / "text.txt"]
    asked += ["--window", "64", "--windows", "2", "--budgets", "32", "--methods", method, *more]
    return printed(*asked)


def test_perplexity_says_what_it_measured(place):
    """At 32 of 64 entries 30 tokens can come after an eviction; in a block of 36 tokens 27 do."""
    found = json.loads(perplexity(place, "--json"))
    full, row = found["rows"]
    assert found["settings"]["block_size"] == 36
    assert (row["after_eviction"], row["after_eviction_of"]) == (54, "126 tokens")
    assert (full["after_eviction"], full["gap"]) == (None, 0)
    assert row["gap"] != 0 and len(found["gains"]) == 1
    table = perplexity(place, "--table")
    assert "43 %" in table and "blocks of 36 tokens" in table and f"% {NOTHING}" not in table


def test_a_row_in_which_nothing_is_evicted_is_marked(place):
    asked = "--block-size", "32"
    assert f"0 % {NOTHING}" in perplexity(place, *asked, "--table")
    assert f"h2o {NOTHING}" in perplexity(place, *asked)
    found = json.loads(perplexity(place, *asked, "--json"))
    _, row = found["rows"]
    assert (row["after_eviction"], found["gains"]) == (0, [])
    assert row["nats"] is row["gap"] is None, "a difference by rounding is none"


def test_rows_whose_entries_are_coded_are_not_the_full_caches(place):
    """Nothing is evicted from 64 entries, but nvfp4 changes every one: a gap, and no mark."""
    found = perplexity(place, "--json", "--budgets", "64", method="h2o@precision=nvfp4")
    *_, row = json.loads(found)["rows"]
    assert row["after_eviction"] is None and abs(row["gap"]) > 1e-4


def test_answers_count_if_a_part_of_them_comes_after_an_eviction():
    """Answers end at their first error, so the share of their tokens would say little."""
    sweep = Sweep(("full", "tova"), ("25%", "100%"), 2, tasks=("jumps@fewest=2,most=5",))
    (found,) = summarise(run_in_memory(sweep))
    quarter, whole = (found.point("tova", budget).after_eviction for budget in ("25%", "100%"))
    assert found.point("full", None).after_eviction is None
    assert quarter == After(2, 2, "answers") and whole.of == 2


def test_an_engine_that_evicts_nothing_so_far_does_not_agree():
    model, prompts = tiny("llama"), [TEXT[:8]]
    text = {"tokens": [TEXT[8:14]], "prompts": prompts}
    for budget in (12, 20):
        setting = agreement.Setting("own", "streaming_llm", budget)
        figures = agreement.compare(model, setting, setting.spec, text)
        assert figures["after_eviction"] == After(0, 6, "tokens")
        assert setting.verdict(figures).startswith("measures nothing")
