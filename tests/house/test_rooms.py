"""Every package imports only those below it, no module itself, and none is too long."""

import ast

import pytest

from support.site import ROOT, module
from support.tables import cases

packages, picture = module("packages"), module("package_picture")
SCRIPTS = [
    path
    for folder in ("docs/hooks", "docs/study", "notebooks")
    for path in (ROOT / folder).glob("*.py")
]

# --- judging -------------------------------------------------------------------------------------


def misplaced(graph) -> set[tuple[str, str]]:
    return {
        (importer, target)
        for importer, targets in graph.items()
        for target in targets
        if not packages.allowed(importer, target)
    }


def circles(graph) -> list[set[str]]:
    needs = {name: packages.reachable(graph, name) for name in graph}
    groups = {
        frozenset(other for other in needs[name] if name in needs[other])
        for name in graph
        if name in needs[name]
    }
    return [set(group) for group in groups]


def mutual(graph) -> set[tuple[str, str]]:
    arrows = picture.arrows_between(graph, picture.drawn_packages(graph))
    return {
        (above, below)
        for above, others in arrows.items()
        for below in others
        if above in arrows[below]
    }


# --- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph():
    return packages.read_graph()


def test_every_package_imports_only_those_below_it(graph):
    assert misplaced(graph) == set()


def test_no_modules_import_each_other(graph):
    assert circles(graph) == []


def test_no_two_packages_import_each_other(graph):
    assert {"lab/sweep", "lab/evaluate"} <= set(
        picture.arrows_between(graph, picture.drawn_packages(graph))
    )
    assert mutual(graph) == set()


def test_no_method_is_known_to_the_engine_the_kernels_or_the_recorder(graph):
    places = ("kvlab.fast.engine.", "kvlab.fast.kernels.", "kvlab.reference.simulator.recorder")
    importers = [name for name in graph if name.startswith(places)]
    assert len(importers) > 20
    for name in importers:
        assert not [x for x in graph[name] if x.startswith("kvlab.reference.methods.")], name


def test_pages_and_notebooks_do_not_import_the_command_line():
    for path in SCRIPTS:
        for name in packages.imported(ast.parse(path.read_text())):
            assert not name.startswith((f"{packages.LAB}.cli", f"{packages.LAB}.commands")), (
                path,
                name,
            )


# --- sizes ---------------------------------------------------------------------------------------

MODULES = [path for folder in packages.PACKAGES.values() for path in folder.rglob("*.py")]
MOST_LINES = 500


def test_no_module_but_proofs_is_too_long():
    outside = [path for path in MODULES if path.parent.name != "proofs"]
    assert not [path for path in outside if len(path.read_text().splitlines()) > MOST_LINES]


# --- what the tests would notice -----------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    def write(**texts: str):
        for name, text in texts.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return packages.read_graph(
            {package: tmp_path / folder.name for package, folder in packages.PACKAGES.items()}
        )

    return write


@cases(__file__, "a_misplaced_import_is_noticed", "importer target")
def test_a_misplaced_import_is_noticed(made, importer, target):
    name = f"kvlab.{target.replace('__', '.')}"
    package, _, last = name.rpartition(".")
    for text in (f"import {name}", f"from {package} import {last}", f"from {name} import thing"):
        graph = made(**{importer: f"def late():\n    {text}\n", target: ""})
        assert misplaced(graph) == {(f"kvlab.{importer.replace('__', '.')}", name)}
    hidden = f"if TYPE_CHECKING:\n    import {name}\n"
    assert misplaced(made(**{importer: hidden, target: ""})) == set()


def test_packages_that_import_each_other_are_noticed(made):
    graph = made(
        fast__lab__sweep__run="from kvlab.fast.lab.evaluate import tasks",
        fast__lab__sweep__plan="",
        fast__lab__evaluate__tasks="",
        fast__lab__evaluate__oracle="from kvlab.fast.lab.sweep import plan",
    )
    assert circles(graph) == []
    pair = ("lab/evaluate", "lab/sweep")
    assert mutual(graph) == {pair, pair[::-1]}


def test_a_circle_is_noticed(made):
    modules = {
        "fast__a": "import kvlab.fast.b",
        "fast__b": "from kvlab.fast import c",
        "fast__c": "def f():\n    from kvlab.fast.a import x",
        "fast__d": "import kvlab.fast.a",
    }
    assert circles(made(**modules)) == [{"kvlab.fast.a", "kvlab.fast.b", "kvlab.fast.c"}]
