"""Formulas of the site as MathML, made when it is built: no script, no font from elsewhere."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Replace what `pymdownx.arithmatex` marks."""
    html = INLINE.sub(lambda found: formula(found[1], "inline"), html)
    return DISPLAY.sub(lambda found: boxed(formula(found[1], "block")), html)


def boxed(mathml: str) -> str:
    """Let a formula that is wider than the page be scrolled by itself."""
    return f'<div class="kvlab-formula">{mathml}</div>'


def formula(latex: str, display: str) -> str:
    """Return one formula as MathML."""
    return convert(unescape(latex).strip(), display=display)
