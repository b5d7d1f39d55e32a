"""The page of ``kvlab view`` in a real browser shows what its timeline says."""

import math
import os
import re
import shutil

import pytest
from noise import noise

from kvlab.fast.lab.viewing import write_viewer
from kvlab.reference import methods
from kvlab.reference.simulator.recorder import record_replay
from kvlab.reference.simulator.timeline import GONE, Timeline

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WORDS = ("the", " cache", " of", " keys", ",", " and", "\n", " values", ".", " 8", "")
EVIL = '<img src=x onerror="document.title=1">&amp;'


def recorded(tokens=41, budget=16, texts=None, layers=2):
    """Two methods asked about noise, a quarter of which is the prompt."""
    trace = noise(layers=layers, t=tokens, d=4, prompt=tokens // 4)
    texts = texts or [WORDS[n % len(WORDS)] for n in range(tokens)]
    runs = [record_replay(trace, texts, methods.get(spec, budget)) for spec in ("h2o", "tova")]
    return Timeline("noise", 0.01, tuple(runs))


@pytest.fixture
def page(browser):
    opened = browser.new_page()
    opened.problems = []
    opened.on("console", lambda message: opened.problems.append(message.text))
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("request", lambda request: opened.problems.append(request.url))
    yield opened
    opened.close()


def opened(page, found, tmp_path):
    path = tmp_path / "view.html"
    write_viewer(found, path)
    page.goto(path.as_uri())
    asked = [each for each in page.problems if each != path.as_uri()]
    assert not asked, asked
    page.problems.clear()
    return page


def classes(page, pane, tokens):
    spans = page.locator("#panes [role=listbox]").nth(pane).locator("[role=option]")
    names = spans.evaluate_all("all => all.map(span => span.className.split(' '))")
    return names[:tokens]


def shows(page, run, pane, step, kept):
    """Compare the colours of one pane with the share of heads that keep each token."""
    page.evaluate(
        "step => { const s = document.getElementById('step'); s.value = step;"
        " s.dispatchEvent(new Event('input')); }",
        step,
    )
    for position, names in enumerate(classes(page, pane, run.read)):
        if position >= run.steps[step]:
            assert "f" in names
        else:
            share = kept[position]
            assert f"l{0 if share == 0 else max(1, round(8 * share))}" in names, (position, names)


@pytest.mark.parametrize("step", [0, 5, 17, 30])
def test_slider_and_selectors_show_what_the_timeline_says(page, tmp_path, step):
    found = recorded()
    opened(page, found, tmp_path)
    for pane, run in enumerate(found.runs):
        kept = run.stored(step) != GONE
        page.select_option("#layer", "all")
        page.select_option("#head", "all")
        shows(page, run, pane, step, kept.mean(axis=(0, 1)))
        page.select_option("#layer", "1")
        page.select_option("#head", "0")
        shows(page, run, pane, step, kept[1, 0].astype(float))
    assert not page.problems


def test_another_step_looks_different(page, tmp_path):
    run = recorded().runs[0]
    opened(page, recorded(), tmp_path)
    with pytest.raises(AssertionError):
        shows(page, run, 0, 25, (run.stored(12) != GONE).mean(axis=(0, 1)))


def test_a_long_text_shows_what_the_timeline_says_in_view_and_when_it_rests(page, tmp_path):
    found = recorded(1600, 480)
    opened(page, found, tmp_path)
    for pane, run in enumerate(found.runs):
        for step, layer, head in ((1000, "all", "all"), (360, "1", "1"), (1199, "0", "0")):
            page.select_option("#layer", layer)
            page.select_option("#head", head)
            kept = run.stored(step) != GONE
            one = layer != "all"
            share = kept[int(layer), int(head)].astype(float) if one else kept.mean(axis=(0, 1))
            expected = levels(run, step, share)
            moved = page.evaluate(MOVED, [pane, step, run.read])
            visible, names = moved["visible"], moved["classes"]
            assert 50 < len(visible) < run.read
            assert {p: level(names[p]) for p in visible} == {p: expected[p] for p in visible}
            page.wait_for_function(RESTED, arg=[pane, expected])
    assert not page.problems


def level(names):
    """Return the class that says what share of the heads keeps a token."""
    return next(name for name in names.split() if re.fullmatch(r"f|l\d", name))


def levels(run, step, share):
    seen = run.steps[step]
    return [
        "f" if p >= seen else f"l{0 if kept == 0 else max(1, math.floor(8 * kept + 0.5))}"
        for p, kept in enumerate(share.tolist())
    ]


MOVED = """([pane, step, read]) => {
  const text = document.querySelectorAll("#panes [role=listbox]")[pane];
  const spans = [...text.querySelectorAll("[role=option]")].slice(0, read);
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


def test_a_scrolled_text_is_right_before_the_steps_rest(page, tmp_path):
    found = recorded(2000, 600, layers=1)
    run, step = found.runs[0], 1000
    opened(page, found, tmp_path)
    expected = levels(run, step, (run.stored(step) != GONE).mean(axis=(0, 1)))
    for place in (0, 700, 200):
        page.evaluate(
            "place => { clearTimeout(panes[0].rest);"
            " document.querySelector('#panes [role=listbox]').scrollTop = place; }",
            place,
        )
        page.evaluate("() => new Promise(requestAnimationFrame)")
        page.evaluate("() => new Promise(requestAnimationFrame)")
        moved = page.evaluate(MOVED, [0, step, run.read])
        assert all(level(moved["classes"][p]) == expected[p] for p in moved["visible"])
        far = [p for p in range(run.read) if level(moved["classes"][p]) != expected[p]]
        step = 700 if step == 1000 else 1000
        expected = levels(run, step, (run.stored(step) != GONE).mean(axis=(0, 1)))
        assert far, "nothing was left to be drawn: the view is all of the text"
    assert not page.problems


def test_a_token_of_markup_is_shown_as_text(page, tmp_path):
    texts = tuple(EVIL if position % 2 else "</script><b>" for position in range(41))
    opened(page, recorded(texts=texts), tmp_path)
    spans = page.locator("#panes [role=option]")
    assert spans.nth(1).inner_text().strip() == EVIL
    assert page.locator("#panes img, #panes b, #panes script").count() == 0
    assert page.title() != "1"
    assert not page.problems


def test_keys_move_and_play(page, tmp_path):
    found = recorded(2000, layers=1)  # played in minutes: the end does not come first
    opened(page, found, tmp_path)
    page.locator("body").press("Home")
    assert page.input_value("#step") == "0"
    page.locator("body").press("ArrowRight")
    page.locator("body").press("ArrowRight")
    assert page.input_value("#step") == "2"
    page.locator("body").press("End")
    assert page.input_value("#step") == str(len(found.runs[0].steps) - 1)
    page.locator("body").press("Home")
    page.locator("body").press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    for _ in range(2400):  # two minutes: this ends what hangs
        if int(page.input_value("#step")) > 1:
            break
        page.wait_for_timeout(50)
    assert int(page.input_value("#step")) > 1
    page.locator("#step").press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "false"
    assert not page.problems


def test_choosing_a_token_tells_its_state(page, tmp_path):
    found = recorded()
    run = found.runs[0]
    opened(page, found, tmp_path)
    page.select_option("#layer", "0")
    page.select_option("#head", "1")
    last = len(run.steps) - 1
    gone = int((run.stored(last)[0, 1] == GONE).nonzero()[0][0])
    step = next(n for n in range(last + 1) if run.steps[n] > gone and not run.stored(n)[0, 1, gone])
    page.locator(f"#panes [role=option][data-position='{gone}']").first.click()
    assert f"evicted at step {step}" in page.locator("#panes").inner_text()


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="a promise about CI")
def test_ci_has_a_browser():
    assert CHROMIUM is not None
