"""Run the scripts of notebooks, check their exercises, and write the notebooks with their outputs.

Only those run that changed, or whose package changed, since their last run.

The site shows the same outputs (``docs/hooks/notebook_pages.py``). A cell that fails, a warning, a
solution (``notebooks/solutions``) that its check refuses, and a stub or a wrong answer
(``wrong_answers.toml``) that its check accepts end the run with code 1.
"""

import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from exercises import predicted, read

NOTEBOOKS = Path(__file__).parent
ROOT = NOTEBOOKS.parent

STAMPS = ROOT / "build" / "notebooks"
ANSWERS = NOTEBOOKS / "solutions" / "wrong_answers.toml"
STORED = tomllib.loads(ANSWERS.read_text("utf-8"))
WRONG = {name: {int(n): each for n, each in given.items()} for name, given in STORED.items()}
"""Wrong answers by notebook and number of the exercise."""
KERNEL = nbformat.from_dict(
    {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
)
WORKERS = 2
HANGING = 1800
"""Seconds after which a cell is ended."""

NEED_TORCH = ("08_test_your_kernel",)
"""Notebooks that also show what PyTorch does. All others run with PyTorch blocked."""

STRICT = """
import warnings
warnings.simplefilter("error")
warnings.filterwarnings("default", module="ipykernel")
"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
WITHOUT = """
import sys
import tomllib
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {modules}:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
del Without
"""
"""Makes Python find no module of those names, as if they were not installed."""


def main() -> None:
    """Run what is asked for; report every failure before ending."""
    sources = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
    with ProcessPoolExecutor(WORKERS) as pool:
        found = pool.map(run, sources)
        failures = [problem for problems in found for problem in problems]
    for problem in failures:
        print(problem, file=sys.stderr)
    sys.exit(bool(failures) or not sources)


def run(source: Path) -> list[str]:
    """Run one notebook unless its last run still holds; return what is wrong."""
    target, stamp = source.with_suffix(".ipynb"), STAMPS / f"{source.stem}.sha256"
    now = fingerprint(source)
    if target.exists() and stamp.exists() and stamp.read_text() == now:
        print(f"{source.name}: nothing changed since it ran")
        return []
    stamp.unlink(missing_ok=True)
    notebook = unexecuted(source)
    failures = list(execute(notebook, source.stem))
    if not failures:
        STAMPS.mkdir(parents=True, exist_ok=True)
        notebook.metadata = KERNEL  # without what the kernel says of this machine
        nbformat.write(notebook, target)
        stamp.write_text(now)
    print(f"{source.name}: {len(failures)} failures", flush=True)
    return failures


def unexecuted(source: Path) -> nbformat.NotebookNode:
    """Return the notebook that a script is; its cells are numbered, so that none has two names.

    Jupyter shows outputs that a reader predicts first on a click.
    """
    notebook = jupytext.read(source)
    for cell in predicted(notebook):
        cell.metadata["jupyter"] = {"outputs_hidden": True}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = str(number)
    return notebook


def fingerprint(source: Path) -> str:
    """Return a hash of all that a run depends on."""
    digest = hashlib.sha256()
    package = sorted(
        path
        for folder in ("reference", "fast", "docs/study")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    own = Path(__file__)
    exercises = NOTEBOOKS / "solutions" / source.name, NOTEBOOKS / "exercises.py"
    beside = *exercises, NOTEBOOKS / "classroom.py", ANSWERS
    for path in filter(Path.exists, (source, own, *beside, *package)):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def execute(notebook: nbformat.NotebookNode, name: str) -> Iterator[str]:
    """Run all cells in place, then every wrong answer against its check."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    blocked = WITHOUT.format(modules=("torch", "triton", "transformers"))
    with TemporaryDirectory() as sockets:
        ipc = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        client = NotebookClient(notebook, timeout=HANGING, record_timing=False, config=ipc)
        client.resources["metadata"] = {"path": str(NOTEBOOKS)}
        with client.setup_kernel(env=environment):
            for code in (STRICT, "" if name in NEED_TORCH else blocked):
                run_hidden(client, code)
            for index, cell in enumerate(notebook.cells):
                try:
                    client.execute_cell(cell, index)
                except CellExecutionError as error:
                    yield f"{name}, cell {index}:\n{COLOURS.sub('', str(error))}"
                    return
            yield from try_answers(client, notebook, name)


def try_answers(
    client: NotebookClient, notebook: nbformat.NotebookNode, name: str
) -> Iterator[str]:
    """Let each check judge the stub, every wrong answer and the solution, which then stays."""
    stubs, exercises, given = tagged(notebook, "exercise"), read(name), WRONG.get(name, {})
    if not len(stubs) == len(exercises) == len(given):
        counts = len(stubs), len(exercises), len(given)
        yield f"{name}: exercises, solutions and wrong answers differ in number: {counts}"
        return
    for number, (_, solution, check) in exercises.items():
        stub, judge = stubs[number - 1], f"exec({check!r}, dict(globals()))"
        for answer in (stub, *given[number]):
            error = raised(client, f"{answer}\n\n{judge}")
            if not error or (answer != stub and error != "AssertionError"):
                why = f"no assertion, but {error}" if error else "the check accepted it"
                yield f"{name}, exercise {number}, wrong answer:\n{answer}\n{why}"
        if error := raised(client, f"{solution}\n\n{judge}"):
            yield f"{name}, exercise {number}: the check refuses the solution: {error}"


def tagged(notebook: nbformat.NotebookNode, tag: str) -> list[str]:
    return [cell.source for cell in notebook.cells if tag in cell.metadata.get("tags", [])]


def raised(client: NotebookClient, code: str) -> str:
    """Return the name of the error that code ends with; an empty text if it ends well."""
    try:
        run_hidden(client, code)
    except CellExecutionError as error:
        return error.ename
    return ""


def run_hidden(client: NotebookClient, code: str) -> None:
    """Run code in the notebook's kernel without a trace in the notebook."""
    cells = client.nb.cells
    cells.append(nbformat.v4.new_code_cell(code))
    try:
        client.execute_cell(cells[-1], len(cells) - 1, store_history=False)
    finally:
        cells.pop()


if __name__ == "__main__":
    main()
