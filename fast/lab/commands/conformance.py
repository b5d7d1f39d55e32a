"""``kvlab conformance``: test kernels against the reference. Needs the reference alone."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape

from kvlab.fast.lab.commands.options import AsJson, prepare_output
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import (
    console,
    errors,
    print_caption,
    print_json,
    print_line,
    print_table,
    reporting,
    working,
)
from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance import (
    Implementation,
    Isolated,
    Loading,
    Program,
    Report,
    Status,
    cases,
    check,
    standalone,
    to_junit,
    to_plain,
    vectors,
)
from kvlab.reference.conformance.checker import targets
from kvlab.reference.conformance.operation import DESCRIBED, Operation
from kvlab.reference.conformance.report import ABOUT_GROUPS, shown, to_badge
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.conformance.whole_cache import MODEL
from kvlab.reference.conformance.xfails import FILE, judged, read_xfails
from kvlab.reference.method import Method, Wrapper, field_docstrings
from kvlab.reference.methods import parse

app = typer.Typer(
    no_args_is_help=True, help="Test your own kernel against the reference, in any language."
)

PythonFile = Annotated[
    Path | None, typer.Argument(help="Python file that defines IMPLEMENTATIONS.")
]
ProgramLine = Annotated[
    str | None, typer.Option("--exec", help="Program to run as PROGRAM TARGET INPUT OUTPUT.")
]
JUnitFile = Annotated[Path | None, typer.Option(help="JUnit XML to write.")]

MOST_NAMES = 12
"""How many targets without a test the report names at most."""


@app.command()
def run(
    file: PythonFile = None,
    program: ProgramLine = None,
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
    device: Annotated[str | None, typer.Option(help="Device, as that library names it.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16, for inputs and tolerance.")
    ] = None,
    minimise: Annotated[
        bool, typer.Option(help="Look for the smallest inputs on which a group fails.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds that one case may take.")] = 60.0,
    calls: Annotated[int, typer.Option(min=1, help="Calls of each case.")] = 1,
    sizes: Annotated[
        list[str] | None,
        typer.Option(help="small: the vectors; kernel, long: drawn cases. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the numbers in drawn cases.")] = 0,
    spec: Annotated[
        str, typer.Option(help=f"Specification: {', '.join(vectors.SPECIFICATIONS)}.")
    ] = vectors.LATEST,
    xfails: Annotated[
        Path | None, typer.Option(help=f"Known failures; default: {FILE}, if there is one.")
    ] = None,
    badge: Annotated[Path | None, typer.Option(help="JSON for a badge of shields.io.")] = None,
    junit: JUnitFile = None,
    as_json: AsJson = False,
) -> None:
    """Run an implementation on the vectors; exit code 1 if a case fails."""
    prepare_output("junit", junit)
    prepare_output("badge", badge)
    listed = xfails or (Path(FILE) if Path(FILE).exists() else None)
    known = () if listed is None else read_xfails(listed)
    chosen = implementation(file, program, arrays, device, precision, timeout)
    with chosen as under_test, reporting(transient=True) as told:
        report = check(
            target,
            under_test,
            groups=group or None,
            exclude=exclude or (),
            minimise=minimise,
            calls=calls,
            sizes=sizes or ("small",),
            seed=seed,
            spec=spec,
            progress=told,
        )
    report = judged(report, known)
    if badge is not None:
        write_text(badge, json.dumps(to_badge(report, spec)) + "\n")
    tell(report, junit, as_json)


@app.command()
def fuzz(
    target: Annotated[str, typer.Argument(help="A building block, or a step as in h2o.score.")],
    file: PythonFile = None,
    program: ProgramLine = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same cases.")] = 0,
    count: Annotated[int, typer.Option("--cases", min=1, help="Cases to draw.")] = 100,
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.")] = 60.0,
    junit: JUnitFile = None,
    as_json: AsJson = False,
) -> None:
    """Draw cases of one target until one fails, ask each eleven times; exit code 1 if one fails."""
    from kvlab.reference.conformance import fuzzing  # hypothesis is optional

    prepare_output("junit", junit)
    with implementation(file, program, None, None, None, timeout) as under_test:
        report = fuzzing.fuzz(target, under_test, seed, count)
    tell(report, junit, as_json)


def tell(report: Report, junit: Path | None, as_json: bool) -> None:
    """Print a report and write it; leave with exit code 1 if a case fails."""
    if junit is not None:
        write_text(junit, to_junit(report))
    if as_json:
        print_json(to_plain(report))
    else:
        show(report)
    if not report.passed:
        raise typer.Exit(1)


@contextmanager
def implementation(
    file: Path | None,
    program: str | None,
    arrays: str | None,
    device: str | None,
    precision: str | None,
    timeout: float,
) -> Iterator[Implementation]:
    """Yield the implementation under test, in a process of its own, which ends with the context.

    Raises:
        ValueError: if a file and a program are given, or neither, or if what is given cannot be
            used.
        FileNotFoundError: if the file does not exist.
    """
    if (file is None) == (program is None):
        raise ValueError("either a Python file or --exec PROGRAM must be given")
    if timeout <= 0:
        raise ValueError(f"timeout = {timeout} must be above 0 seconds")
    if program is not None:
        if arrays is not None or device is not None:
            raise ValueError("--arrays and --device are for Python files, --exec exchanges files")
        yield Program(program, precision or "float32", timeout)
        return
    assert file is not None
    under_test = Isolated(Loading(file, arrays, device, precision), timeout)
    try:
        yield under_test
    finally:
        under_test.close()


def show(report: Report) -> None:
    """Print a row per target and group, then the first failures."""
    rows, last = [], ""
    for group in report.groups:
        if group.target in report.untested:
            continue
        counts = [str(group.count(status) or "") for status in Status]
        rows.append((group.target if group.target != last else "", group.group, *counts))
        last = group.target
    print_table(Table(("target", "group", *map(str, Status)), rows, words=2))
    if failures := report.failures():
        console.print(escape(shown(failures)), style="red", highlight=False, soft_wrap=True)
        console.print()
    print_line(", ".join(f"{report.count(status)} {status}" for status in Status))
    if report.untested:
        names = ", ".join(report.untested[:MOST_NAMES])
        more = len(report.untested) - MOST_NAMES
        print_caption(f"nothing tested of: {names}{f' and {more} more' if more > 0 else ''}")


@app.command("list")
def list_targets(as_json: AsJson = False) -> None:
    """List what can be tested, and in which groups."""
    rows = {
        target: sorted({case.group for case in cases() if case.target == target})
        for target in targets(cases())
    }
    if as_json:
        print_json(rows)
        return
    table = [(target, ", ".join(groups)) for target, groups in rows.items()]
    print_table(Table(("target", "groups"), table, words=2))
    told = [
        (group, about["stresses"], about["what"], about.get("thread", "planted"))
        for group, about in ABOUT_GROUPS.items()
    ]
    print_table(Table(("group", "stresses", "finds, among others", "thread"), told, words=4))


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
    inputs = {name for case in own for name in case.inputs}
    outputs = {name for case in own for name in case.expected}
    values: dict[str, dict[str, None]] = {}
    for case in own:
        for name, value in case.parameters.items():
            values.setdefault(name, {})[str(value)] = None
    options = option_meanings(parse(target.rpartition(".")[0])) if operation.of_method else {}
    meanings = {**DESCRIBED["parameters"], **options, **operation.parameters}
    described = {
        "summary": operation.summary,
        "source": source_of(operation, target),
        "inputs": {k: vars(v) for k, v in operation.inputs.items() if k in inputs},
        "outputs": {k: vars(v) for k, v in operation.outputs.items() if k in outputs},
        "parameters": {name: meanings.get(name, "option of the method") for name in values},
    }
    if as_json:
        print_json(described)
        return
    print_line(f"{target}: {operation.summary}")
    print_line(f"source: {described['source']}")
    rows = [*field_rows("input", described["inputs"]), *field_rows("output", described["outputs"])]
    for name, meaning in described["parameters"].items():
        rows.append(("parameter", name, "", ", ".join([*values[name]][:4]), meaning))
    print_table(Table(("", "name", "axes", "kind or values", "meaning"), rows, words=5))


def source_of(operation: Operation, target: str) -> str:
    """Say where a target is defined: paper, equations, and the file of the reference to read."""
    if not operation.of_method:
        return operation.source
    method = parse(target.rpartition(".")[0])
    base = method.innermost if isinstance(method, Wrapper) else None
    return "\n        ".join(
        f"{each.source}; equations {', '.join(each.equations) or 'none'}; "
        f"read {type(each).__module__.removeprefix('kvlab.').replace('.', '/')}.py"
        for each in (method, base)
        if each is not None
    )


def option_meanings(method: Method) -> dict[str, str]:
    """Return what the options of a method mean, and those of what it wraps."""
    own = field_docstrings(type(method))
    return {**option_meanings(method.base), **own} if isinstance(method, Wrapper) else own


def field_rows(title: str, fields: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Lay inputs or outputs out."""
    return [
        (title, name, f"[{', '.join(field['axes'])}]", field["kind"], field["meaning"])
        for name, field in fields.items()
    ]


@app.command()
def generate(
    out: Annotated[
        Path | None, typer.Option(help="Directory to write; default: the package's.")
    ] = None,
    spec: Annotated[
        str, typer.Option(help="Specification whose cases are made; 0.9 has those of all methods.")
    ] = "0.9",
    method: Annotated[
        str | None, typer.Option(help="Make the cases of this method alone; needs --out.")
    ] = None,
) -> None:
    """Make the vectors anew from the reference, in minutes: the same bits on every machine."""
    check_choice(vectors.SPECIFICATIONS, spec=spec)
    if method is not None:
        methods.lookup(method)
        if out is None or spec != "0.9":
            given = "no --out" if out is None else f"--out {out}"
            raise ValueError(f"--method needs --out and --spec 0.9, got {given} and --spec {spec}")
    directory = out or vectors.SPECIFICATIONS[spec]
    prepare_output("out", directory / vectors.INDEX)
    with working("computing the vectors"):
        if method is not None:
            made = vectors.cases_of(method)
        else:
            made = vectors.all_cases() if spec == "0.9" else vectors.added_cases(spec)
    vectors.write(made, directory, spec)
    print_line(f"{len(made)} cases in {directory}")


PROJECT = """[project]
name = "kvlab-vectors"
version = "{spec}"
description = "Vectors of kvlab's conformance kit, for NumPy and safetensors alone"
requires-python = ">=3.11"
dependencies = ["numpy>=2.0", "safetensors>=0.4.5"]

[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
packages = ["kvlab_vectors"]

[tool.setuptools.package-data]
kvlab_vectors = [{directories}, "model/*"]
"""


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="Directory to write: a package for pip.")],
) -> None:
    """Write the vectors, the model and a reader as a package that needs no kvlab."""
    package = out / "kvlab_vectors"
    prepare_output("out", package / "__init__.py")
    for directory in vectors.SPECIFICATIONS.values():
        shutil.copytree(directory, package / directory.name, dirs_exist_ok=True)
    (package / "model").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, package / "model")
    shutil.copy(standalone.__file__, package / "__init__.py")
    listed = ", ".join(f'"{each.name}/*"' for each in vectors.SPECIFICATIONS.values())
    write_text(out / "pyproject.toml", PROJECT.format(spec=vectors.LATEST, directories=listed))
    print_line(f"{out}: python -m pip install {out}")


@app.command()
def verify() -> None:
    """Make the vectors anew and compare with the package's; exit code 1 if they differ."""
    same = 0
    for spec, ours in vectors.SPECIFICATIONS.items():
        vectors.check_sums(ours)
        with TemporaryDirectory() as folder:
            with working("computing the vectors"):
                vectors.write(vectors.added_cases(spec), Path(folder), spec)
            listed, made = (
                (directory / vectors.SUMS).read_text(encoding="utf-8").splitlines()
                for directory in (ours, Path(folder))
            )
        different = sorted(set(listed) ^ set(made))
        for line in different:
            errors.print(line, highlight=False)
        if different:
            raise typer.Exit(1)
        same += len(listed)
    print_line(f"{same} files are the same")
