"""Who may import whom: every room rests only on the rooms below it, and no module on itself.

An import counts wherever it stands, also inside of a function; only one that is there for the type
checker alone does not.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"kvlab.reference": ROOT / "reference", "kvlab.fast": ROOT / "fast"}
SCRIPTS = [*(ROOT / "docs" / "hooks").glob("*.py"), *(ROOT / "notebooks").glob("*.py")]

Graph = Mapping[str, set[str]]
"""The modules that each module imports."""

REFERENCE = "kvlab.reference"
FAST = "kvlab.fast"
LAB = "kvlab.fast.lab"
FRONT = "front"
"""The room of `kvlab.reference`, `kvlab.fast` and `kvlab.fast.lab` themselves: they gather what
others import from them, so they may import everything that lies in them."""

BELOW = {
    "reference core": set(),
    "tasks": {"reference core"},
    "methods": {"reference core"},
    "traces": {"reference core", "methods", "tasks"},
    "planner": {"reference core", "methods"},
    "proofs": {"reference core", "methods", "tasks", "traces", "planner"},
    "conformance": {"reference core", "methods", "tasks", "traces"},
    "timeline": {"reference core", "methods", "traces"},
}
"""The rooms of the reference, and those on which each may rest."""

FAST_BELOW = {
    "kernels": {"engine"},  # of the engine, only what uses no kernel: see the test of it
    "engine": {"kernels"},
    "huggingface": {"engine", "kernels"},
    "models": {"engine", "huggingface"},
    "lab": {"engine", "kernels", "huggingface", "models", FRONT},
}
"""The rooms of the fast side, and those on which each may rest beside all of the reference."""

MISPLACED = {
    ("kvlab.reference.traces.eviction_choices", "kvlab.reference.proofs.observed"),
}
"""Imports that break the rule today."""

USING_KERNELS = {("kvlab.fast.kernels.keep", "kvlab.fast.selection")}
"""Kernels that rest on what uses kernels today."""

CIRCLES = [{"kvlab.fast.kernels.caote", "kvlab.fast.kernels.triton.caote_launch"}]
"""Modules that import each other today."""


# --- reading -------------------------------------------------------------------------------------


def read_graph(packages: Mapping[str, Path]) -> Graph:
    """Read which modules of some packages import which others of them."""
    files = {
        name_of(package, path.relative_to(folder)): path
        for package, folder in packages.items()
        for path in folder.rglob("*.py")
    }
    return {
        name: {module(each, files) for each in imported(ast.parse(path.read_text()))} & files.keys()
        for name, path in files.items()
    }


def name_of(package: str, path: Path) -> str:
    parts = (package, *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what is imported: ``a.b.c`` also for ``from a.b import c``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        else:
            yield from imported(node)


def module(name: str, files: Mapping[str, Path]) -> str:
    """Return the module that an imported name is, or in which it is defined."""
    return name if name in files else name.rpartition(".")[0]


# --- judging -------------------------------------------------------------------------------------


def room(name: str) -> str:
    if name in (REFERENCE, FAST, LAB):
        return FRONT
    if name.startswith(f"{REFERENCE}."):
        first = name.removeprefix(f"{REFERENCE}.").partition(".")[0]
        return first if first in BELOW else "reference core"
    first = name.removeprefix(f"{FAST}.").partition(".")[0]
    return first if first in FAST_BELOW else "engine"


def allowed(importer: str, target: str) -> bool:
    """Say whether one module may import another."""
    here, there = room(importer), room(target)
    if target.startswith(f"{LAB}.commands"):
        return importer == f"{LAB}.cli" or importer.startswith(f"{LAB}.commands")
    if target == f"{LAB}.cli":
        return False
    if here == FRONT:
        return target.startswith(importer)
    if here == there:
        return True
    if here in BELOW:
        return there in BELOW[here]
    return there in BELOW or target == REFERENCE or there in FAST_BELOW[here]


def misplaced(graph: Graph) -> set[tuple[str, str]]:
    """Return the imports that are not allowed."""
    return {
        (importer, target)
        for importer, targets in graph.items()
        for target in targets
        if not allowed(importer, target)
    }


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the modules that a module needs, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def circles(graph: Graph) -> list[set[str]]:
    """Return the groups of modules that need each other."""
    needs = {name: reachable(graph, name) for name in graph}
    groups = {
        frozenset(other for other in needs[name] if name in needs[other])
        for name in graph
        if name in needs[name]
    }
    return [set(group) for group in groups]


# --- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> Graph:
    return read_graph(PACKAGES)


def test_every_room_rests_on_those_below_it(graph):
    assert misplaced(graph) == MISPLACED


def test_no_modules_import_each_other(graph):
    assert sorted(circles(graph), key=sorted) == CIRCLES


def test_kernels_rest_only_on_what_uses_no_kernel(graph):
    found = {
        (kernel, below)
        for kernel in graph
        for below in graph[kernel]
        if room(kernel) == "kernels" and room(below) != "kernels"
        if "kernels" in map(room, reachable(graph, below))
    }
    assert found == USING_KERNELS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_pages_and_notebooks_do_not_import_the_command_line(path):
    for name in imported(ast.parse(path.read_text())):
        assert not name.startswith((f"{LAB}.cli", f"{LAB}.commands")), name


# --- what the tests would notice -----------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """Return a function that writes modules of ``kvlab.fast`` and ``kvlab.reference``."""

    def write(**texts: str) -> Graph:
        for name, text in texts.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_graph({package: tmp_path / folder.name for package, folder in PACKAGES.items()})

    return write


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("reference__policy", "reference__methods__h2o"),
        ("reference__methods__h2o", "reference__planner__cost"),
        ("reference__traces__trace", "reference__proofs__claim"),
        ("reference__policy", "fast__policy"),
        ("fast__policy", "fast__huggingface"),
        ("fast__huggingface", "fast__lab__compare"),
        ("fast__lab__compare", "fast__lab__commands__options"),
        ("fast__lab__commands__view", "fast__lab__cli"),
    ],
)
def test_a_misplaced_import_is_noticed(made, importer, target):
    name = f"kvlab.{target.replace('__', '.')}"
    package, _, last = name.rpartition(".")
    for text in (f"import {name}", f"from {package} import {last}", f"from {name} import thing"):
        graph = made(**{importer: f"def late():\n    {text}\n", target: ""})
        assert misplaced(graph) == {(f"kvlab.{importer.replace('__', '.')}", name)}
    hidden = f"if TYPE_CHECKING:\n    import {name}\n"
    assert misplaced(made(**{importer: hidden, target: ""})) == set()


def test_a_circle_is_noticed(made):
    modules = {
        "fast__a": "import kvlab.fast.b",
        "fast__b": "from kvlab.fast import c",
        "fast__c": "def f():\n    from kvlab.fast.a import x",
        "fast__d": "import kvlab.fast.a",
    }
    assert circles(made(**modules)) == [{"kvlab.fast.a", "kvlab.fast.b", "kvlab.fast.c"}]
