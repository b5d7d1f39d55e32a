"""``kvlab conformance``: test kernels against the reference. Needs the reference alone."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from kvlab.fast.lab.commands.settings import Group, Json, check_output, command
from kvlab.fast.lab.files import folder_of, named, write_text
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
from kvlab.reference.conformance import publishing, vectors
from kvlab.reference.conformance.checker import cases, check, made_on_the_spot
from kvlab.reference.conformance.checker import fuzz as ask_drawn
from kvlab.reference.conformance.exporting import FORMATS, TEXTS, files_of
from kvlab.reference.conformance.isolated import Isolated
from kvlab.reference.conformance.operation import DESCRIBED
from kvlab.reference.conformance.program import Program
from kvlab.reference.conformance.report import (
    ABOUT_GROUPS,
    XFAILS,
    Report,
    Status,
    judged,
    read_xfails,
    shown,
    to_plain,
)
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.method import CommonOptions, Method, Wrapper, field_docstrings

app = typer.Typer(
    no_args_is_help=True, help="Test your own kernel against the reference, in any language."
)

MOST_NAMES = 12
"""How many targets without a test the report names at most."""


class Tested(Json):
    """What is tested."""

    file: Annotated[Path | None, typer.Argument()] = None
    """Python file that defines IMPLEMENTATIONS."""
    program: Annotated[str | None, typer.Option("--exec")] = None
    """Program to run as PROGRAM TARGET INPUT OUTPUT."""
    arrays: str | None = None
    """numpy, torch, cupy, jax.numpy; default: the file's ARRAYS."""
    device: str | None = None
    """Device, as that library names it."""
    precision: str | None = None
    """float32, float16 or bfloat16, for inputs and tolerance."""
    timeout: float = 60.0
    """Seconds that one case may take."""
    seed: Annotated[int, typer.Option(min=0)] = 0
    """Seed of the numbers in drawn cases."""

    def implementation(self) -> Isolated | Program:
        """Return the implementation, in a process of its own, which has to be closed."""
        if self.timeout <= 0:
            raise ValueError(f"timeout = {self.timeout} must be above 0 seconds")
        if (self.file is None) == (self.program is None):
            raise ValueError("either a Python file or --exec PROGRAM must be given")
        if self.program is not None and (self.arrays is not None or self.device is not None):
            raise ValueError("--arrays and --device are for Python files, --exec exchanges files")
        if self.file is not None:
            given = self.file, self.arrays, self.device, self.precision or ""
            return Isolated(*given, self.timeout)
        return Program(str(self.program), self.precision or "float32", self.timeout)

    def tell(self, report: Report) -> None:
        """Print a report; leave with exit code 1 if a case fails."""
        if self.json:
            print_json(to_plain(report))
        else:
            _show(report)
        if not report.passed:
            raise typer.Exit(1)


class RunSettings(Tested):
    """Which cases are run."""

    target: str | None = None
    """A building block, method or step; default: all."""
    group: list[str] | None = None
    """Groups to run; may be repeated."""
    exclude: list[str] | None = None
    """Groups to leave out; may be repeated."""
    minimise: bool = True
    """Look for the smallest inputs on which a group fails."""
    calls: Annotated[int, typer.Option(min=1)] = 1
    """Calls of each case."""
    sizes: list[str] | None = None
    """small: the vectors; kernel, long: drawn cases. May be repeated."""
    spec: Annotated[
        str, typer.Option(help=f"Specification: {', '.join(vectors.SPECIFICATIONS)}.")
    ] = vectors.LATEST
    xfails: Annotated[
        Path | None, typer.Option(help=f"Known failures; default: {XFAILS}, if there is one.")
    ] = None


@app.command()
@command
def run(settings: RunSettings) -> None:
    """Run an implementation on the vectors; exit code 1 if a case fails."""
    listed = settings.xfails or (Path(XFAILS) if Path(XFAILS).exists() else None)
    known = {} if listed is None else read_xfails(listed)
    with closing(settings.implementation()) as under_test, reporting(transient=True) as told:
        report = check(
            settings.target,
            under_test,
            groups=settings.group or None,
            exclude=settings.exclude or (),
            minimise=settings.minimise,
            calls=settings.calls,
            sizes=settings.sizes or ("small",),
            seed=settings.seed,
            spec=settings.spec,
            progress=told,
        )
    settings.tell(judged(report, known))


class FuzzSettings(Tested):
    """Which cases are drawn, and how many."""

    target: Annotated[str, typer.Argument()]
    """A building block, or a step as in h2o.score."""
    count: Annotated[int, typer.Option("--cases", min=1)] = 100
    """Cases to draw."""


@app.command()
@command
def fuzz(settings: FuzzSettings) -> None:
    """Draw cases of one target until one fails, ask each eleven times; exit code 1 if one fails."""
    with closing(settings.implementation()) as under_test, working("asking drawn cases"):
        report = ask_drawn(settings.target, under_test, settings.seed, settings.count)
    settings.tell(report)


def _show(report: Report) -> None:
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
@command
def list_targets(settings: Json) -> None:
    """List what can be tested, and in which groups."""
    rows: dict[str, set[str]] = {}
    for case in cases():
        rows.setdefault(case.target, set()).add(case.group)
    if settings.json:
        print_json({target: sorted(groups) for target, groups in rows.items()})
        return
    table = [(target, ", ".join(sorted(groups))) for target, groups in rows.items()]
    print_table(Table(("target", "groups"), table, words=2))
    told = [
        (group, about["stresses"], about["what"], about.get("thread", "planted"))
        for group, about in ABOUT_GROUPS.items()
    ]
    print_table(Table(("group", "stresses", "finds, among others", "thread"), told, words=4))


class ShowSettings(Json):
    """What is shown."""

    target: Annotated[str, typer.Argument()]
    """A building block, or a step as in h2o.score."""


@app.command("show")
@command
def show_target(settings: ShowSettings) -> None:
    """Show what a target is given and has to return."""
    operation = operation_of(settings.target)
    own = [case for case in cases(settings.target) if case.target == settings.target]
    if not own:
        raise ValueError(f"there are no vectors for {settings.target!r}")
    given = {name for case in own for name in (*case.inputs, *case.expected)}
    values: dict[str, list[str]] = {}
    for case in own:
        for name, value in case.parameters.items():
            values.setdefault(name, []).append(str(value))
    source, options = operation.source, {}
    if operation.of_method:
        method = methods.parse(settings.target.rpartition(".")[0])
        source, options = _sources(method), _meanings(method)
    meanings = {**DESCRIBED["parameters"], **options, **operation.parameters}
    arrays = {
        kind: {name: vars(each) for name, each in fields.items() if name in given}
        for kind, fields in (("inputs", operation.inputs), ("outputs", operation.outputs))
    }
    parameters = {name: meanings.get(name, "") for name in values}
    if settings.json:
        told = {"summary": operation.summary, "source": source}
        print_json({**told, **arrays, "parameters": parameters})
        return
    print_line(f"{settings.target}: {operation.summary}")
    print_line(f"source: {source}")
    rows: list[Any] = [
        (kind[:-1], name, f"[{', '.join(each['axes'])}]", each["kind"], each["meaning"])
        for kind, fields in arrays.items()
        for name, each in fields.items()
    ]
    for name, meaning in parameters.items():
        some = ", ".join([*dict.fromkeys(values[name])][:4])
        rows.append(("parameter", name, "", some, meaning))
    print_table(Table(("", "name", "axes", "kind or values", "meaning"), rows, words=5))


def _sources(method: Method) -> str:
    """Say where a method is defined: paper, equations, and the file of the reference to read."""
    return "\n        ".join(
        f"{each.source}; equations {', '.join(each.equations) or 'none'}; "
        f"read {type(each).__module__.removeprefix('kvlab.').replace('.', '/')}.py"
        for each in dict.fromkeys((method, method.parts[-1]))
    )


def _meanings(method: Method) -> dict[str, str]:
    """Return what the options of a method mean, and those of what it wraps."""
    own = {**field_docstrings(CommonOptions), **field_docstrings(type(method))}
    return {**_meanings(method.base), **own} if isinstance(method, Wrapper) else own


class GenerateSettings(Group):
    """Which cases are made, and where they go."""

    out: Path
    """Directory to write."""
    method: str | None = None
    """Make the cases of this method alone."""


@app.command()
@command
def generate(settings: GenerateSettings) -> None:
    """Write cases of methods, made of their examples, as the published vectors are written."""
    if settings.method is not None:
        methods.lookup(settings.method)
    check_output("out", settings.out / vectors.INDEX)
    with working("computing the vectors"):
        names = methods.names() if settings.method is None else (settings.method,)
        made = [case for name in names for case in made_on_the_spot(name)]
    publishing.write(made, settings.out)
    print_line(f"{len(made)} cases in {settings.out}")


class ExportSettings(Group):
    """What is exported, and where it goes."""

    out: Path
    """Directory to write."""
    target: Annotated[str | None, typer.Argument()] = None
    """A building block, or a step as in h2o.score; none: all vectors, as a package for pip."""
    format: Annotated[str, typer.Option(help=f"Of a target: {', '.join(FORMATS)}.")] = "gpu-mode"


@app.command()
@command
def export(settings: ExportSettings) -> None:
    """Write a target for a harness of others, or all vectors as a package that needs no kvlab."""
    check_choice(FORMATS, format=settings.format)
    out, package = settings.out, settings.out / "kvlab_vectors"
    if settings.target is not None:
        files = files_of(settings.target, settings.format)
        check_output("out", out / next(iter(files)))
        for name, content in files.items():
            with named(out / name), folder_of(out / name):
                (out / name).write_bytes(
                    content if isinstance(content, bytes) else content.encode()
                )
        print_line(f"{len(files)} files in {out}")
        return
    check_output("out", package / "__init__.py")
    for folder in vectors.SPECIFICATIONS.values():
        shutil.copytree(vectors.HERE / folder, package / folder, dirs_exist_ok=True)
    (package / "model").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(vectors.MODEL / name, package / "model")
    shutil.copy(vectors.__file__, package / "__init__.py")
    write_text(out / "pyproject.toml", TEXTS["project"].replace("$spec", vectors.LATEST))
    print_line(f"{out}: python -m pip install {out}")


@app.command()
def verify() -> None:
    """Let today's reference answer the published cases anew; exit code 1 if a file would differ."""
    count = 0
    for spec in vectors.SPECIFICATIONS:
        with working("computing the answers"):
            same, different = publishing.check_answers(spec)
        for line in different:
            errors.print(line, highlight=False)
        if different:
            raise typer.Exit(1)
        count += len(same)
    print_line(f"{count} files are the same")
