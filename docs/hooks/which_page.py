"""The page "Which method for my model?": a form above cases that can be read without it."""

import json
import re
from html import escape
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

from kvlab.reference.simulator.sizes import SHAPES
from study.choices import CASES, SIZES, Case, command, known, percent_of

FORM, KNOWN, END = "<!-- form -->", "<!-- known -->", "<!-- end -->"
MARK = re.compile(r"<!-- case (\w+) -->\n(.*?)(?=<!-- case|<!-- end -->)", re.DOTALL)
SHOWN = {"model": "MODEL", "window": 512, "prompt": 128, "budget": "50%"}
"""What stands in a command where scripts are off."""


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the form and what is known into the page.

    Raises:
        PluginError: if the page lacks a case, a mark, or the form.
    """
    if page.file.src_uri != "which.md":
        return markdown
    cases = {each.name: each for each in CASES}
    named = [found[1] for found in MARK.finditer(markdown)]
    if named != list(cases) or any(markdown.count(mark) != 1 for mark in (FORM, END)):
        raise PluginError(f"docs/which.md must hold {FORM}, {END} and the cases {list(cases)}")
    text = MARK.sub(lambda found: section(cases[found[1]], found[2]), markdown)
    return text.replace(FORM, form()).replace(END, "")


def section(case: Case, text: str) -> str:
    """Write a case: what is advised, the command, and what was measured at every budget."""
    if text.count(KNOWN) != 1:
        raise PluginError(f"docs/which.md must hold {KNOWN} once in the case {case.name}")
    shown = command(case).format_map(SHOWN)
    measured = [f"**Known**, of {case.where}:"]
    for budget in case.budgets:
        rows = "\n".join(f"- {line}" for line in known(case, budget))
        heading = f"\nWith {percent_of(budget)} % of the entries:\n" * (len(case.budgets) > 1)
        measured.append(
            f'<div data-budget="{percent_of(budget)}" markdown>\n{heading}\n{rows}\n\n</div>'
        )
    code = f'<pre class="kvlab-still"><code>{escape(shown)}</code></pre>'
    inside = text.replace(KNOWN, "\n\n".join([code, *measured])).strip()
    return (
        f'<section class="kvlab-case" data-case="{case.name}" data-tokens="{case.tokens}" '
        f'data-where="{escape(case.where)}" markdown>\n\n### {case.lost}\n\n{inside}\n\n'
        "</section>\n\n"
    )


def form() -> str:
    """Write the form; a script shows it and answers."""
    sizes = "".join(f"<option>{escape(name)}</option>" for name in SIZES)
    lost = "".join(
        f'<label><input type="radio" name="case" value="{each.name}"'
        f"{' checked' * (each is CASES[0])}> {escape(each.lost)}</label>"
        for each in CASES
    )
    commands = {each.name: command(each) for each in CASES}
    data = {"sizes": SIZES, "planned": [*SHAPES], "commands": commands}
    given = json.dumps(data).replace("<", "\\u003c")
    return (
        '<link rel="stylesheet" href="stylesheets/forms.css">\n'
        '<form id="kvlab-which" class="kvlab-form" hidden>'
        '<label>Model: short name, directory, or owner/name@revision<input name="model" '
        'value="smollm2" spellcheck="false" autocomplete="off"></label>'
        f'<label>Its sizes are those of<select name="sizes">{sizes}'
        "<option value=''>another model</option></select></label>"
        '<label>Tokens of a text, with its answer<input name="tokens" type="number" required '
        'min="16" value="4096"></label>'
        '<label>Texts at once<input name="texts" type="number" required min="1" value="1"></label>'
        '<label>MiB of memory for their caches<input name="memory" type="number" required min="1" '
        'step="any" value="32"></label>'
        f"<fieldset><legend>What may be lost?</legend>{lost}</fieldset></form>\n"
        '<div id="kvlab-answer" class="kvlab-answer" aria-live="polite" hidden><p></p>'
        "<pre><code></code></pre><ul></ul></div>\n"
        f'<script type="application/json" id="kvlab-known">{given}</script>\n'
        '<script src="javascripts/which.js" defer></script>\n'
    )
