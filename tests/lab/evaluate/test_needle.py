"""Needle in a haystack (CAOTE, Fig. 2)."""

import re

import pytest

from kvlab.fast.lab.evaluate.needle import haystack
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.models.loading import load, load_tokenizer_of
from kvlab.reference.tasks import reasoning
from kvlab.reference.tasks.needle import steps
from support.texts import byte_model

HAY = "The river is long and slow. Nobody knows where it begins. " * 40


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load(byte_model(tmp_path_factory.mktemp("model"), context=2048))[1]


def test_a_secret_number_is_hidden_at_every_depth_and_length(tokenizer):
    numbers = set()
    for length in (300, 600):
        for depth in (0.0, 0.5, 1.0):
            prompt, answer = haystack(tokenizer, HAY, length, depth, (0, length))
            assert 0.8 * length < len(prompt) <= length
            text, number = tokenizer.decode(prompt), tokenizer.decode(answer)
            stated = re.search(r"The secret number of (\w+) is( \d{6})\.", text)
            assert stated is not None and stated[2] == number
            assert text.endswith(f"of {stated[1]}? The secret number of {stated[1]} is")
            body = text.partition("\n\n")[0]
            before = body.index("The secret") / (len(body) - len("The secret number of Oslo is 1."))
            assert abs(before - depth) < 0.2
            numbers.add(number)
    assert len(numbers) == 2, "one for each seed"


def test_a_chat_template_wraps_the_text_and_the_answer_begins_in_it(tokenizer):
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    )
    prompt = tokenizer.decode(haystack(tokenizer, HAY, 400, 0.5, (0,), chat=True)[0])
    assert prompt.startswith("<user>")
    assert re.search(r"<assistant>The secret number of \w+ is$", prompt)


def test_problems_ask_for_definitions_from_the_first_to_the_last():
    encode = load_tokenizer_of("reasoner")
    task = find_task("definition@variables=16,depths=3")
    questions = task.questions(None, lambda text: encode(text)["input_ids"], 4, seed=0)
    for number, (place, asked) in enumerate(zip((0, 6, -1, 0), questions, strict=True)):
        problem = reasoning.held_out(4, 0, 16)[number]
        assert asked.asked == steps(problem)[place]
        assert encode.decode(asked.solution) == problem.solution


@pytest.mark.slow
def test_the_reasoner_finds_its_definitions_with_the_full_cache(data, tmp_path):
    drawing = tmp_path / "deep" / "needle.svg"
    found = data(
        *("needle", "--methods", "full; streaming_llm; raas", "--budgets", "50%", "--trials", "1"),
        *("--depths", "2", "--heat-map", drawing, "--no-controls"),
    )
    assert [round(each["mean_length"]) for each in found["lengths"]] == [183, 211, 239]
    rows = {row["method"]: row for row in found["rows"]}
    assert rows.keys() == {"full", "streaming_llm"}
    assert rows["full"]["outcomes"] == [True] * 6
    assert rows["full"]["interval"]["mean"] == 1.0
    missed = [not each for each in rows["streaming_llm"]["outcomes"]]
    assert sum(missed[1::2]) > sum(missed[::2])  # the end of the problem is gone in its turn
    refused = found["lengths"][0]["rows"][-1]
    assert refused["spec"] == "raas" and "budget = " in refused["refusal"]
    drawn = drawing.read_text()
    assert "streaming_llm" in drawn and "50%: " in drawn
