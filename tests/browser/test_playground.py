"""The playground in a browser, opened as a file: what it computes, and what a reader can do."""

from urllib.parse import urlencode

import pytest

from kvlab.reference import Transformer, methods
from kvlab.reference.generate import generate
from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.tasks import jumps
from kvlab.reference.transformer import end_of_text, load_tokenizer
from study import one_entry
from support.site import module

playground_page = module("playground_page")
FIRST = next(iter(EMBEDDED))


def with_short_problems():
    """Return what the page is given, and three short programs whose length it has to measure."""
    site = playground_page.site()
    short = jumps.held_out(3, size=jumps.Size(fewest=8, most=10))
    site["models"][FIRST]["prompts"] += [problem.prompt for problem in short]
    return site


GIVEN = with_short_problems()
SITE = GIVEN["models"]
EVIL = '<img src=x onerror="document.title=1">'
DESK = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
READY = "model => kvlabPlayground.loaded === model && kvlabPlayground.budget !== null"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    playground_page.build_alone(site_dir=str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playground_page, "site", lambda: GIVEN)
        for name, script in playground_page.scripts().items():
            (folder / "playground" / name).write_text(script, encoding="utf-8")
    return f"{folder.as_uri()}/"


@pytest.fixture(scope="module")
def common(reader, address):
    """The reader of most tests, one after the other, and the state in which the page opens."""
    found = reader(address, viewport=DESK)
    page = found.open("playground/index.html#method=streaming_llm&problem=jumps-8")
    page.wait_for_selector("#pg-budget:enabled", timeout=120_000)
    return found, page.evaluate("() => kvlabPlayground.state")


@pytest.fixture
def opened(common):
    """Bring the common page to a state as if it were opened there; nothing may go wrong."""
    reader, standard = common
    page = reader.page

    def bring(viewport=DESK, **state):
        page.set_viewport_size(viewport)
        page.evaluate(
            """async state => {
                const playground = kvlabPlayground;
                if (playground.playing) playground.pause();
                document.querySelectorAll('details').forEach(each => { each.open = false; });
                document.activeElement.blur();
                playground.speed.value = 'full speed';
                playground.state = state;
                playground.remember();
                await playground.open(); }""",
            {**standard, **state},
        )
        model = state.get("problem", FIRST).partition("-")[0]
        page.wait_for_function(READY, arg=model, timeout=120_000)
        return page

    yield bring
    found, reader.problems = reader.problems, []
    assert not found


def wait_until(page, state):
    page.wait_for_selector(f"#kvlab-playground[data-state={state}]", timeout=120_000)


def run(page):
    page.click("#pg-run")
    wait_until(page, "done")


def words(page, pane=0):
    """Return the words that a pane shows behind the prompt."""
    spans = page.locator(".pg-text").nth(pane).locator("[role=option]:not([hidden])")
    prompt = page.evaluate("() => kvlabPlayground.prompt.length")
    found = spans.evaluate_all("all => all.map(each => each.dataset.token)")
    return [token.replace("\n", "↵") for token in found[prompt:]]


def expected_words(name, spec, budget, prompt):
    directory = embedded_directory(name)
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    ids, most = tokenizer.encode(prompt).ids, SITE[name]["most"]
    found = generate(model, methods.get(spec, budget), ids, most, end_of_text(directory))
    return [tokenizer.id_to_token(token).replace("\n", "↵") for token in found.tokens]


def change_program(text):
    """Let another line run first."""
    return text[:-1] + ("1" if text[-1] != "1" else "2")


@pytest.mark.parametrize(
    ("name", "change"),
    [("jumps", change_program), ("reasoner", lambda text: text.replace("+", "-", 1))],
)
def test_the_demo_and_a_changed_problem_give_the_answer_of_the_reference(opened, name, change):
    """At half of the entries; ``tests/playground`` compares all methods."""
    prompt = SITE[name]["prompts"][0]
    page = opened(method="caote:h2o", budget="50%", problem=f"{name}-0")
    run(page)
    budget = page.evaluate("() => kvlabPlayground.budget")
    first = words(page)
    assert first == expected_words(name, "caote:h2o", budget, prompt)
    page.click("text=Change the problem")
    page.fill("textarea", change(page.input_value("textarea")))
    page.click("text=Use this text")
    wait_until(page, "done")
    changed = page.evaluate("() => kvlabPlayground.promptText")
    assert changed == change(prompt)
    budget = page.evaluate("() => kvlabPlayground.budget")
    assert words(page) == expected_words(name, "caote:h2o", budget, changed) != first


SPACE = """!document.body.dispatchEvent(
    new KeyboardEvent("keydown", { key: " ", bubbles: true, cancelable: true }))"""
"""Presses it at once, before the demonstration can end; true if the page does not scroll by it."""


def test_the_page_plays_by_itself_and_the_tour_mends_the_answer(reader, address):
    found = reader(address, viewport=DESK)
    page = found.open("playground/index.html")
    page.wait_for_function(f"() => kvlabPlayground.playing && kvlabPlayground.block > 2 && {SPACE}")
    assert page.evaluate("[kvlabPlayground.playing, scrollY]") == [False, 0]
    told = page.locator(".pg-tour p").filter(has_not_text="is at work")
    for number in range(2, 6):
        page.click(".pg-tour button:text-is('Next')")
        told.filter(has_text=f"{number} of 6").wait_for(timeout=120_000)
    *likely, lost = page.evaluate("""() => {
        const { wrong, full, lost, left, words } = kvlabPlayground;
        const likely = run => run.frames[wrong].likely.map(each => words[each.token]);
        return [likely(full), likely(left.run), lost]; }""")
    cells = page.locator(".pg-likely td:nth-child(2n + 1)").all_inner_texts()
    assert [cells[::2], cells[1::2]] == likely and page.locator(".pg-line-lost").count() == 1
    assert page.inner_text(f"#pg-method-{lost + 1}")[:2] == "= "  # as people read it
    page.click("text=Protect the lost token")
    told.filter(has_text="The answer is right now").wait_for(timeout=120_000)
    assert page.evaluate("kvlabPlayground.length === kvlabPlayground.given")
    page.click(".pg-tour button:text-is('Next')")
    told.filter(has_text="6 of 6").wait_for(timeout=120_000)
    assert page.evaluate("kvlabPlayground.wrong") == -1, "the token is still protected"
    page.click("text=Write your own score >> visible=true")
    assert page.evaluate("document.activeElement === kvlabPlayground.lab.field")
    assert not found.problems


def test_a_failure_is_found_and_a_protected_token_stays(opened):
    page = opened(method="streaming_llm", budget="70%")
    run(page)
    page.locator(".pg-verdict", has_text="✗ Wrong from token").wait_for()
    assert page.locator(".pg-text .pg-wrong").count() == 1
    button = page.locator(".pg-missed button").first
    position = int(button.inner_text().partition(", token ")[2].split(":")[0])
    token = page.locator(f"#pg-method-{position}")
    assert "pg-l0" in (token.get_attribute("class") or "").split()
    button.click()
    assert page.evaluate("() => document.activeElement.id") == "pg-run"
    wait_until(page, "done")
    assert {"pg-l8", "pg-pinned"} <= set((token.get_attribute("class") or "").split())
    assert f"token {position} ✕" in page.inner_text(".pg-protected")
    assert f"protect={position}" in page.url
    page.click(".pg-protected button")
    wait_until(page, "done")
    assert "pg-l0" in (token.get_attribute("class") or "").split()


def test_the_scores_say_why_an_entry_goes(opened):
    page = opened(method="h2o", budget="30%")
    page.click("text=Every entry of one head")
    page.get_by_label("One token on").click()
    table = page.locator(".pg-scroll table").first
    table.wait_for()
    rows = page.evaluate("""() =>
        [...document.querySelectorAll('.pg-scroll tbody tr')].map(({ cells }) =>
            [Number(cells[1].textContent), Number(cells[2].textContent), cells[4].textContent])""")
    head = page.evaluate("""() => {
        const { positions, fates, scores } = kvlabPlayground.left.run.frames[0].layers[0][0];
        return { positions: [...positions], fates: [...fates], scores: [...scores] }; }""")
    going = {p for p, fate in zip(head["positions"], head["fates"], strict=True) if fate == 3}
    assert going and {row[0] for row in rows if row[2].startswith("evicted")} == going
    staying = [row for row in rows if row[2].startswith("kept: ")]
    assert max(row[1] for row in rows if row[0] in going) <= min(row[1] for row in staying)
    position = min(going)
    page.click(f"#pg-method-{position}")
    cell = page.locator(".pg-facts tbody tr").first.locator("td").first
    assert cell.inner_text().startswith("evicted: score")


def test_beside_a_method_stands_random_eviction_under_its_own_protection(opened):
    page = opened(method="caote:h2o", budget="70%")
    page.click("text=Compare two")
    assert page.evaluate("kvlabPlayground.panes.map(pane => pane.spec)") == ["caote:h2o", "h2o"]
    page.click("text=Show one")
    assert page.locator(".pg-pane:visible").count() == 1
    page.click("text=Compare with its control")
    page.get_by_label("first method: its score").select_option("")  # the control follows
    run(page)
    state = page.evaluate("() => kvlabPlayground.state")
    pair = ["h2o", "random:h2o"]
    assert [state["method"], state["with"]] == pair
    budget, prompt = page.evaluate("() => [kvlabPlayground.budget, kvlabPlayground.promptText]")
    written = [words(page, pane) for pane in (0, 1)]
    assert written == [expected_words(FIRST, spec, budget, prompt) for spec in pair]
    assert written[0] != written[1] and not page.is_visible("text=Compare with its control")


def test_two_caches_show_where_they_part_and_which_value_decided(opened):
    """At the step to which CAOTE's page links; ``tests/study`` holds it against the reference."""
    choice, _ = one_entry.find()
    chosen, other = choice.positions
    step = choice.seen - len(SITE[FIRST]["prompts"][0].split(" "))
    asked = {"method": "h2o", "with": "caote:h2o", "budget": "50%", "problem": f"{FIRST}-0"}
    page = opened(**asked, token=str(chosen), step=str(step))
    page.locator(".pg-weighed table").nth(1).wait_for()
    rows = page.evaluate("""() => [...document.querySelectorAll(".pg-weighed")].map(pane =>
        [...pane.querySelectorAll("tbody tr")].map(row =>
            [...row.cells].map(cell => cell.textContent)))""")
    numbers = [
        [f"{100 * choice.weights[j]:.2f} %"]
        + [f"{numbers[j]:.3g}" for numbers in (choice.distances, choice.errors)]
        for j in choice.places
    ]
    for pane, order in zip(rows, (slice(None), slice(None, None, -1)), strict=True):
        assert [row[1:] for row in pane] == numbers[order]
        names = zip(pane, (chosen, other)[order], strict=True)
        assert all(f"token {position}" in row[0] for row, position in names)
        assert "evicted here" in pane[0][0]
    assert "moves the output least" in rows[1][0][0]
    marks = {}
    for position in (chosen, 0):
        classes = (
            f"[...document.querySelectorAll('[id$=\"-{position}\"]')].map(each => each.classList)"
        )
        marks[position] = page.evaluate(
            f"{classes}.map(own => ['pg-fewer', 'pg-more'].filter(mark => own.contains(mark)))"
        )
    assert marks == {chosen: [["pg-fewer"], ["pg-more"]], 0: [[], []]}


def test_an_address_holds_the_state(opened, reader, address):
    page = opened()
    page.locator(".pg-method select").first.select_option("ahakv")
    page.locator("#pg-budget").evaluate(
        "slider => { slider.value = 100; slider.dispatchEvent(new Event('change')); }"
    )
    page.select_option("[aria-label=Speed]", "10 tokens/s")
    page.click("#pg-run")
    page.wait_for_function("() => kvlabPlayground.block >= 12")
    page.click("#pg-run")
    wait_until(page, "waiting")
    state = page.evaluate("() => kvlabPlayground.state")
    assert state["budget"] == "100" and state["method"].startswith("ahakv")
    page.get_by_label("One token back").click()
    page.click("#pg-method-3")
    page.wait_for_url("**token=3*")
    state = page.evaluate("() => kvlabPlayground.state")
    found = reader(address, viewport=DESK)
    shared = found.open(page.url.removeprefix(address))
    wait_until(shared, "waiting")
    assert words(shared) == words(page)
    assert shared.evaluate("() => kvlabPlayground.state") == state
    assert shared.inner_text(".pg-facts caption").endswith("position 3")
    assert not found.problems


def test_settings_change_the_method(opened):
    page = opened(method="h2o")
    page.click("text=Settings of the method")
    page.locator(".pg-options select").first.select_option("max")
    assert page.evaluate("() => kvlabPlayground.state.method") == "h2o@reduce=max"
    slider = page.locator(".pg-options input[type=range]").nth(1)
    slider.evaluate("each => { each.value = 2; each.dispatchEvent(new Event('change')); }")
    assert page.evaluate("() => kvlabPlayground.state.method") == "h2o@reduce=max,every=3"
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("() => kvlabPlayground.block") == -1
    assert page.evaluate("() => kvlabPlayground.state.method") == "h2o@reduce=max,every=5"
    page.click("text=The method’s four answers")
    assert "every 5 generated tokens" in page.locator(".pg-answers").first.inner_text()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"method": EVIL}, "unknown method <img"),
        ({"method": "h2o@recent=900"}, "must be at least the 900 entries that are protected"),
        ({"method": "h2o@__proto__=1"}, "unknown option __proto__"),
        ({"method": "caote:rkv"}, "CAOTE needs retention scores"),
        ({"text": f"↵ {EVIL} ↵", "problem": "reasoner-0"}, "is no word of the model"),
        ({"text": f"c = 4\n{EVIL}\nstart at L1"}, "must be like"),
        ({"text": "a = 1\n" + 90 * "L1 a = a + a\n" + "start at L1"}, "more than the 512 that"),
        ({"problem": "__proto__-constructor", "method": EVIL}, "unknown method <img"),
    ],
)
def test_bad_input_is_refused_and_stays_text(opened, state, said):
    page = opened()
    page.evaluate("hash => { location.hash = hash; }", urlencode(state))
    page.locator(".pg-error:visible").first.wait_for()
    assert said in page.locator(".pg-error:visible").first.inner_text()
    page.click("#pg-run")
    assert page.locator("img").count() == 0 and page.title() == "Playground - kvlab"


def test_a_model_that_is_missing_is_named(reader, address):
    found = reader(address)
    found.page.route("**/model-*.js", lambda route: route.abort())
    page = found.open("playground/index.html")
    page.locator(".pg-error:visible").wait_for()
    assert page.inner_text(".pg-error:visible") == f"model-{FIRST}.js is not beside this page"
    assert "could not be loaded" in page.inner_text("output[for=pg-budget]")


def test_keys_and_names_for_those_who_do_not_see_or_point(opened):
    page = opened(method="h2o")
    unnamed = page.evaluate("""() => {
        const own = each => each.ariaLabel || each.tagName === 'BUTTON' && each.textContent.trim();
        const labelled = each => [...(each.labels ?? [])].some(label => label.textContent.trim());
        return [...document.querySelectorAll('.pg :is(button, select, input, textarea)')]
            .filter(each => !own(each) && !labelled(each)).map(each => each.outerHTML); }""")
    assert not unnamed
    page.locator("body").press(" ")
    wait_until(page, "done")
    last = words(page)
    page.locator("body").press("ArrowLeft")
    assert words(page) == last[:-1]
    page.locator("#pg-step").press("Home")
    assert len(words(page)) == 1
    page.locator("#pg-step").press("End")
    assert words(page) == last
    text = page.locator(".pg-text").first
    text.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        text.press(key)
    assert text.get_attribute("aria-activedescendant") == "pg-method-11"
    chosen = page.locator("#pg-method-11")
    assert chosen.get_attribute("aria-selected") == "true"
    assert "kept" in (chosen.get_attribute("aria-label") or "")
    assert page.locator(".pg-facts:visible table tbody tr").count() == 4
    text.press("End")
    count = text.locator("[role=option]:not([hidden])").count()
    assert text.get_attribute("aria-activedescendant") == f"pg-method-{count - 1}"
    assert page.locator("[role=status].pg-verdict").first.inner_text() != ""


def test_on_a_phone_two_taps_show_a_failure(opened):
    page = opened(viewport=PHONE)
    assert len(set(page.locator("[aria-label=Problem] option").all_text_contents())) == 31
    run(page)
    box = page.locator(".pg-verdict").first.bounding_box()
    assert page.locator(".pg-verdict").first.inner_text().startswith("✗")
    assert box["y"] >= 0 and box["y"] + box["height"] <= PHONE["height"]
    page.click("text=Every entry of one head")
    page.click("text=Settings of the method")
    page.locator("#pg-method-3").click()
    controls = page.locator(".pg :is(button, select, input, summary):visible")
    heights = controls.evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert len(heights) > 15 and min(heights) >= 44
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


LAB_PROGRAMS = 2
SCORE = "function score(entry) {{\n  {}\n}}"


@pytest.fixture
def lab(opened):
    """The lab of the common page, with few programs."""
    page = opened()
    page.evaluate(f"kvlabPlayground.lab.programs.length = {LAB_PROGRAMS}")
    return page


def try_score(page, code):
    page.fill(".pg-editor textarea", code)
    page.click(".pg-go")


def wrong_places(spec):
    """Return the place of the first wrong token of each program at 60 %; −1 if there is none."""
    places = []
    for problem in jumps.held_out(LAB_PROGRAMS, size=jumps.Size(fewest=18, most=22)):
        budget = -(-60 * (problem.tokens - 1) // 100)
        written = expected_words(FIRST, spec, budget, problem.prompt)
        solution = problem.solution.replace("\n", "↵").split(" ")
        pairs = zip(written, solution, strict=False)
        places.append(next((i for i, (a, b) in enumerate(pairs) if a != b), -1))
    return places


def test_a_score_of_the_readers_own_stands_beside_its_control_and_rivals(lab):
    lab.get_by_label("Budget: ").select_option("60")
    lab.get_by_label("Start from").select_option("CAOTE")
    lab.click(".pg-go")
    lab.locator(".pg-lab .pg-verdict").filter(has_text="random eviction").wait_for()
    rows = lab.evaluate("kvlabPlayground.lab.result.map(({ wrong }) => wrong)")
    control, h2o, caote = map(wrong_places, ("random:h2o", "h2o", "caote:h2o"))
    assert rows == [caote, control, h2o, caote, [-1] * LAB_PROGRAMS] and control != h2o != caote
    cells = lab.locator(".pg-results tbody tr").first.locator("td").all_inner_texts()
    assert cells[0].startswith(f"{caote.count(-1)} of {LAB_PROGRAMS}: ")
    assert "It gets as far as CAOTE at 60 %" in lab.inner_text(".pg-lab .pg-verdict")
    lab.locator(".pg-results tr:nth-child(2) button").click()
    lab.wait_for_function(
        "kvlabPlayground.wrong >= 0 && kvlabPlayground.block === kvlabPlayground.wrong"
    )
    lab.wait_for_url("**step=*")
    first = min(range(LAB_PROGRAMS), key=lambda index: control[index] % 1000)
    state = lab.evaluate("() => kvlabPlayground.state")
    assert state["method"].startswith("random:yours@") and state["problem"] == f"{FIRST}-{first}"
    assert int(state["step"]) == control[first]


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [
        (SCORE.format("return entry.;"), "Unexpected token", 2),
        (SCORE.format("const one = 1;\n  return none + one;"), "none is not defined", 3),
        (SCORE.format("for (;;) {}"), "is there an endless loop?", None),
        (SCORE.format(""), "score returned undefined for token 0", None),
        (SCORE.format("return fetch('x');"), "fetch is not a function", 2),
        (SCORE.format("return 2 * entry.recieved;"), "did you mean received?", 2),
        (SCORE.format("return entry.recieved > 0 ? 1 : 0;"), "did you mean received?", 2),
        (SCORE.format("return entry.weight;"), "no field weight; it has received, ", 2),
        ("const x = 1;", "must have a function score(entry)", None),
    ],
)
def test_what_is_wrong_with_a_score_is_told_at_its_line(lab, code, said, line):
    try_score(lab, code)
    lab.locator(".pg-lab .pg-error:visible").wait_for()
    told = lab.inner_text(".pg-lab .pg-error")
    assert said in told and told.startswith("Line ") == (line is not None)
    marked = lab.locator(".pg-wrong-line").all_inner_texts()
    assert [text.strip() for text in marked] == ([str(line)] if line else [])
    assert lab.inner_text(".pg-go").startswith("Run on")


def test_an_address_holds_a_score_and_does_not_run_it(opened, reader, address):
    page = opened()
    page.get_by_label("Protected: ").select_option("nothing")
    page.fill(".pg-editor textarea", SCORE.format("for (;;) {} // é"))
    page.wait_for_url("**score=yours*")
    found = reader(address, viewport=DESK)
    shared = found.open(page.url.removeprefix(address) + "&method=yours&step=3")
    shared.wait_for_selector("#pg-budget:enabled")
    assert shared.input_value(".pg-editor textarea") == SCORE.format("for (;;) {} // é")
    assert shared.input_value(".pg-choices label:first-of-type select") == "nothing"
    wait_until(shared, "waiting")
    shared.click("text=See it at work")
    shared.locator(".pg-pane .pg-error:visible").filter(has_text="an endless loop").wait_for()
    assert not found.problems
