"""``kvlab engines``: do engines keep what kvlab says that they keep?"""

from dataclasses import replace
from typing import Annotated

import typer

from kvlab.fast.lab.commands.settings import Json, command
from kvlab.fast.lab.engines import INSTALL, generate, launch
from kvlab.fast.lab.tables import Column, tabulate
from kvlab.fast.lab.terminal import print_json, print_table, reporting, working
from kvlab.fast.models import gguf_file
from kvlab.reference import methods
from kvlab.reference.checks import check_at_least, check_choice

app = typer.Typer(no_args_is_help=True, help="Check what deployed engines keep.")

COLUMNS = [
    *(Column(name) for name in ("setting", "specification", "agreed", "tokens")),
    Column("difference", format=".1g"),
    Column("verdict"),
]


@app.callback()
def about() -> None:
    """Check what deployed engines keep."""


class _Check(Json):
    engine: Annotated[str, typer.Argument()]
    """openvino or llama.cpp."""
    prompts: int = 20
    """Passages of the novel, of 224 tokens each."""
    tokens: int = 64
    """Tokens that the engine writes after each."""
    method: str | None = None
    """Specification to compare with, in place of the setting's own."""
    settings: str | None = None
    """Settings to check, as in 'SUM, window off; q8_0'; default: all of the engine."""


@app.command()
@command
def check(wanted: _Check) -> None:
    """Let SmolLM2 write under an engine's settings; compare with kvlab's specifications."""
    check_choice(INSTALL, engine=wanted.engine)
    check_at_least(1, prompts=wanted.prompts, tokens=wanted.tokens)
    if wanted.method is not None:
        methods.parse(wanted.method)
    launch(wanted.engine)
    weights = gguf_file("smollm2")
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} does not exist: kvlab models gguf smollm2")
    with working("loading SmolLM2"):
        from kvlab.fast.lab.engines import agreement
        from kvlab.fast.models.loading import load

        model, tokenizer = load("smollm2", "float32", "cpu")
    found = {each.name: each for each in agreement.SETTINGS[wanted.engine]}
    names = [name.strip() for name in (wanted.settings or ";".join(found)).split(";")]
    for name in names:
        check_choice(found, settings=name)
    prompts, holds = agreement.prompts(tokenizer, wanted.prompts), True
    rows = []
    with reporting(transient=True) as report:
        for number, name in enumerate(names):
            report(number, len(names), name)
            setting = found[name]
            written = generate(wanted.engine, weights, prompts, setting.options, wanted.tokens)
            setting = replace(setting, spec=wanted.method or setting.spec)
            result = agreement.compare(model, setting, prompts, written)
            expected = result.same != bool(setting.differs)
            holds &= expected
            verdict = "the same" if result.same else setting.differs or "they part"
            row = {"setting": name, "specification": setting.spec, "agreed": result.agreed}
            row |= {"tokens": result.tokens, "difference": result.difference}
            rows.append({**row, "verdict": verdict if expected else f"WRONG: {verdict}"})
    if wanted.json:
        print_json(rows)
    else:
        print_table(tabulate(rows, COLUMNS), f"{wanted.engine} and kvlab")
    if not holds:
        raise typer.Exit(1)
