"""Every method has a page of one shape, and a site whose links lead elsewhere is not built."""

import inspect
import re
import shlex
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.utils.meta import get_data

from kvlab.fast.lab.points import EXCEEDED
from kvlab.reference import methods
from support.running import printed
from support.sampling import sampled
from support.shapes import shapes_checked
from support.site import ROOT, module

method_pages, method_sections = module("method_pages"), module("method_sections")
registry_pages, source_pages = module("registry_pages"), module("source_pages")
symbols = module("symbols")
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
ONE = sampled(PAGES, [ROOT / "docs" / "methods" / "h2o.md"])
"""What runs on every page in the slow tests."""
SECTIONS = (
    "Run it",
    "Four answers",
    "Equations",
    "State and cost",
    "Edge cases",
    "Errata and divergences",
    "Options",
)


def parsed(page):
    return get_data(page.read_text(encoding="utf-8"))


@cache
def generated(page):
    body, meta = parsed(page)
    return method_pages.written(page.stem, meta, body, str, "the picture", "the costs")


def test_every_method_has_a_page_and_the_site_lists_it():
    about = [name for page in PAGES for name in names_on(parsed(page)[1])]
    assert sorted(about) == sorted(own_methods())
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)
    registry_pages.on_config(SimpleNamespace(nav=config["nav"]))
    (listed,) = [section["Methods"] for section in config["nav"] if "Methods" in section]
    files = [path for each in listed for path in each.values()]
    pages = ("methods.md", "precisions.md", *(f"methods/{page.name}" for page in PAGES))
    assert sorted(files) == sorted(pages)
    assert files[2:4] == ["methods/full.md", "methods/random.md"], "not in the order of publication"
    assert {"Full cache": "methods/full.md"} in listed


def own_methods():
    """Methods of this repository; those of other packages need no page."""
    files = {name: Path(inspect.getfile(methods.lookup(name))) for name in methods.names()}
    return [name for name, file in files.items() if file.resolve().is_relative_to(ROOT)]


def test_the_overview_has_a_row_for_every_page():
    overview = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    shown = registry_pages.on_page_markdown(overview, None)
    assert all(f"(methods/{page.name})" in shown for page in PAGES)
    assert "| [`h2o`](methods/h2o.md) | accumulated attention | every step | last B/2 |" in shown
    table = shown.partition("## All methods")[2].partition("\n## ")[0].splitlines()
    columns = {line.count(" | ") for line in table if line.startswith("| ")}
    assert columns == {len(registry_pages.COLUMNS) + 1}


def test_the_reference_documents_the_module_of_every_method():
    page = (ROOT / "docs" / "api" / "methods.md").read_text(encoding="utf-8")
    shown = registry_pages.on_page_markdown(page, None)
    for name in own_methods():
        assert f"::: {methods.lookup(name).__module__}\n" in shown + "\n"


def test_a_mark_without_an_answer_would_be_seen():
    for page in (ROOT / "docs").rglob("*.md"):
        marks = re.findall(r"\{\{ (.*?) \}\}", page.read_text(encoding="utf-8"))
        assert set(marks) <= registry_pages.PARTS.keys(), page
    assert registry_pages.on_page_markdown("{{ nothing }}", None) == "{{ nothing }}"


def names_on(meta):
    return [meta["method"], *meta.get("also", ())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_shape_of_all_pages(page):
    text = generated(page)
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == SECTIONS
    title, idea, *shown = parsed(page)[0].partition("## ")[0].strip().split("\n\n")
    assert title.startswith("# ") and (not shown or shown[0].startswith("!["))
    assert len(re.findall(r"[.!?](?=\s|$)", idea)) == 2, "the idea takes two sentences"
    meta = parsed(page)[1]
    tags = [each["tag"] for each in meta["equations"]]
    assert sorted(tags) == sorted(methods.lookup(meta["method"]).equations)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_formula_becomes_mathml(page):
    text = generated(page)
    formulas = re.findall(r"\$\$(.+?)\$\$|(?<![\w$])\$([^$\n]+)\$", text, re.DOTALL)
    assert len(formulas) >= len(parsed(page)[1]["equations"])
    for block, inline in formulas:
        written = re.sub("<.*?>", "", convert((block or inline).strip()))
        assert "\\" not in written, "a command that the converter does not know"


def test_a_site_whose_links_lead_elsewhere_ends_the_build(tmp_path, monkeypatch):
    right = symbols.definition("reference/methods/h2o.py:H2O")
    (tmp_path / "h2o").mkdir()
    (tmp_path / "h2o" / "index.html").write_text(source_pages.listing(right.path))
    config = SimpleNamespace(site_dir=str(tmp_path))
    monkeypatch.setattr(method_pages, "links", [(right, f"h2o/#L{right.line}")])
    method_pages.on_post_build(config)
    monkeypatch.setattr(method_pages, "links", [(right, f"h2o/#L{right.line + 1}")])
    with pytest.raises(PluginError, match="does not show H2O of reference"):
        method_pages.on_post_build(config)
    monkeypatch.setattr(method_pages, "links", [])
    with pytest.raises(PluginError, match="no page was built"):
        method_pages.on_post_build(config)


def test_a_page_whose_equation_is_in_another_function_ends_the_build():
    """As if the tag of CAOTE's error had moved into `normalize`."""
    body, meta = parsed(ROOT / "docs" / "methods" / "caote.md")
    (error,) = [each for each in meta["equations"] if each["tag"] == "CAOTE 21"]
    wrong = {**error, "reference": "reference/methods/caote.py:normalize"}
    with pytest.raises(PluginError, match=r"caote.md: \[CAOTE 21\] .*:eviction_error, not of"):
        method_pages.written("caote", {**meta, "equations": [wrong]}, body, str, "", "")
    del wrong["reference"]
    with pytest.raises(PluginError, match="its front matter lacks 'reference'"):
        method_pages.written("caote", {**meta, "equations": [wrong]}, body, str, "", "")


# --- what the package says -----------------------------------------------------------------------


def test_options_are_the_registrys_with_their_defaults_and_say_what_they_mean():
    for name, about in methods.describe().items():
        said = method_sections.field_docstrings(methods.lookup(name))
        assert set(about["options"]) <= said.keys()
    listed = method_sections.options("lazy_eviction")
    for option, default in methods.describe()["lazy_eviction"]["options"].items():
        assert f"- `{option} = {method_sections.value(default)}` (" in listed
    assert "`sigmoid`, `exp`" in listed
    assert "Generated tokens W between two evictions" in listed
    assert "`lazy_eviction-h1` is `lazy_eviction@h1=none`" in listed
    assert method_sections.options("full") == "None."


def test_every_reading_is_listed_with_its_option():
    shown = method_sections.errata({"method": "lazy_eviction", "errata": True})
    for each in methods.divergences("lazy_eviction"):
        assert f"**{each.topic}**" in shown
    assert "<code>lazy_eviction@guard=true</code>" in shown
    assert "LE-1: Eq. 2 and Appendix D, H2" in shown


@pytest.mark.parametrize("page", ONE, ids=lambda page: page.stem)
def test_the_command_runs(page, here):
    text = method_sections.usage(parsed(page)[1])
    program, *arguments = shlex.split(re.findall(r"^kvlab .+$", text, re.MULTILINE)[0])
    assert program == "kvlab"
    short = ["--problems=1", "--task=jumps@fewest=4,most=6"]
    own = [*short, "--backend=reference", "--workers=1", "--table"]
    with shapes_checked(False):
        shown = printed(*arguments, *own)
    spec = parsed(page)[1]["picture"][0]
    row = rf"^ *{re.escape(spec)}\s+\S+( {EXCEEDED})?\s+\d+ \("
    assert re.search(row, shown, re.MULTILINE)


@pytest.mark.parametrize("page", ONE, ids=lambda page: page.stem)
def test_the_example_runs(page, capsys):
    text = method_sections.usage(parsed(page)[1])
    (snippet,) = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    exec(compile(snippet, str(page), "exec"), {})
    assert "bytes of keys and values" in capsys.readouterr().out
