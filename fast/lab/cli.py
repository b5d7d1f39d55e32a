"""The ``kvlab`` command. Commands that need the reference alone work without PyTorch."""

from importlib.metadata import version
from typing import Annotated, NoReturn, cast

import typer

from kvlab.fast.lab.commands import conformance, models
from kvlab.fast.lab.commands.compare import compare
from kvlab.fast.lab.commands.eval import evaluate
from kvlab.fast.lab.commands.generate import generate
from kvlab.fast.lab.commands.methods import methods, recurrence
from kvlab.fast.lab.commands.plan import plan
from kvlab.fast.lab.commands.prove import prove
from kvlab.fast.lab.commands.simulate import simulate
from kvlab.fast.lab.commands.sweep import report, sweep
from kvlab.fast.lab.commands.texts import needle, perplexity
from kvlab.fast.lab.commands.trace import trace
from kvlab.fast.lab.commands.view import view
from kvlab.fast.lab.tables import visible
from kvlab.fast.lab.terminal import errors, print_line

EXTRAS = {
    "torch": "fast",
    "gguf": "fast",
    "transformers": "fast",
    "filelock": "sweep",
    "pyarrow": "sweep",
    "ray": "sweep",
    "lm_eval": "eval",
    "accelerate": "eval",
}
"""What the extras in `pip install 'kvlab[fast,sweep,eval]'` bring."""

BadUsage = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""What typer raises on words that it does not understand: only a subclass has a public name."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    compare,
    methods,
    recurrence,
    generate,
    trace,
    view,
    simulate,
    plan,
    prove,
    sweep,
    report,
    perplexity,
    needle,
):
    app.command()(command)
app.command(name="eval")(evaluate)
app.add_typer(conformance.app, name="conformance")
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> bool:
    if wanted:
        print_line(f"kvlab {version('kvlab')}")
        raise typer.Exit
    return wanted


@app.callback()
def about(
    wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Learn, check and speed up KV-cache compression for large language models."""


def main() -> None:
    """Run the command; bad input ends with one clear line and exit code 2."""
    try:
        raise SystemExit(app(standalone_mode=False))
    except BadUsage as error:
        if error.format_message():  # without a command, the help is printed already
            _refuse(error.format_message())
        raise SystemExit(error.exit_code) from None
    except (ValueError, TypeError, OSError) as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        _refuse(f"this command needs {error.name}: pip install 'kvlab[{EXTRAS[error.name]}]'")


def _refuse(reason: str) -> NoReturn:
    errors.print(
        f"kvlab: {visible(reason)}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    raise SystemExit(2)
