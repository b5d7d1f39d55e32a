"""The page of ``kvlab view`` in a real browser shows what its timeline says."""

import math
import re
from dataclasses import replace

import pytest

from kvlab.fast.lab.viewing import write_viewer
from kvlab.reference import methods
from kvlab.reference.simulator.recorder import record_replay
from kvlab.reference.simulator.timeline import GONE, Timeline
from support.noise import noise

WORDS = ("the", " cache", " of", " keys", ",", " and", "\n", " values", ".", " 8", "")
EVIL = '<img src=x onerror="document.title=1">&amp;'


def recorded(tokens=41, budget=16, texts=None, layers=2):
    """Two methods asked about noise, a quarter of which is the prompt; the second fails."""
    trace = noise(layers=layers, t=tokens, d=4, prompt=tokens // 4)
    texts = texts or [WORDS[n % len(WORDS)] for n in range(tokens)]
    runs = [record_replay(trace, texts, methods.get(spec, budget)) for spec in ("h2o", "tova")]
    read = {"lost": [3, 5], "attention": [0.5, 0.1], "head": [0, 0]}
    failure = {"position": tokens // 2, "expected": EVIL, **read}
    return Timeline("noise", 0.01, (runs[0], replace(runs[1], failure=failure)))


@pytest.fixture
def opened(reader, tmp_path):
    found = reader(f"{tmp_path.as_uri()}/")

    def show(timeline):
        write_viewer(timeline, tmp_path / "view.html")
        return found.open("view.html")

    yield show
    assert not found.problems


MOVED = """([pane, step]) => {
  const text = document.querySelectorAll("#panes [role=listbox]")[pane];
  const spans = [...text.querySelectorAll("[role=option]")];
  const slider = document.getElementById("step");
  slider.value = step;
  slider.dispatchEvent(new Event("input"));
  const box = text.getBoundingClientRect();
  const visible = spans.flatMap((span, position) => {
    const place = span.getBoundingClientRect();
    return place.bottom > box.top && place.top < box.bottom ? [position] : [];
  });
  return { visible, classes: spans.map((span) => span.className) };
}"""
"""Before anything else happens: what is in view must be right at once."""

RESTED = """([pane, expected]) => {
  const text = document.querySelectorAll("#panes [role=listbox]")[pane];
  const spans = text.querySelectorAll("[role=option]");
  return expected.every((name, position) => spans[position].classList.contains(name));
}"""


def level(names):
    """Return the class that says what share of the heads keeps a token."""
    return next(name for name in names.split() if re.fullmatch(r"f|l\d", name))


def levels(run, step, place=()):
    """Return that class of every token, of all heads together or of one layer and head."""
    kept = (run.stored(step) != GONE)[place].astype(float)
    share = kept if place else kept.mean(axis=(0, 1))
    return [
        "f" if p >= run.steps[step] else f"l{0 if x == 0 else max(1, math.floor(8 * x + 0.5))}"
        for p, x in enumerate(share.tolist())
    ]


def shown(page, pane, step):
    """Move the slider; return the classes of the tokens in view, by position."""
    moved = page.evaluate(MOVED, [pane, step])
    return {position: level(moved["classes"][position]) for position in moved["visible"]}


PLACES = {("all", "all"): (), ("1", "0"): (1, 0), ("0", "1"): (0, 1)}


@pytest.mark.parametrize("tokens", [41, 1600])
def test_slider_and_selectors_show_what_the_timeline_says(opened, tokens):
    """In view at once, everywhere when it rests."""
    found = recorded(tokens, tokens // 3)
    page = opened(found)
    for pane, run in enumerate(found.runs):
        for (layer, head), place in PLACES.items():
            page.select_option("#layer", layer)
            page.select_option("#head", head)
            for step in (0, len(run.steps) // 2, len(run.steps) - 1):
                expected, seen = levels(run, step, place), shown(page, pane, step)
                assert seen == {p: expected[p] for p in seen} and len(seen) >= min(41, tokens)
                page.wait_for_function(RESTED, arg=[pane, expected])
    run, place = found.runs[1], PLACES["0", "1"]
    last = len(run.steps) - 1
    seen, other = shown(page, 1, last // 2), levels(run, last, place)
    assert seen != {p: other[p] for p in seen}, "another step looks different"


def test_a_token_of_markup_is_shown_as_text(opened):
    texts = tuple(EVIL if position % 2 else "</script><b>" for position in range(41))
    page = opened(recorded(texts=texts))
    spans = page.locator("#panes [role=option]")
    assert spans.nth(1).inner_text().strip() == EVIL
    assert page.locator("#panes img, #panes b, #panes script").count() == 0
    assert page.title() != "1"


def test_the_page_opens_where_the_text_turns_wrong(opened):
    page = opened(recorded())
    assert page.input_value("#step") == str(41 // 2 - 41 // 4 + 1)  # the step that read it
    marked = page.locator("#panes .lost, #panes .wrong")
    places = marked.evaluate_all("all => all.map(each => Number(each.dataset.position))")
    assert places == [3, 5, 20] and EVIL[:4] in page.inner_text(".failure:not(:empty)")


def test_keys_move_and_play(opened):
    found = recorded(2000, layers=1)  # played in minutes: the end does not come first
    page = opened(found)
    page.keyboard.press("Home")
    assert page.input_value("#step") == "0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#step") == "2"
    page.keyboard.press("End")
    assert page.input_value("#step") == str(len(found.runs[0].steps) - 1)
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    page.wait_for_function("() => Number(document.getElementById('step').value) > 1")
    page.locator("#step").press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_choosing_a_token_tells_its_state(opened):
    found = recorded()
    run = found.runs[0]
    page = opened(found)
    page.select_option("#layer", "0")
    page.select_option("#head", "1")
    page.locator("body").press("End")
    last = len(run.steps) - 1
    gone = int((run.stored(last)[0, 1] == GONE).nonzero()[0][0])
    step = next(n for n in range(last + 1) if run.steps[n] > gone and not run.stored(n)[0, 1, gone])
    page.locator(f"#panes [role=option][data-position='{gone}']").first.click()
    assert f"evicted at step {step}" in page.locator("#panes").inner_text()
