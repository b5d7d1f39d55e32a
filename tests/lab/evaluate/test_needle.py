"""Needle in a haystack (CAOTE, Fig. 2)."""

import json
import re

import numpy as np
import pytest
from texts import byte_model
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.evaluate.needle import text_haystacks
from kvlab.fast.models.loading import load

HAY = "The river is long and slow. Nobody knows where it begins. " * 40
DEPTHS = (0.0, 0.5, 1.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(byte_model(tmp_path_factory.mktemp("model"), context=2048))


@pytest.fixture(scope="module")
def reader(directory):
    return load(directory)


def test_a_secret_number_is_hidden_at_every_depth_and_length(reader):
    _, tokenizer = reader
    grid = text_haystacks(tokenizer, HAY, (300, 600), DEPTHS, trials=2)
    assert len(grid.haystacks) == 2 * 3 * 2
    for haystack in grid.haystacks:
        prompt, answer = (tokenizer.decode(ids) for ids in (haystack.prompt, haystack.rated))
        ((depth, place),) = haystack.needles
        stated = re.search(r"The secret number of (\w+) is (\d{6})\.", prompt)
        assert stated is not None
        city, number = stated.groups()
        assert answer == f" {number}"
        assert prompt.endswith(f"of {city}? The secret number of {city} is")
        assert place == slice(0, len(haystack.rated))
        length = grid.lengths[haystack.length]
        assert 0.8 * length < len(haystack.prompt) <= length
        body = prompt.partition("\n\n")[0]
        before = body.index("The secret") / (len(body) - len("The secret number of Oslo is 1."))
        assert abs(before - DEPTHS[depth]) < 0.2
    numbers = {tuple(haystack.rated) for haystack in grid.haystacks}
    assert len(numbers) == len(grid.haystacks)


def test_a_chat_template_wraps_the_text_and_the_answer_begins_in_it(reader):
    _, tokenizer = reader
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    )
    (haystack,) = text_haystacks(tokenizer, HAY, (400,), (0.5,), 1, chat=True).haystacks
    prompt = tokenizer.decode(haystack.prompt)
    assert prompt.startswith("<user>")
    assert re.search(r"<assistant>The secret number of \w+ is$", prompt)


# --- the command ---------------------------------------------------------------------------------


def test_the_reasoner_finds_its_definitions_with_the_full_cache(tmp_path):
    drawing = tmp_path / "deep" / "needle.svg"
    arguments = [
        *("needle", "--methods", "full; streaming_llm; raas", "--budgets", "50%", "--trials", "1"),
        *("--depths", "0,50%,100", "--heat-map", str(drawing), "--json"),
    ]
    found = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert found["lengths"] == [183, 211, 239]
    needles = [12, 14, 16]
    assert np.sum(found["hidden"], axis=0).tolist() == needles
    full, small, refused = found["rows"]
    assert full["accuracy"] == 1.0
    assert small["accuracy"] < 0.6
    missed = np.dot(small["missed"], needles)
    assert round(missed) == sum(needles) - np.sum(small["found"])
    at_start, *_, at_end = np.sum(small["found"], axis=1) / np.sum(found["hidden"], axis=1)
    assert at_start > at_end  # the end of the problem is gone when its turn comes
    assert "budget = " in refused["refusal"]
    svg = drawing.read_text()
    assert svg.startswith("<svg")
    assert svg.count("QuadMesh") == 2
    assert "streaming_llm, 50%" in svg


def test_a_length_that_cannot_hold_the_needle_is_refused(reader):
    _, tokenizer = reader
    with pytest.raises(ValueError, match="length = 50 leaves no room"):
        text_haystacks(tokenizer, HAY, (50,), (0.5,), 1)
