"""``kvlab engines``: do engines keep what kvlab says that they keep?"""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from typer import Exit, Typer

from kvlab.fast.lab import engines
from kvlab.fast.lab.commands.options import add_commands
from kvlab.fast.lab.loop import Step, kept, run_all
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import print_json, print_line, print_table, progress_bar, working
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.tasks import english

app = Typer(no_args_is_help=True, help="Check what deployed engines keep.")


def install(engine: str) -> None:
    """Install an engine into a folder of its own, and fetch SmolLM2 as the engine reads it."""
    check_choice(engines.INSTALL, engine=engine)
    engines.install(engine)
    weights = engines.weights_for(engine)
    if not weights.exists():
        with working("fetching and writing SmolLM2"):
            from kvlab.fast.models import fetching

            write = fetching.write_gguf if weights.suffix == ".gguf" else fetching.fetch
            write("smollm2")
    print_line(f"{engine}: {engines.folder(engine)}")


def check(
    engine: str,
    prompts: int = 20,
    tokens: int = 64,
    settings: str | None = None,
    method: str | None = None,
    budget: int | None = None,
    plugin: bool = False,
    json: bool = False,
) -> None:
    """Let SmolLM2 write under an engine's settings; compare with kvlab's specifications."""
    check_at_least(1, prompts=prompts, tokens=tokens, budget=budget)
    if method is not None:
        methods.parse(method)
    from kvlab.fast.lab.engines import agreement  # needs PyTorch

    own = agreement.Setting("own", "full", budget)
    setup = agreement.WITH_PLUGIN if plugin else engine
    if plugin and engine != "vllm":
        raise ValueError(f"engine = {engine!r} with --plugin must be vllm")
    found = {each.name: each for each in agreement.SETTINGS.get(setup, (own,))}
    if budget is not None:
        found = {name: replace(each, budget=budget) for name, each in found.items()}
    names = [*map(str.strip, settings.split(";"))] if settings else list(found)
    for name in names:
        check_choice(found, settings=name)
    engines.launch(engine)
    texts = [english.passage(np.random.default_rng(seed), 330) for seed in range(prompts)]
    load = lru_cache(maxsize=1)(agreement.load)
    with working("loading SmolLM2"):
        _, tokenizer = load(agreement.weights_of(engine, own))
    passages = [tokenizer(text).input_ids[:224] for text in texts]  # of one length
    chosen = [found[name] for name in names]

    def row_of(setting: agreement.Setting) -> dict[str, Any]:
        spec = method or setting.spec
        row = {"setting": setting.name, "specification": spec}
        try:
            figures = agreement.check(engine, setting, spec, passages, tokens, load)
        except ChildProcessError as error:
            if setting.seen:
                raise
            return {**row, "verdict": f"not run: {str(error).splitlines()[-1]}"}
        return {**row, **figures, "verdict": setting.verdict(figures)}

    steps = [Step(each.name, partial(row_of, each)) for each in chosen]
    asked = {"engine": setup, "method": method, "budget": budget, "asked": [passages, tokens]}
    with progress_bar(transient=True) as progress, kept("check", **asked) as store:
        how: Any = {"kind": agreement.Agreement, "progress": progress}
        rows = [*run_all(steps, store, lasting=lambda row: "tokens" in row, **how).values()]
    if json:
        print_json(rows)
    else:
        shown = layout("plugin" if plugin else "engines")
        unknown = dict.fromkeys(column.heading for column in shown.columns)
        whole = [unknown | {"after_eviction": None} | row for row in rows]
        print_table(shown.table(whole, f"{setup} and kvlab"))
    if any(row["verdict"].startswith("WRONG") for row in rows):
        raise Exit(1)


add_commands(app, "engines", install=install, check=check)
