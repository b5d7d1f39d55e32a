"""The ``kvlab`` command. Commands that need the reference alone work without PyTorch."""

from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from kvlab.fast.lab.commands import board, conformance, engines, models
from kvlab.fast.lab.commands.compare import compare
from kvlab.fast.lab.commands.eval import evaluate
from kvlab.fast.lab.commands.generate import generate, trace
from kvlab.fast.lab.commands.methods import methods, recurrence
from kvlab.fast.lab.commands.options import add_commands
from kvlab.fast.lab.commands.plan import plan
from kvlab.fast.lab.commands.prove import prove
from kvlab.fast.lab.commands.simulate import simulate
from kvlab.fast.lab.commands.sweep import report, sweep
from kvlab.fast.lab.commands.texts import needle, perplexity
from kvlab.fast.lab.commands.view import view
from kvlab.fast.lab.terminal import Stoppable, print_version

BadUsage = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""What typer raises on words that it does not understand: only a subclass has a public name."""


class _Commands(Stoppable, TyperGroup):
    pass


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
add_commands(app, compare=compare, methods=methods, recurrence=recurrence, generate=generate)
add_commands(app, trace=trace, view=view, simulate=simulate, plan=plan, prove=prove, sweep=sweep)
add_commands(app, report=report, perplexity=perplexity, needle=needle, eval=evaluate)
app.add_typer(conformance.app, name="conformance")
app.add_typer(board.app, name="board")
app.add_typer(models.app, name="models")
app.add_typer(engines.app, name="engines")


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Learn, check and speed up KV-cache compression for large language models."""
