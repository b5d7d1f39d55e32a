"""Pictures that stand as files: no text leaves its box, and every one is dark on a dark screen."""

from pathlib import Path

import pytest

IMAGES = Path("docs/images").resolve()
PICTURES = sorted([*IMAGES.glob("*.svg"), *IMAGES.glob("narrow/*.svg")])
OUTSIDE = """() => {
  const root = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll("text")].filter(text => {
    const { left, top, right, bottom } = text.getBoundingClientRect();
    return left < root.left - 1 || top < root.top - 1 || right > root.right + 1
      || bottom > root.bottom + 1;
  }).map(text => text.textContent); }"""


@pytest.fixture(scope="module")
def shown(reader):
    found = reader("file:///", viewport={"width": 1400, "height": 900}, color_scheme="dark")
    return lambda path: found.open(path.as_posix().removeprefix("/"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: str(path.relative_to(IMAGES)))
def test_no_text_leaves_its_picture(shown, path):
    page = shown(path)
    assert page.locator("text").count() and not page.evaluate(OUTSIDE)
    assert "prefers-color-scheme" in path.read_text("utf-8")


def test_a_text_outside_is_noticed(shown, tmp_path):
    text = '<text x="80" y="20">far too long for this picture</text>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 40">{text}</svg>'
    (tmp_path / "wide.svg").write_text(svg)
    assert shown(tmp_path / "wide.svg").evaluate(OUTSIDE)
