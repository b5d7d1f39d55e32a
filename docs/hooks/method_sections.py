"""A method's page: what its file says, and what the package knows of answers, lines and options.

A page ``docs/methods/NAME.md`` states in its front matter what the package cannot know:

| entry | holds |
|---|---|
| ``method`` | name in the registry |
| ``also`` | further names in the registry that the page is about |
| ``row`` | the method's row in the table of all methods, by column |
| ``policy`` | specification whose answers and cost are shown; default: the method's name |
| ``picture`` | specifications whose kept entries are drawn |
| ``errata`` | true, if the claims of the method's paper were checked |
| ``equations`` | list, in reading order, of the entries below |

| entry of an equation | holds |
|---|---|
| ``tag`` | the tag of the line, as in ``# [H2O 1]`` |
| ``name`` | what it says, in a few words |
| ``latex`` | the formula |
| ``says`` | the symbols, and what the code does beyond them |
| ``passage`` | where the paper has it |
| ``reference`` | function of ``reference/`` in which the tag stands |
| ``fast`` | function of ``fast/``, where it does not have the name of the reference's |
| ``kernel`` | functions that compute it on a GPU; may be missing |
| ``host`` | true where nothing is computed on the device |
| ``test`` | tests of it |

Below it come the title, one paragraph of two sentences (the idea), a picture with its text, if
there is one, and ``## Edge cases``.

A function is named as ``file.py:Class.function``; in text, ``[words](file.py:function)`` links it.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import symbols
from method_figures import BUDGET, Meta, policy
from symbols import ROOT, TARGET, Target

from kvlab.reference import methods
from kvlab.reference.files import Divergence
from kvlab.reference.method import field_docstrings
from kvlab.reference.policy import Policy
from kvlab.reference.proofs import claims

Link = Callable[[Target], str]
"""Returns the address under which a page shows a line."""

QUESTIONS = (
    ("What is an entry worth?", ("score", "budget")),
    ("When does it evict?", ("schedule",)),
    ("Which entries are protected?", ("protect",)),
    ("How precisely is it kept?", ("precision",)),
)
"""The four questions of ``reference/policy.py``, and the parts of a policy that answer them."""


def page(meta: Meta, body: str, link: Link, picture: str, cost: str) -> str:
    """Put a page together: what its file says, and what the package knows.

    Args:
        meta: front matter of its file.
        body: the rest of it.
        link: returns the address of a line.
        picture: of what is kept.
        cost: state and cost.

    Raises:
        ValueError: if it names a line that does not exist.
        KeyError: if the front matter lacks an entry.
    """
    introduction, _, edge_cases = body.partition("## Edge cases\n")
    if not edge_cases.strip():
        raise ValueError(f"{meta['method']}: the page has no edge cases")
    parts = [
        introduction.strip(),
        picture,
        "## Run it",
        usage(meta),
        "## Four answers",
        answers(policy(meta), link),
        "## Equations",
        *(equation(each, link) for each in meta["equations"]),
        *([] if meta["equations"] else ["None: nothing is chosen."]),
        "## State and cost",
        cost,
        "## Edge cases",
        edge_cases.strip(),
        "## Errata and divergences",
        errata(meta),
        "## Options",
        options(meta["method"]),
    ]
    return linked("\n\n".join(parts) + "\n", link)


def linked(text: str, link: Link) -> str:
    """Give every ``](file.py:function)`` and every ``](equation:CAOTE 8)`` its address."""
    pattern = re.compile(rf"\[([^\]]*)\]\((?:equation:([\w-]+ \d+)|({TARGET.pattern}))\)")

    def address(found: re.Match[str]) -> str:
        text, tag, place = found.groups()
        return anchor(text, symbols.equation(tag) if tag else symbols.definition(place), link)

    return pattern.sub(address, text)


def anchor(text: str, target: Target, link: Link) -> str:
    """Return a link to a line, as HTML: addresses of lines are no anchors that MkDocs knows."""
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return f'<a href="{link(target)}" title="{target.path}, line {target.line}">{shown}</a>'


# --- answers -------------------------------------------------------------------------------------


def answers(shown: Policy, link: Link) -> str:
    """List the parts of a policy with what they say of themselves."""
    budget = f" with a budget of {BUDGET:,} entries" if methods.takes_budget(shown.name) else ""
    lines = [f"As `kvlab.reference.methods` composes `{shown.name}`{budget}:", ""]
    for question, parts in QUESTIONS:
        said = "<br>".join(described(getattr(shown, part), link) for part in parts)
        lines += [f"**{question}** {said}", ""]
    return "\n".join(lines).strip()


def described(part: Any, link: Link) -> str:
    """Return a part's name and docstring, and what it has besides the method's options."""
    kind = type(part)
    file = Path(inspect.getfile(kind)).resolve().relative_to(ROOT / "reference")
    target = symbols.definition(f"reference/{file.as_posix()}:{kind.__name__}")
    names = [each.name for each in fields(part) if each.name != "options"]
    own = {name: getattr(part, name) for name in names}
    plain = {name: x for name, x in own.items() if not is_dataclass(x)}
    given = ", ".join(f"{name} = {value(x)}" for name, x in plain.items())
    said = first_sentence(kind)
    text = f"{anchor(f'`{kind.__name__}`', target, link)}: {said}"
    text += f" <small>({given})</small>" if given else ""
    for name, wrapped in own.items():
        if name not in plain:
            text += f"<br>↳ {name}: {described(wrapped, link)}"
    return text


def first_sentence(kind: type) -> str:
    """Return the first paragraph of a docstring as Markdown."""
    paragraph = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    return as_markdown(" ".join(paragraph.split()))


def as_markdown(text: str) -> str:
    """Write code as Markdown does."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


# --- equations -----------------------------------------------------------------------------------


def equation(each: Meta, link: Link) -> str:
    """Write an equation: formula, meaning, passage, and the lines that compute and test it."""
    tag = each["tag"]
    found = symbols.equation_in(tag, each["reference"])
    mirrored = each.get("fast") or symbols.twin(tag)
    has_twin = (ROOT / symbols.twin_path(found.path)).is_file()
    if mirrored is None and has_twin:
        raise ValueError(f"[{tag}]: fast/ has no function of that name; the page has to say which")
    lines = {
        "reference": [found],
        "fast": resolved(mirrored or ()),
        "kernel": resolved(each.get("kernel", ())),
        "test": resolved(each["test"]),
    }
    shown = [f"<dt>paper</dt><dd>{each['passage']}</dd>"]
    shown += [
        f"<dt>{kind}</dt><dd>{'<br>'.join(located(target, link) for target in targets)}</dd>"
        for kind, targets in lines.items()
        if targets
    ]
    if not has_twin:
        shown.insert(2, "<dt>fast</dt><dd>none: the reference’s score runs on the host</dd>")
    elif not lines["kernel"]:
        why = "the host counts" if each.get("host") else "PyTorch’s own operations"
        shown.insert(3, f"<dt>kernel</dt><dd>none: {why}</dd>")
    return "\n\n".join(
        [
            f"### {each['name'][0].upper()}{each['name'][1:]} <small>[{tag}]</small>",
            f"$$\n{each['latex'].strip()}\n$$",
            each["says"].strip(),
            f'<dl class="kvlab-lines">{"".join(shown)}</dl>',
        ]
    )


def resolved(given: str | Sequence[str]) -> list[Target]:
    """Find the lines of one or several functions."""
    return [symbols.definition(each) for each in ([given] if isinstance(given, str) else given)]


def located(target: Target, link: Link) -> str:
    """Return a link that shows where it leads."""
    return anchor(f"`{target.path}:{target.inside or target.name}`", target, link)


# --- errata, options, usage ----------------------------------------------------------------------


def errata(meta: Meta) -> str:
    """List what the checks refuted, and every interpretation with the option that gives another."""
    names = [meta["method"], *meta.get("also", ())]
    readings = methods.divergences(names[0])
    parts = []
    if meta.get("errata"):
        refuted = [claim for claim in claims(names[0]) if claim.expected.fails]
        parts.append(
            "Printed and not true, each with a counterexample "
            "([what the papers claim](../claims.md)):\n\n"
            + "\n".join(
                f"- [{each.tag}: {each.source}](../claims.md#{each.tag.lower()})"
                for each in refuted
            )
        )
    if readings:
        parts.append(
            f"Interpretations, as `kvlab methods {names[0]} --divergences` lists them:\n\n"
            + "\n\n".join(divergence(each) for each in readings)
        )
    return "\n\n".join(parts) or "None: there is nothing to read in two ways."


def divergence(each: Divergence) -> str:
    """Write one interpretation."""
    rows = (
        ("paper", each.paper),
        ("elsewhere", each.elsewhere),
        ("kvlab", each.default),
        ("other interpretation", option_text(each)),
    )
    shown = "".join(f"<dt>{kind}</dt><dd>{escape(text)}</dd>" for kind, text in rows)
    return f'**{each.topic}**\n\n<dl class="kvlab-lines">{shown}</dl>'


def option_text(each: Divergence) -> str:
    """Return the option with what can be typed set as code."""
    text = each.option
    for spec in each.specifications:
        text = text.replace(spec, f"`{spec}`")
    return text


def escape(text: str) -> str:
    """Return text for HTML; what stands in backticks becomes code."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)


def options(name: str) -> str:
    """List a method's options: default, kind, meaning.

    Raises:
        KeyError: if the reference does not say what one means.
    """
    kind = methods.lookup(name)
    said = field_docstrings(kind)
    hints = get_type_hints(kind)
    rows = [
        f"- `{each.name} = {value(each.default)}` ({kinds(hints[each.name])}): "
        f"{as_markdown(said[each.name])}"
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name in methods.describe()[name]["options"]
    ]
    if not rows:
        return "None."
    variants = [
        f"`{variant}` is `{spec}`"
        for variant, spec in methods.variants().items()
        if methods.base_name(spec) == name
    ]
    named = f"\n\nNamed variants: {'; '.join(variants)}." if variants else ""
    return "With their defaults:\n\n" + "\n".join(rows) + named


def value(default: Any) -> str:
    """Return a default as it is typed."""
    if default is MISSING:
        return "–"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:.4g}" if isinstance(default, float) else str(default)


def kinds(hint: Any) -> str:
    """Return what an option may be, in words."""
    literals = getattr(hint, "__args__", ())
    if literals and all(isinstance(each, str | int) for each in literals):
        return ", ".join(f"`{each}`" for each in literals)
    names = [getattr(each, "__name__", "") for each in literals] or [hint.__name__]
    words = {"int": "whole number", "float": "number", "bool": "true or false", "str": "word"}
    return " or ".join(words.get(each, "none") for each in names)


def usage(meta: Meta) -> str:
    """Return a command and a snippet that run as they stand."""
    spec = meta["picture"][0]
    budget = ", budget=120" if methods.takes_budget(spec) else ""
    share = " --budget 50%" if methods.takes_budget(spec) else ""
    compared = spec if spec == "full" else f"full {spec}"
    return "\n\n".join(
        [
            f'```\nkvlab compare --methods "{compared}"{share} --problems 4\n```',
            f"""```python
from kvlab.reference.models import embedded_directory
from kvlab.reference import Transformer, load_tokenizer, methods
from kvlab.reference.generate import generate
from kvlab.reference.tasks import jumps

directory = embedded_directory("jumps")  # any Llama, Mistral, Qwen2 or Qwen3 directory
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
prompt = tokenizer.encode(jumps.held_out(1, size=jumps.SIZES[250])[0].prompt).ids
policy = methods.get("{spec}"{budget})
written = generate(model, policy, prompt, max_new_tokens=60)
print(tokenizer.decode(list(written.tokens)))
print(written.session.nbytes, "bytes of keys and values")
```""",
        ]
    )
