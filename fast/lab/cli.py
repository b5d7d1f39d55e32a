"""The ``kvlab`` command. Commands that need the reference alone work without PyTorch."""

import json
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.table import Table

from kvlab.fast.lab.commands import conformance
from kvlab.fast.lab.commands.eval import evaluate
from kvlab.fast.lab.commands.generate import generate
from kvlab.fast.lab.commands.needle import needle
from kvlab.fast.lab.commands.options import ModelName, prepare_output
from kvlab.fast.lab.commands.perplexity import perplexity
from kvlab.fast.lab.commands.plan import plan
from kvlab.fast.lab.commands.prove import prove
from kvlab.fast.lab.commands.report import report
from kvlab.fast.lab.commands.simulate import simulate
from kvlab.fast.lab.commands.sweep import sweep
from kvlab.fast.lab.commands.terminal import AsJson, console, errors, progress
from kvlab.fast.lab.commands.trace import trace
from kvlab.fast.lab.commands.view import view
from kvlab.fast.lab.evaluate import compare as comparing
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.report import sections, write_report
from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods as registry
from kvlab.reference.traces.recurrence import Recurrence, recurrence

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(generate)
app.command()(trace)
app.command()(prove)
app.command()(simulate)
app.command()(plan)
app.command()(view)
app.command()(sweep)
app.command()(report)
app.command(name="eval")(evaluate)
app.command()(perplexity)
app.command()(needle)
app.add_typer(conformance.app, name="conformance")

EXTRAS = {
    "torch": "fast",
    "transformers": "fast",
    "filelock": "sweep",
    "pyarrow": "sweep",
    "ray": "sweep",
    "lm_eval": "eval",
    "accelerate": "eval",
}
"""What the extras in `pip install 'kvlab[fast,sweep,eval]'` bring."""

Model = Annotated[
    Path | None, typer.Option(help="Hugging Face directory; default: the embedded reasoner.")
]
Problems = Annotated[int, typer.Option(help="Held-out problems.")]
Seed = Annotated[int, typer.Option(help="Seed of the held-out problems.")]


def main() -> None:
    """Run the command; bad input ends with one clear line and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        refuse(f"this command needs {error.name}: pip install 'kvlab[{EXTRAS[error.name]}]'")


def refuse(reason: str) -> NoReturn:
    """Print one line and exit with code 2."""
    errors.print(f"kvlab: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(2)


@app.callback()
def about() -> None:
    """Learn, check and speed up KV-cache compression for large language models."""


@app.command()
def compare(
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Entries, or percent of the mean full-cache length; may be repeated."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = None,
    problems: Problems = 16,
    seed: Seed = 0,
    model: ModelName = None,
    backend: Annotated[
        str | None,
        typer.Option(help="fast: PyTorch; reference: NumPy. Default: fast if it is installed."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    report: Annotated[Path, typer.Option(help="HTML report to write.")] = Path(
        "kvlab-report/compare.html"
    ),
    as_json: AsJson = False,
) -> None:
    """Compare methods on the embedded reasoner: accuracy, error, memory, time."""
    prepare_output("report", report)
    if backend is None:
        backend = default_backend()
        errors.print(f"backend: {backend}", style="dim", highlight=False)
    settings = comparing.Settings(
        model=model or reasoner_directory(),
        specs=tuple((methods or "").replace(";", " ").split()) or comparing.DEFAULT_METHODS,
        budgets=tuple(budget or ("70%", "85%")),
        problems=problems,
        seed=seed,
        workers=workers,
        backend=backend,
    )
    with progress() as bar:
        task = bar.add_task("starting", total=None)
        comparison = comparing.compare(
            settings,
            lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
    if all(row.refusal for row in comparison.rows):
        raise ValueError(f"no method could run; {comparison.rows[0].refusal}")
    write_report(comparison, report)
    if as_json:
        print(json.dumps(comparison.to_json(), indent=1))
        return
    for title, rows in sections(comparison):
        console.print(comparison_table(title, rows))
    console.print(CAPTION.format(engine=ENGINES[backend]), style="dim")
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


CAPTION = (
    "solved: whole solution right, with 95 % interval · error: attention output against everything "
    "seen, L2 per head · KL in nats from the full cache · entries, KiB: peak · bits: stored per "
    "element of the full cache, scales included · ms: per token, {engine}, one thread"
)
ENGINES = {
    "fast": "PyTorch, all problems in one batch",
    "reference": "NumPy, one problem after the other",
}


def comparison_table(title: str, rows: list[comparing.Row]) -> Table:
    """Lay one section out."""
    table = Table(
        title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left"
    )
    table.add_column("method", overflow="fold", min_width=20)
    for name in ("solved %", "error", "KL", "entries", "KiB", "bits", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.refusal is None:
            table.add_row(row.spec, *cells(row))
        else:
            table.add_row(f"{row.spec}\n[dim]{row.refusal}[/dim]", *["–"] * 7)
    return table


def cells(row: comparing.Row) -> list[str]:
    """Format the figures of a row."""
    solved, low, high = (
        f"{100 * (share or 0):.0f}" for share in (row.accuracy, row.accuracy_low, row.accuracy_high)
    )
    return [
        f"{solved} ({low}–{high})",
        f"{row.output_error:.3f}",
        f"{row.kl:.3f}",
        f"{row.entries:.0f}",
        f"{row.kilobytes:.0f}",
        f"{row.average_bits:.1f}",
        f"{row.milliseconds_per_token:.1f}",
    ]


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method; without it, all are listed.")
    ] = None,
    divergences: Annotated[
        bool, typer.Option("--divergences", help="Where paper, code and ports differ.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List methods, their options and variants, or the divergences of one."""
    if name is not None:
        name = registry.base_name(name)
    if divergences:
        chosen = (name,) if name else registry.names()
        show_divergences({each: registry.divergences(each) for each in chosen}, as_json)
        return
    described = registry.describe()
    if name is not None:
        registry.divergences(name)  # refuses an unknown name
        described = {name: described[name]}
    if as_json:
        print(json.dumps({"methods": described, "variants": registry.variants()}, indent=1))
        return
    table = Table("method", "source", "options")
    for each, entry in described.items():
        options = ", ".join(f"{option}={value}" for option, value in entry["options"].items())
        table.add_row(each, entry["source"], options)
    console.print(table)
    if name is None:
        aliases = Table("variant", "is")
        for each, spec in registry.variants().items():
            aliases.add_row(each, spec)
        console.print(aliases)


def show_divergences(found: dict[str, tuple[registry.Divergence, ...]], as_json: bool) -> None:
    """Print divergences as a table or JSON."""
    if as_json:
        plain = {name: [vars(each) for each in entries] for name, entries in found.items()}
        print(json.dumps(plain, indent=1))
        return
    for name, entries in found.items():
        table = Table(title=name)
        for heading in ("topic", "paper", "elsewhere", "default", "option"):
            table.add_column(heading, overflow="fold")
        for each in entries:
            table.add_row(each.topic, each.paper, each.elsewhere, each.default, each.option)
        console.print(table)


@app.command(name="recurrence")
def show_recurrence(
    problems: Problems = 20,
    seed: Seed = 0,
    threshold: Annotated[
        float, typer.Option(help="Attention that counts as an activation.")
    ] = 0.01,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often tokens become important again (LazyEviction Fig. 3c)."""
    found = recurrence(model or reasoner_directory(), problems, seed, threshold)
    if as_json:
        print(json.dumps(vars(found), indent=1))
        return
    console.print(recurrence_table(found))


def recurrence_table(found: Recurrence) -> Table:
    """Lay the distribution of the longest intervals out."""
    table = Table("figure", "value", title="token importance recurrence, full cache")
    table.add_row("tokens with a recurrence (MRI > 1)", f"{100 * found.share_recurring:.1f} %")
    for quantile, steps in found.quantiles.items():
        table.add_row(f"MRI, {quantile} quantile", f"{steps:.0f} steps")
    return table
