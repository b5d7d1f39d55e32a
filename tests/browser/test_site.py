"""Every page of the built site in a real browser, without a network; `make pages` runs it.

The site is served from this machine, and once opened as files. The browser finds no other machine
(``conftest.py``); whatever a page asks for elsewhere is noted.
"""

import re
import shlex
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from posixpath import dirname, normpath
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.reference import methods
from support.site import module

SITE = Path(__file__).parents[2] / "site"
LEARNED = [f"{page}.html" for page in module("reread").PATH]
pytestmark = pytest.mark.site
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1400, "height": 800}
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
READ = [name for name in PAGES if not name.startswith("source/")]
"""Pages but for listings of source files, which are all alike: the browser opens every 19th."""


@pytest.fixture(scope="module")
def address():
    assert (SITE / "index.html").exists(), f"{SITE} holds no site: run `make docs`"
    files = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    server = ThreadingHTTPServer(("127.0.0.1", 0), files)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def reader(reader, address):
    return lambda home=address, **options: reader(home, **options)


def test_a_reader_notes_errors_and_requests_elsewhere(reader, tmp_path):
    """The negative control of all tests below."""
    broken = '<script>console.error("no"); missing()</script><img src="http://example.com/x.png">'
    (tmp_path / "broken.html").write_text(broken, encoding="utf-8")
    found = reader(home=f"{tmp_path.as_uri()}/")
    found.open("broken.html")
    told = "\n".join(found.problems)
    assert "outside: http://example.com/x.png" in told
    assert "no" in told and "missing is not defined" in told


SHOWN = """() => {
  const root = document.documentElement;
  const article = document.querySelector("article") ?? document.body;
  const words = one => one === null ? 0 : one.innerText.split(/\\s+/).length;
  const read = words(article) - words(document.querySelector("#kvlab-playground"));
  const found = { width: root.scrollWidth, height: root.scrollHeight, words: read };
  const formulas = [...document.querySelectorAll("article math")];
  const box = one => one.getBoundingClientRect();
  const flat = one => one.checkVisibility() && !(box(one).width > 0 && box(one).height > 0);
  found.formulas = formulas.length;
  found.unseen = formulas.filter(flat).map(one => one.textContent);
  article.querySelectorAll("details").forEach(each => { each.open = true; });
  found.cut = [...article.querySelectorAll("table, svg, img")].filter(one => {
    let around = one.parentElement;
    while (around !== root && getComputedStyle(around).overflowX === "visible")
      around = around.parentElement;
    const told = getComputedStyle(around).backgroundAttachment.includes("local");
    const edge = Math.min(box(around).right, root.clientWidth);
    return !(told && root.clientWidth < 600) && box(one).right > edge + 1;
  }).map(one => one.textContent.slice(0, 40));
  found.cut.push(...[...article.querySelectorAll("svg text")].filter(one => {
    const text = box(one), picture = box(one.ownerSVGElement);
    return text.width > 0 && (text.left < picture.left - 1 || text.top < picture.top - 1
      || text.right > picture.right + 1 || text.bottom > picture.bottom + 1);
  }).map(one => one.textContent));
  return found; }"""
"""Sizes, formulas that take no room, and what is cut off: on a phone, without a shadow."""


@pytest.fixture(scope="module")
def visits(reader):
    """Every page opened once, on a desk and on a phone; and what all of them complain about."""
    found, visits = reader(viewport=DESK), {}
    for name in [*READ, *[name for name in PAGES if name not in READ][::19]]:
        page = found.open(name)
        if name not in READ:
            continue
        desk = page.evaluate(SHOWN)
        page.set_viewport_size(PHONE)
        visits[name] = desk, page.evaluate(SHOWN)
        page.set_viewport_size(DESK)
    return visits, found.problems


def test_no_page_complains_or_asks_for_anything_elsewhere(visits):
    assert len(PAGES) > 50 and not visits[1]


def test_pages_can_be_opened_as_files(reader):
    found = reader(home=f"{SITE.as_uri()}/", viewport=DESK)
    page = found.open("index.html")
    page.get_by_role("link", name="CAOTE", exact=True).first.click()
    page.wait_for_url("**/methods/caote.html")
    assert page.locator("h1").inner_text().startswith("CAOTE")
    assert not [each for each in found.problems if not each.endswith("/search/search_index.js")]


def test_formulas_are_drawn(visits, reader):
    """A browser that knows MathML gives fractions a bar: the numerator stands above."""
    pages = {name: desk for name, (desk, _) in visits[0].items()}
    assert not {name: each["unseen"] for name, each in pages.items() if each["unseen"]}
    assert sum(each["formulas"] for each in pages.values()) > 100
    page = reader(viewport=DESK).open("methods/caote.html")
    assert page.evaluate("""document.fonts.ready.then(fonts =>
      [...fonts].some(font => font.family.includes("STIX") && font.status === "loaded"))""")
    above, below = page.locator("math mfrac > *").evaluate_all(
        "all => all.slice(0, 2).map(one => one.getBoundingClientRect().top)"
    )
    assert above < below


def test_a_phone_never_scrolls_sideways(visits):
    wide = [name for name, (_, phone) in visits[0].items() if phone["width"] > PHONE["width"]]
    assert not wide


def test_no_page_is_long_and_nothing_is_cut_off(visits):
    heights = {name: desk["height"] for name, (desk, _) in visits[0].items()}
    endless = ("api/", "claims")
    long = {name: x for name, x in heights.items() if x > 12_000 and not name.startswith(endless)}
    cut = {name: desk["cut"] + phone["cut"] for name, (desk, phone) in visits[0].items()}
    assert not long and not {name: found for name, found in cut.items() if found}


def test_the_path_of_a_learner_is_short(visits):
    assert len(LEARNED) <= 15 and sum(visits[0][name][0]["words"] for name in LEARNED) <= 20_000


@pytest.mark.parametrize("name", ["index.html", "playground/index.html"])
def test_without_scripts_a_picture_stands_in_the_place_of_a_frame(reader, name):
    page = reader(viewport=DESK, java_script_enabled=False).open(name)
    assert page.locator("noscript svg").first.is_visible()
    assert not page.locator("iframe").filter(visible=True).count()


def test_the_first_page_plays_a_generation(reader):
    found = reader(viewport=DESK, color_scheme="light")
    page = found.open("index.html")
    page.locator("iframe.kvlab-frame").scroll_into_view_if_needed()
    frame = page.frame_locator("iframe.kvlab-frame")
    tokens = frame.locator("[role=listbox]").first.locator("[role=option]")
    tokens.first.wait_for()

    def colours(step):
        frame.locator("#step").fill(str(step))
        return tokens.evaluate_all("all => all.map(one => one.className)")

    last = int(frame.locator("#step").get_attribute("max") or 0)
    assert last > 5 and colours(0) != colours(last)
    kept = frame.locator("html").evaluate("page => page.scrollHeight <= page.clientHeight")
    assert kept, "the frame has a scroll bar of its own"
    for name in ("light", "dark"):  # first as the system has it
        page.locator(f"label[title={name}]:visible").click()
    frame.locator("html[data-theme=dark]").wait_for()
    assert not found.problems


def test_the_form_writes_commands_that_kvlab_reads_and_says_what_is_known(reader):
    page, known = reader(viewport=PHONE).open("which.html"), get_command(app).commands
    page.locator("[name=model]").fill("owner/name@main")
    page.get_by_label("sizes").select_option("llama-3.1-8b")
    page.get_by_label("memory").fill("256")  # half of 4,096 tokens of 128 KiB
    for place, name in enumerate([*["perplexity"] * 3, "needle", "perplexity"]):
        page.locator("[name=case]").nth(place).press("Space")
        lines = page.locator("#kvlab-answer code").inner_text().splitlines()
        (_, measure, *words), (_, plan, *sizes) = map(shlex.split, lines)
        asked = known[measure].make_context(measure, words).params
        assert (measure, asked["model"], asked["budgets"]) == (name, "owner/name@main", ["50%"])
        assert all(map(methods.parse, asked["methods"].split()))
        assert known[plan].make_context(plan, sizes).params["budget"] == "50%"
        (told,) = page.locator("[data-budget]:visible").all_inner_texts()
        assert "its control" in told and "significant" in told


def test_the_form_of_speeds_says_what_the_planner_prints(reader):
    page = reader(viewport=PHONE).open("benchmarks.html")
    page.locator("[name=tokens]").fill("4096")
    page.locator("[name=batch]").fill("60")
    assert page.get_by_text("As many texts: at most 2.05 ×.").is_visible()
    _, *words = shlex.split(page.locator("#kvlab-paid code").inner_text())
    assert "2.05 times" in CliRunner().invoke(app, words).output


def test_a_value_of_a_notebook_is_dragged(reader):
    page = reader(viewport=PHONE).open("notebooks/02_caote.html")
    page.locator("details:has(.kvlab-dragged) > summary").click()
    shown = page.locator(".kvlab-dragged")
    assert "CAOTE entry 1." in shown.inner_text()
    shown.locator("input").fill("12")
    assert "CAOTE entry 0." in shown.inner_text()


class Anchors(HTMLParser):
    def __init__(self, name):
        super().__init__()
        self.links, self.ids = set(), set()
        self.feed((SITE / name).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])


def test_pages_link_to_what_exists():
    """Links within the site, with their anchors; `mkdocs build --strict` does not see raw HTML."""
    others = ("404.html", "viewer.html", "english.html")
    pages = {name: Anchors(name) for name in PAGES if name not in others}
    missing, followed = [], 0
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = normpath(f"{dirname(name)}/{unquote(parts.path)}").lstrip("/")
            target = target if parts.path else name
            followed += 1
            there = (SITE / target).is_file()
            anchored = target not in pages or unquote(parts.fragment) in pages[target].ids
            if not there or (parts.fragment and not anchored):
                missing.append((name, link))
    assert followed > 1000 and not missing


def backslashes(html):
    """What stands around each backslash that a reader sees in a text."""
    article = html.partition("<article")[2].partition("</article>")[0].partition(">")[2]
    text = re.sub(r"(?s)<(code|pre|math|script|style)\b.*?</\1>|<[^>]*>", "", article)
    return re.findall(r".{0,20}\\.{0,20}", unescape(text))


def test_no_text_shows_an_escape():
    pages = {name: backslashes((SITE / name).read_text(encoding="utf-8")) for name in READ}
    assert not {name: found for name, found in pages.items() if found}


def test_an_escape_in_a_text_is_noticed():
    html = r"<article><code>a\b</code><p>p \&lt; <math>\</math> <pre>\</pre></article>"
    assert backslashes(html) == [r"p \<  "]
