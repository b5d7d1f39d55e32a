"""``kvlab conformance``: test kernels against the reference. Needs the reference alone."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Exit, Option, Typer

from kvlab.fast.lab import terminal
from kvlab.fast.lab.commands.options import PROCESSORS, Json, check_output
from kvlab.fast.lab.files import folder_of, named, write_text
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import print_json, print_line, print_table, reporting, working
from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance import checker, planned, publishing, report, vectors
from kvlab.reference.conformance.checker import cases, made_on_the_spot
from kvlab.reference.conformance.exporting import FORMATS, TEXTS, files_of
from kvlab.reference.conformance.isolated import Isolated
from kvlab.reference.conformance.operation import DESCRIBED
from kvlab.reference.conformance.program import Program as RunProgram
from kvlab.reference.conformance.report import FLAGS, XFAILS, Report, Status
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.method import CommonOptions, Method, Wrapper, field_docstrings
from kvlab.reference.processes import threads_of_processes

app = Typer(
    no_args_is_help=True, help="Test your own kernel against the reference, in any language."
)

MOST_NAMES = 12


File = Annotated[Path | None, Argument(help="Python file that defines IMPLEMENTATIONS.")]
Part = Annotated[str | None, Option(help="A building block, method or step; default: all.")]
Groups = Annotated[list[str] | None, Option(help="Groups to run; may be repeated.")]
Exclude = Annotated[list[str] | None, Option(help="Groups to leave out; may be repeated.")]
Minimise = Annotated[bool, Option(help="Look for the smallest inputs on which a group fails.")]
Calls = Annotated[int, Option(min=1, help="Calls of each case.")]
SIZES = "small: the vectors; kernel, long: drawn cases. May be repeated."
Sizes = Annotated[list[str] | None, Option(help=SIZES)]
Xfails = Annotated[Path | None, Option(help=f"Known failures; default: {XFAILS}, if there is one.")]
MAY_DIFFER = f"Where a right implementation may differ: {', '.join(FLAGS)}."
Allow = Annotated[list[str] | None, Option(help=MAY_DIFFER)]
PROGRAM = "Program to run as PROGRAM TARGET INPUT OUTPUT."
Program = Annotated[str | None, Option("--exec", help=PROGRAM)]
STAY = "Start it once; it reads TARGET INPUT OUTPUT, a line per case."
Stay = Annotated[bool, Option("--stay", help=STAY)]
ARRAYS = "numpy, torch, cupy, jax.numpy; default: the file's ARRAYS."
Arrays = Annotated[str | None, Option(help=ARRAYS)]
Device = Annotated[str | None, Option(help="Device, as that library names it.")]
PRECISION = "float32, float16 or bfloat16, for inputs and tolerance."
Precision = Annotated[str | None, Option(help=PRECISION)]
Timeout = Annotated[float, Option(help="Seconds that one case may take.")]
Seed = Annotated[int, Option(min=0, help="Seed of the numbers in drawn cases.")]
Jobs = Annotated[int, Option(min=1, help="Processes that answer cases at once.")]
Target = Annotated[str, Argument(help="A building block, or a step as in h2o.score.")]
Out = Annotated[Path, Option(help="Directory to write.")]


@app.command()
def run(
    file: File = None,
    target: Part = None,
    group: Groups = None,
    exclude: Exclude = None,
    minimise: Minimise = True,
    calls: Calls = 1,
    sizes: Sizes = None,
    xfails: Xfails = None,
    allow: Allow = None,
    program: Program = None,
    arrays: Arrays = None,
    device: Device = None,
    precision: Precision = None,
    stay: Stay = False,
    timeout: Timeout = 60.0,
    seed: Seed = 0,
    jobs: Jobs = 1,
    json: Json = False,
) -> None:
    """Run an implementation on the vectors; exit code 1 if a case fails."""
    listed = xfails or (Path(XFAILS) if Path(XFAILS).exists() else None)
    known = {} if listed is None else report.read_xfails(listed)
    for flag in allow or ():
        check_choice(FLAGS, allow=flag)
    with ThreadPoolExecutor(1) as reader, ExitStack() as opened:
        reader.submit(cases, target)  # read while the file is loaded
        if jobs > 1:
            opened.enter_context(threads_of_processes(max(1, PROCESSORS // jobs)))
        tested = _implementation(file, program, arrays, device, precision, stay, timeout)
        workers = [tested, *(tested.another() for _ in range(jobs - 1))]
        for each in workers:
            opened.enter_context(closing(each))
        found = checker.check(
            target,
            tested,
            others=workers[1:],
            groups=group or None,
            exclude=exclude or (),
            minimise=minimise,
            calls=calls,
            sizes=sizes or ("small",),
            seed=seed,
            progress=opened.enter_context(reporting(transient=True)),
        )
    found = report.judged(found, known, allow or ())
    _finish(found, json, of=str(file or program), specification=vectors.SPECIFICATION)


@app.command()
def fuzz(
    target: Target,
    file: File = None,
    count: Annotated[int, Option("--cases", min=1, help="Cases to draw.")] = 100,
    program: Program = None,
    arrays: Arrays = None,
    device: Device = None,
    precision: Precision = None,
    stay: Stay = False,
    timeout: Timeout = 60.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Draw cases of one target until one fails, ask each eleven times; exit code 1 if one fails."""
    tested = _implementation(file, program, arrays, device, precision, stay, timeout)
    with closing(tested) as under_test, working("asking drawn cases"):
        found = checker.fuzz(target, under_test, seed, count)
    _finish(found, json, of=str(file or program))


def _implementation(
    file: Path | None,
    program: str | None,
    arrays: str | None,
    device: str | None,
    precision: str | None,
    stay: bool,
    timeout: float,
) -> Isolated | RunProgram:
    """Return the implementation, in a process of its own, which has to be closed."""
    if timeout <= 0:
        raise ValueError(f"timeout = {timeout} must be above 0 seconds")
    if stay and program is None:
        raise ValueError("--stay is for --exec: a Python file stays anyway")
    if program is None and file is not None:
        return Isolated(file, arrays, device, precision or "", timeout)
    if program is None or file is not None:
        raise ValueError("either a Python file or --exec PROGRAM must be given")
    if arrays is not None or device is not None:
        raise ValueError("--arrays and --device are for Python files, --exec exchanges files")
    return RunProgram(program, precision or "float32", timeout, stay)


def _finish(found: Report, as_json: bool, **about: str) -> None:
    if as_json:
        environment = {"environment": report.environment()}
        print_json({**report.to_plain(found), **about, **environment})
    else:
        _show(found)
    if not found.passed:
        raise Exit(1)


def _show(found: Report) -> None:
    rows, last = [], ""
    for group in found.groups:
        if group.target in found.untested:
            continue
        counts = [str(group.count(status) or "") for status in Status]
        margin = "" if group.margin is None else f"{group.margin:.0%}"
        rows.append((group.target if group.target != last else "", group.group, *counts, margin))
        last = group.target
    print_table(Table(("target", "group", *map(str, Status), "margin"), rows, words=2))
    if failures := found.failures():
        terminal.console.print(
            escape(report.shown(failures)), style="red", highlight=False, soft_wrap=True
        )
        terminal.console.print()
    print_line(", ".join(f"{found.count(status)} {status}" for status in Status))
    if found.untested:
        names = ", ".join(found.untested[:MOST_NAMES])
        more = len(found.untested) - MOST_NAMES
        terminal.print_caption(
            f"nothing tested of: {names}{f' and {more} more' if more > 0 else ''}"
        )


@app.command("list")
def list_targets(json: Json = False) -> None:
    """List what can be tested, and in which groups."""
    rows: dict[str, set[str]] = {}
    for case in cases():
        rows.setdefault(case.target, set()).add(case.group)
    if json:
        print_json({target: sorted(groups) for target, groups in rows.items()})
        return
    table = [(target, ", ".join(sorted(groups))) for target, groups in rows.items()]
    print_table(Table(("target", "groups"), table, words=2))
    told = [
        (group, about["stresses"], about["what"], about.get("thread", "planted"))
        for group, about in report.ABOUT_GROUPS.items()
    ]
    print_table(Table(("group", "stresses", "finds, among others", "thread"), told, words=4))


@app.command("show")
def show_target(target: Target, json: Json = False) -> None:
    """Show what a target is given and has to return."""
    operation = operation_of(target)
    own = [case for case in cases(target) if case.target == target]
    if not own:
        raise ValueError(f"there are no vectors for {target!r}")
    given = {name for case in own for name in (*case.inputs, *case.expected)}
    values: dict[str, list[str]] = {}
    for case in own:
        for name, value in case.parameters.items():
            values.setdefault(name, []).append(str(value))
    source, options = operation.source, {}
    if operation.of_method:
        method = methods.parse(target.rpartition(".")[0])
        source, options = _sources(method), _meanings(method)
    meanings = {**DESCRIBED["parameters"], **options, **operation.parameters}
    arrays = {
        kind: {name: vars(each) for name, each in fields.items() if name in given}
        for kind, fields in (("inputs", operation.inputs), ("outputs", operation.outputs))
    }
    parameters = {name: meanings.get(name, "") for name in values}
    if json:
        told = {"summary": operation.summary, "source": source}
        print_json({**told, **arrays, "parameters": parameters})
        return
    print_line(f"{target}: {operation.summary}")
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


@app.command()
def generate(
    out: Out,
    method: Annotated[
        str | None, Option(help="Make the cases of this method, published or not.")
    ] = None,
) -> None:
    """Draw all vectors anew, or make those of a method of its examples, and write them."""
    if method is not None:
        methods.lookup(method)
    check_output("out", out / vectors.INDEX)
    with working("drawing the vectors"):
        made = [*(planned.published_anew() if method is None else made_on_the_spot(method))]
    publishing.write(made, out)
    print_line(f"{len(made)} cases in {out}")


@app.command()
def export(
    out: Out,
    target: Annotated[
        str | None,
        Argument(
            help="A building block, or a step as in h2o.score; none: all vectors, as a package for "
            "pip."
        ),
    ] = None,
    format: Annotated[str, Option(help=f"Of a target: {', '.join(FORMATS)}.")] = "gpu-mode",
) -> None:
    """Write a target for a harness of others, or all vectors as a package that needs no kvlab."""
    check_choice(FORMATS, format=format)
    package = out / "kvlab_vectors"
    if target is not None:
        files = files_of(target, format)
        check_output("out", out / next(iter(files)))
        for name, content in files.items():
            with named(out / name), folder_of(out / name):
                (out / name).write_bytes(
                    content if isinstance(content, bytes) else content.encode()
                )
        print_line(f"{len(files)} files in {out}")
        return
    check_output("out", package / "__init__.py")
    shutil.copytree(vectors.VECTORS, package / vectors.VECTORS.name, dirs_exist_ok=True)
    (package / "model").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(vectors.MODEL / name, package / "model")
    shutil.copy(vectors.__file__, package / "__init__.py")
    write_text(out / "pyproject.toml", TEXTS["project"].replace("$spec", vectors.SPECIFICATION))
    print_line(f"{out}: python -m pip install {out}")


@app.command()
def verify() -> None:
    """Let today's reference answer the published cases anew; exit code 1 if a file would differ."""
    with working("computing the answers"):
        same, different = publishing.check_answers()
    for line in different:
        terminal.errors.print(line, highlight=False)
    if different:
        raise Exit(1)
    print_line(f"{len(same)} files are the same")
