"""The playground: its modules in one script, since a page opened as a file may load no modules."""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from method_figures import drawn, unsearched
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data

from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.tasks import jumps, reasoning

DOCS = Path(__file__).parents[1]
SOURCES = DOCS / "playground"
COUNT = 8
TRIED = 20
"""Programs on which the page tries a reader's score."""
PROBLEMS: Mapping[str, Callable[[], Sequence[Any]]] = {
    "jumps": lambda: jumps.held_out(TRIED, size=jumps.Size(fewest=18, most=22)),
    "reasoning": lambda: reasoning.held_out(COUNT),
}
"""Problems by task."""
SLACK = 1.25
"""Tokens after which an answer is cut, over those of the longest solution."""

TOUR: Mapping[str, str] = {"method": "h2o", "budget": "70%", "problem": "jumps-2"}
"""What the page shows first: the answer turns wrong, and is right with one lost token protected."""

STILL = "<!-- picture -->"
"""Where the page has a picture for readers without scripts."""

IMPORT = re.compile(r'^import \{ ([^}]+) \} from "([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|class|const) ([^;{(=]+))", re.MULTILINE)
NAME = re.compile(r"\w+")
OTHER_SYNTAX = re.compile(r"^(?:import|export)\b", re.MULTILINE)

QUESTIONS = {
    "full": (
        "How many entries does the cache hold in the end, and which half of them would you evict?"
    ),
    "streaming_llm": (
        "Which facts of the problem are struck out when the answer turns wrong? Protect the "
        "one that it needed next."
    ),
    "h2o": (
        "Set recent to 0: which tokens are evicted first now, and does the answer survive a "
        "smaller budget?"
    ),
    "tova": "Follow one fact: how many tokens after its last use is it evicted?",
    "snapkv": (
        "After the prompt was read nothing is evicted any more. Watch the figures of the "
        "cache: what grows?"
    ),
    "knorm": (
        "Compare it with its control, random eviction with the same protection: does the length "
        "of a key say which token matters?"
    ),
    "raas": "Move the threshold: when is every entry used, so that age alone decides?",
    "rkv": "Write one fact twice into the problem. Which of the two copies stays?",
    "kivi": (
        "At how many bits does the first token turn wrong? Lower the bits of keys first, "
        "then those of values."
    ),
    "lazy_eviction": "Lower the window: what is lost when the method decides at every token?",
    "caote": (
        "Compare it with the score that it wraps at the same budget: which token does one "
        "of them keep and the other lose?"
    ),
    "fast_caote": (
        "Compare it with CAOTE applied to the same score: in which head do the keep sets differ "
        "first?"
    ),
    "desirekv": (
        "Which tokens get 8 bits, and do they follow a moment of doubt? Switch the protection off."
    ),
    "ahakv": "Choose none for the value prior: does the first token of the text still stay?",
    "yours": "Write another score below, and see what it evicts.",
    "random": "Choose another method and press Compare with its control. Which method of the list "
    "does no better than random eviction with the same protection?",
}
"""What a reader can find out by trying, by the method's name in the registry."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the scripts of the page."""
    for name, content in scripts().items():
        files.append(File.generated(config, f"playground/{name}", content=content))
    return files


def scripts() -> dict[str, str]:
    """Return the scripts by name: each embedded model, and all modules with what they need."""
    given = f"globalThis.kvlabSite = {json.dumps(site())};\n"
    worker = f"globalThis.kvlabWorker = {json.dumps(bundle('worker.mjs'))};\n"
    models = {f"model-{name}.js": model_script(name) for name in EMBEDDED}
    return {**models, "playground.js": given + worker + bundle("page/playground.mjs")}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Invite the reader of a method's page to try it; show a picture where scripts are off."""
    if page.file.src_uri == "playground/index.md":
        return markdown.replace(STILL, unsearched(drawn(TOUR["method"])))
    question = QUESTIONS.get(page.meta.get("method", ""))
    if question is None:
        return markdown
    setting = urlencode({"method": page.meta["picture"][0]}, safe=":@")
    invitation = f"**Try it** [in the playground](../playground/index.md?{setting}): {question}"
    heading = "\n## Four answers\n"
    if markdown.count(heading) != 1:
        raise PluginError(f"{page.file.src_uri} must hold 'Four answers' once")
    return markdown.replace(heading, f"\n{invitation}\n{heading}")


def model_script(name: str) -> str:
    """Return the script that holds an embedded model: the page loads the one that it needs."""
    directory = embedded_directory(name)
    found = {
        "config": json.loads((directory / "config.json").read_text(encoding="utf-8")),
        "tokenizer": json.loads((directory / "tokenizer.json").read_text(encoding="utf-8")),
        "weights": base64.b64encode((directory / "model.safetensors").read_bytes()).decode(),
    }
    return f"(globalThis.kvlabModels ??= {{}}).{name} = {json.dumps(found)};\n"


def site() -> dict[str, Any]:
    """Return problems for every embedded model, and a setting of every method that suits them.

    ``lengths`` are the tokens that the full cache holds in the end, if the model solves a problem;
    the page measures them again.
    """
    models = {}
    for name, task in EMBEDDED.items():
        problems = PROBLEMS[task]()
        most = int(SLACK * max(tokens(problem.solution) for problem in problems))
        prompts = [problem.prompt for problem in problems]
        lengths = [tokens(problem.prompt) + tokens(problem.solution) - 1 for problem in problems]
        models[name] = {"task": task, "prompts": prompts, "most": most, "lengths": lengths}
        models[name]["solutions"] = [problem.solution for problem in problems]
    given = {"models": models, "presets": presets(), "questions": QUESTIONS}
    return {**given, "tour": TOUR, "tried": TRIED}


def tokens(text: str) -> int:
    """Return the tokens of a text of an embedded model, whose words stand between blanks."""
    return len(text.split(" "))


def presets() -> dict[str, str]:
    """Return the specification that each method's page draws: it suits the embedded model."""
    found = {}
    for path in (DOCS / "methods").glob("*.md"):
        _, meta = get_data(path.read_text(encoding="utf-8"))
        found[meta["method"]] = meta["picture"][0]
    return found


def bundle(entry: str) -> str:
    """Return one classic script that does what the module ``entry`` and all that it imports do."""
    done: dict[str, str] = {}
    add(SOURCES / entry, done)
    opening = ["(() => {", '"use strict";', "const modules = {};"]
    return "\n".join([*opening, *done.values(), "})();", ""])


def add(path: Path, done: dict[str, str]) -> None:
    """Add a module behind all that it imports.

    Raises:
        PluginError: if a module uses a form of import or export that is not rewritten, or modules
            import each other.
    """
    key = path.relative_to(SOURCES).as_posix()
    if key in done:
        if not done[key]:
            raise PluginError(f"docs/playground/{key} imports itself through other modules")
        return
    done[key] = ""
    source = path.read_text(encoding="utf-8")

    def imported(found: re.Match[str]) -> str:
        other = (path.parent / found[2]).resolve()
        add(other, done)
        return f"const {{ {found[1]} }} = {place(other)};\n"

    names = [NAME.findall(name)[0] for name in EXPORT.findall(source)]
    text = EXPORT.sub("", IMPORT.sub(imported, source))
    if OTHER_SYNTAX.search(text):
        raise PluginError(f"docs/playground/{key}: this form of import or export is not rewritten")
    del done[key]
    done[key] = f"{place(path)} = (() => {{\n{text}return {{ {', '.join(names)} }};\n}})();"


def place(path: Path) -> str:
    """Return the expression that holds what a module exports."""
    return f"modules[{json.dumps(path.relative_to(SOURCES).as_posix())}]"


def build_alone(**options: Any) -> None:
    """Build the page of the playground alone, without notebooks or PyTorch."""
    others = {each.name for each in DOCS.iterdir()} - {"playground", "stylesheets", "javascripts"}
    options |= {"exclude_docs": "\n".join(f"/{name}" for name in sorted(others))}
    options |= {"hooks": [str(Path(__file__))], "nav": [{"Playground": "playground/index.md"}]}
    build(load_config(plugins=[], **options))


if __name__ == "__main__":
    build_alone()
