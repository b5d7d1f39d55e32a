"""Texts use the words of the field, and pages of the learner's path were read as they are."""

import ast
import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HELD_AGAINST = (ROOT / "tests" / "held_against.txt").read_text("utf-8").splitlines()
"""Sentences and words that a first reader held against the texts."""
FOLDERS = ("docs", "notebooks", "reference", "fast")
FILES = [ROOT / "README.md", *(x for each in FOLDERS for x in (ROOT / each).rglob("*.*"))]
NAV = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2].partition("  - Methods:")[0]
READ = re.compile(r"^(?:# *)?read: 20\d\d-\d\d-\d\d ([0-9a-f]{8})\n", re.MULTILINE)
"""In a page's source: when somebody read it as a newcomer, and a digest of the text then."""


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


@pytest.mark.parametrize("page", [*re.findall(r"(\S+)\.md\n", NAV), "methods", "results"])
def test_a_page_of_the_path_was_read_as_it_is(page):
    """A change of the text clears the note: read the page again, then write what is expected."""
    path = ROOT / f"{page}.py" if "notebooks" in page else ROOT / "docs" / f"{page}.md"
    text = path.read_text("utf-8")
    digest = hashlib.sha256(READ.sub("", text).encode()).hexdigest()[:8]
    assert READ.findall(text) == [digest]
