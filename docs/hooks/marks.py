"""Marks of a page: comments in whose place a hook puts what it makes."""

from collections.abc import Callable, Mapping

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page


def replaced(markdown: str, page: Page, made: Mapping[str, Callable[[], str]]) -> str:
    """Put what is made in the place of marks.

    Raises:
        PluginError: if a mark does not stand in the page once.
    """
    for mark in made:
        if markdown.count(mark) != 1:
            raise PluginError(f"docs/{page.file.src_uri} must hold {mark} once")
    for mark, make in made.items():
        markdown = markdown.replace(mark, make())
    return markdown
