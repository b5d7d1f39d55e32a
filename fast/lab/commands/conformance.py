"""``kvlab conformance``: test kernels against the reference. Needs the reference alone."""

import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from json import dumps
from math import inf
from pathlib import Path
from typing import Any

from rich.markup import escape
from typer import Exit, Typer

from kvlab.fast.lab import terminal
from kvlab.fast.lab.commands.options import PROCESSORS, add_commands, check_output
from kvlab.fast.lab.files import folder_of, named, write_text
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.terminal import print_json, print_line, print_table, progress_bar, working
from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance import checker, planned, publishing, report, vectors
from kvlab.reference.conformance.checker import cases, made_on_the_spot
from kvlab.reference.conformance.exporting import FORMATS, TEXTS, files_of
from kvlab.reference.conformance.isolated import Isolated
from kvlab.reference.conformance.operation import DESCRIBED
from kvlab.reference.conformance.program import Program
from kvlab.reference.conformance.report import FLAGS, XFAILS, Report, Status
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.method import CommonOptions, Method, Wrapper, field_docstrings
from kvlab.reference.processes import threads_of_processes

app = Typer(
    no_args_is_help=True, help="Test your own kernel against the reference, in any language."
)

MOST_NAMES = 12


@dataclass(frozen=True)
class Tested:
    """An implementation: a Python file, or a program."""

    file: Path | None = None
    program: str | None = None
    arrays: str | None = None
    device: str | None = None
    precision: str | None = None
    stay: bool = False
    timeout: float = 60.0

    @property
    def name(self) -> str:
        """What was typed."""
        return str(self.file or self.program)

    def started(self) -> Isolated | Program:
        """Return the implementation, in a process of its own, which has to be closed."""
        if self.timeout <= 0:
            raise ValueError(f"timeout = {self.timeout} must be above 0 seconds")
        if self.stay and self.program is None:
            raise ValueError("--stay is for --exec: a Python file stays anyway")
        if self.program is None and self.file is not None:
            where = self.arrays, self.device, self.precision or ""
            return Isolated(self.file, *where, self.timeout)
        if self.program is None or self.file is not None:
            raise ValueError("either a Python file or --exec PROGRAM must be given")
        if self.arrays is not None or self.device is not None:
            raise ValueError("--arrays and --device are for Python files, --exec exchanges files")
        return Program(self.program, self.precision or "float32", self.timeout, self.stay)


NOTHING = Tested()


def run(
    target: list[str] | None = None,
    group: list[str] | None = None,
    exclude: list[str] | None = None,
    case: list[str] | None = None,
    minimise: bool = True,
    calls: int = 1,
    sizes: list[str] | None = None,
    xfails: Path | None = None,
    allow: list[str] | None = None,
    implementation: Tested = NOTHING,
    seed: int = 0,
    jobs: int = 1,
    within: float | None = None,
    write_failures: Path | None = None,
    junit: Path | None = None,
    badge: Path | None = None,
    json: bool = False,
) -> None:
    """Run an implementation on the vectors; exit code 1 if a case fails."""
    check_output("junit", junit)
    check_output("badge", badge)
    check_output("write_failures", write_failures and write_failures / "failure.py")
    program = implementation.program or ""
    listed = xfails or (Path(XFAILS) if Path(XFAILS).exists() else None)
    known = {} if listed is None else report.read_xfails(listed)
    for flag in allow or ():
        check_choice(FLAGS, allow=flag)
    with ThreadPoolExecutor(1) as reader, ExitStack() as opened:
        reader.submit(cases, target)  # read while the file is loaded
        if jobs > 1:
            opened.enter_context(threads_of_processes(max(1, PROCESSORS // jobs)))
        tested = implementation.started()
        workers = [tested, *(tested.another() for _ in range(jobs - 1))]
        for each in workers:
            opened.enter_context(closing(each))
        found = checker.check(
            target,
            tested,
            others=workers[1:],
            groups=[*(group or ()), *(case or ())],
            exclude=exclude or (),
            within=inf if within is None else within,
            minimise=minimise,
            calls=calls,
            sizes=sizes or ("small",),
            seed=seed,
            progress=opened.enter_context(progress_bar(transient=True)),
        )
    found = report.judged(found, known, allow or ())
    if junit is not None:
        from kvlab.fast.lab.reports import write_page

        write_page(junit, "conformance.xml.jinja", report=found, describe=report.describe)
    if badge is not None:
        write_text(badge, dumps(report.badge(found)))
    if write_failures is not None:
        files = report.failing_files(found, implementation.file, program)
        _write(files, write_failures)
        if scripts := [write_failures / name for name in files if name.endswith(".py")]:
            terminal.errors.print(f"once more: {sys.executable} {scripts[0]}", soft_wrap=True)
    _finish(found, json, of=implementation.name, specification=vectors.SPECIFICATION)


def fuzz(
    target: str,
    count: int = 100,
    implementation: Tested = NOTHING,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Draw cases of one target until one fails, ask each eleven times; exit code 1 if one fails."""
    with closing(implementation.started()) as under_test, working("asking drawn cases"):
        found = checker.fuzz(target, under_test, seed, count)
    _finish(found, json, of=implementation.name)


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
    late = [each.case.target for each in found.outcomes if each.reason == checker.LATE]
    said = {f"{checker.LATE} before {len(late)} cases of": tuple(dict.fromkeys(late))}
    said |= {"no case of these sizes": found.no_cases}
    for what, targets in (said | {"nothing tested of": found.untested}).items():
        more = f" and {len(targets) - MOST_NAMES} more" if len(targets) > MOST_NAMES else ""
        if targets:
            terminal.print_caption(f"{what}: {', '.join(targets[:MOST_NAMES])}{more}")


def list_targets(json: bool = False) -> None:
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


def show_target(target: str, json: bool = False) -> None:
    """Show what a target is given and has to return."""
    operation = operation_of(target)
    own = [case for case in cases(target) if case.target == target]
    if not own:
        raise ValueError(f"there are no vectors for {target!r}")
    given = {name for case in own for name in (*case.inputs, *case.expected)}
    values: dict[str, list[str]] = {}
    told = (case.parameters.items() for case in own)
    for name, value in chain(*told, planned.drawn_options(target)):
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


def generate(out: Path, method: str | None = None) -> None:
    """Draw all vectors anew, or make those of a method of its examples, and write them."""
    if method is not None:
        methods.lookup(method)
    check_output("out", out / vectors.INDEX)
    with working("drawing the vectors"):
        made = [*(planned.published_anew() if method is None else made_on_the_spot(method))]
    publishing.write(made, out)
    print_line(f"{len(made)} cases in {out}")


def export(out: Path, target: str | None = None, format: str = "gpu-mode") -> None:
    """Write a target for a harness of others, or all vectors as a package that needs no kvlab."""
    check_choice(FORMATS, format=format)
    package = out / "kvlab_vectors"
    if target is not None:
        files = files_of(target, format)
        check_output("out", out / next(iter(files)))
        _write(files, out)
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


def _write(files: Mapping[str, str | bytes], out: Path) -> None:
    for name, content in files.items():
        with named(out / name), folder_of(out / name):
            (out / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def verify() -> None:
    """Let today's reference answer the published cases anew; exit code 1 if a file would differ."""
    with working("computing the answers"):
        same, different = publishing.check_answers()
    for line in different:
        terminal.errors.print(line, highlight=False)
    if different:
        raise Exit(1)
    print_line(f"{len(same)} files are the same")


add_commands(app, "conformance", run=run, fuzz=fuzz, list=list_targets, show=show_target)
add_commands(app, "conformance", generate=generate, export=export, verify=verify)
