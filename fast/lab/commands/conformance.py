"""``kvlab conformance``: test kernels against the reference. Needs the reference alone."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kvlab.fast.lab.commands.options import prepare_output
from kvlab.fast.lab.commands.terminal import AsJson, console, errors, progress, working
from kvlab.reference.conformance import (
    Implementation,
    Program,
    Report,
    Status,
    cases,
    check,
    load,
    to_junit,
    to_plain,
    vectors,
)
from kvlab.reference.conformance.checker import targets
from kvlab.reference.conformance.operation import Operation
from kvlab.reference.conformance.report import shown
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.methods import parse

app = typer.Typer(
    no_args_is_help=True, help="Test your own kernel against the reference, in any language."
)


MOST_NAMES = 12
"""Targets that are named although nothing of them was tested."""


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(help="Python file that defines IMPLEMENTATIONS.")
    ] = None,
    program: Annotated[
        str | None, typer.Option("--exec", help="Program to run as PROGRAM TARGET INPUT OUTPUT.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="A building block, method or step; default: all.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Groups to run; may be repeated.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Groups to leave out; may be repeated.")
    ] = None,
    arrays: Annotated[
        str | None, typer.Option(help="numpy, torch, cupy, jax.numpy; default: the file's ARRAYS.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="As that library names it.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16: of inputs and tolerance.")
    ] = None,
    minimise: Annotated[
        bool, typer.Option(help="Look for the smallest inputs on which a group fails.")
    ] = True,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an implementation on the vectors; exit code 1 if a case fails."""
    if junit is not None:
        prepare_output("junit", junit)
    under_test = implementation(file, program, arrays, device, precision)
    with progress(transient=True) as bar:
        task = bar.add_task("starting", total=None)
        report = check(
            target,
            under_test,
            groups=group or None,
            exclude=exclude or (),
            minimise=minimise,
            progress=lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
    if junit is not None:
        junit.write_text(to_junit(report), encoding="utf-8")
    if as_json:
        print(json.dumps(to_plain(report), indent=1))
    else:
        show(report)
    if not report.passed:
        raise typer.Exit(1)


def implementation(
    file: Path | None,
    program: str | None,
    arrays: str | None,
    device: str | None,
    precision: str | None,
) -> Implementation:
    """Return what is under test.

    Raises:
        ValueError: if neither or both are given, or one cannot be used.
        FileNotFoundError: if the file does not exist.
    """
    if (file is None) == (program is None):
        raise ValueError("either a Python file or --exec PROGRAM must be given")
    if program is None:
        assert file is not None
        return load(file, arrays, device, precision)
    if arrays is not None or device is not None:
        raise ValueError("--arrays and --device are for Python files, --exec exchanges files")
    return Program(program, precision or "float32")


def show(report: Report) -> None:
    """Print a row per target and group, then the first failures."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("target", "group"):
        table.add_column(heading, overflow="fold")
    for heading in ("passed", "failed", "not tested"):
        table.add_column(heading, justify="right")
    last = ""
    for group in report.groups:
        if group.target in report.untested:
            continue
        failed = group.count(Status.FAILED)
        table.add_row(
            group.target if group.target != last else "",
            group.group,
            str(group.count(Status.PASSED)),
            f"[red]{failed}[/]" if failed else "0",
            str(group.count(Status.NOT_TESTED) or ""),
        )
        last = group.target
    console.print(table)
    if failures := report.failures():
        console.print(escape(shown(failures)), style="red", highlight=False, soft_wrap=True)
        console.print()
    counts = ", ".join(f"{report.count(status)} {status}" for status in Status)
    console.print(counts, highlight=False)
    if report.untested:
        names = ", ".join(report.untested[:MOST_NAMES])
        more = len(report.untested) - MOST_NAMES
        ending = f" and {more} more" if more > 0 else ""
        console.print(f"nothing tested of: {names}{ending}", style="dim", highlight=False)


@app.command("list")
def list_targets(as_json: AsJson = False) -> None:
    """List what can be tested, and in which groups."""
    rows = {
        target: sorted({case.group for case in cases() if case.target == target})
        for target in targets(cases())
    }
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("target", "groups", box=box.SIMPLE_HEAD)
    for target, groups in rows.items():
        table.add_row(target, ", ".join(groups))
    console.print(table)


@app.command("show")
def show_target(
    target: Annotated[str, typer.Argument(help="A building block, or a step as in h2o.score.")],
    as_json: AsJson = False,
) -> None:
    """Show what a target is given and has to return."""
    operation = operation_of(target)
    own = [case for case in cases(target) if case.target == target]
    if not own:
        raise ValueError(f"there are no vectors for {target!r}")
    names = {name for case in own for name in case.inputs}
    outputs = {name for case in own for name in case.expected}
    parameters = {name: value for case in own for name, value in case.parameters.items()}
    if as_json:
        source = source_of(operation, target)
        print(json.dumps(plain(operation, source, names, outputs, parameters), indent=1))
        return
    console.print(f"[bold]{target}[/]: {escape(operation.summary)}", highlight=False)
    console.print(
        f"source: {escape(source_of(operation, target))}", highlight=False, soft_wrap=True
    )
    table = Table("", "name", "axes", "kind or values", "meaning", box=box.SIMPLE_HEAD)
    for title, fields, wanted in (
        ("input", operation.inputs, names),
        ("output", operation.outputs, outputs),
    ):
        for name, field in fields.items():
            if name in wanted:
                axes = escape(f"[{', '.join(field.axes)}]")
                table.add_row(title, name, axes, field.kind, escape(field.meaning))
    for name in parameters:
        meaning = operation.parameters.get(name, "option of the method")
        values = dict.fromkeys(str(c.parameters[name]) for c in own if name in c.parameters)
        table.add_row("parameter", name, "", ", ".join([*values][:4]), escape(meaning))
    console.print(table)


def source_of(operation: Operation, target: str) -> str:
    """Say where a target is defined: paper, equations, and the file of the reference to read."""
    if not operation.of_method:
        return operation.source
    method = parse(target.rpartition(".")[0])
    base = getattr(method, "base", None)
    return "\n        ".join(
        f"{each.source}; equations {', '.join(each.equations) or 'none'}; "
        f"read {type(each).__module__.removeprefix('kvlab.').replace('.', '/')}.py"
        for each in (method, base)
        if each is not None
    )


def plain(
    operation: Operation,
    source: str,
    names: set[str],
    outputs: set[str],
    parameters: dict[str, object],
) -> dict[str, object]:
    """Return a target's description as what JSON can hold."""
    return {
        "summary": operation.summary,
        "source": source,
        "inputs": {k: vars(v) for k, v in operation.inputs.items() if k in names},
        "outputs": {k: vars(v) for k, v in operation.outputs.items() if k in outputs},
        "parameters": {
            name: operation.parameters.get(name, "option of the method") for name in parameters
        },
    }


@app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Directory to write.")] = vectors.DIRECTORY,
) -> None:
    """Make the vectors anew from the reference: the same bits on every machine."""
    prepare_output("out", out / vectors.INDEX)
    with working("computing the vectors"):
        made = vectors.all_cases()
    vectors.write(made, out)
    console.print(f"{len(made)} cases in {out}", highlight=False, soft_wrap=True)


@app.command()
def verify() -> None:
    """Make the vectors anew and compare with the package's; exit code 1 if they differ."""
    vectors.check_sums(vectors.DIRECTORY)
    with TemporaryDirectory() as folder:
        with working("computing the vectors"):
            vectors.write(vectors.published_cases(), Path(folder))
        ours, theirs = (
            (directory / vectors.SUMS).read_text(encoding="utf-8").splitlines()
            for directory in (vectors.DIRECTORY, Path(folder))
        )
    different = sorted(set(ours) ^ set(theirs))
    for line in different:
        errors.print(line, highlight=False)
    if different:
        raise typer.Exit(1)
    console.print(f"{len(ours)} files are the same", highlight=False)
