"""Texts use the words of the field; changed pages of the learner's path are listed."""

import ast
import re

from support.site import ROOT, module

reread = module("reread")
HELD_AGAINST = (ROOT / "tests" / "house" / "held_against.txt").read_text("utf-8").splitlines()
"""Sentences and words that a first reader held against the texts."""
FOLDERS = ("docs", "notebooks", "reference", "fast")
FILES = [ROOT / "README.md", *(x for each in FOLDERS for x in (ROOT / each).rglob("*.*"))]


def prose(path):
    """Return a page, or the docstrings and messages of a module: as they are, then in one line."""
    text = path.read_text("utf-8")
    if path.suffix == ".py" and path.parent.name != "notebooks":
        texts = (each.value for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Constant))
        text = "\n".join(each for each in texts if isinstance(each, str) and " " in each)
    return text + "\n" + re.sub(r"\s*\n[\s#/*:]*", " ", text)


def test_no_text_has_words_that_a_first_reader_held_against_it():
    pattern = re.compile("|".join(HELD_AGAINST), re.MULTILINE)
    own = [path for path in FILES if path.suffix in (".md", ".py", ".mjs")]
    texts = {path: prose(path) for path in own if "results" not in path.parts}
    found = {path: [hit[0] for hit in pattern.finditer(text)] for path, text in texts.items()}
    assert len(texts) > 300 and not {path: hits for path, hits in found.items() if hits}


def test_every_page_of_the_path_notes_when_it_was_read():
    assert len(reread.PAGES) > 10
    assert not [
        page for page in reread.PAGES if len(reread.READ.findall(page.read_text("utf-8"))) != 1
    ]


def test_a_changed_page_is_listed_with_the_note_to_write(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("---\nread: 2026-01-31 00000000\n---\nA comma, mended.\n")
    listed = reread.changed(page)
    assert listed.startswith("page.md has changed; it notes 2026-01-31 00000000; read today: ")
    page.write_text(page.read_text().replace("00000000", listed.split()[-1]))
    assert reread.changed(page) is None
