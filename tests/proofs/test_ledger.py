"""The ledger: no row of the papers is missing, none is empty, every command can be typed."""

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer

from kvlab.fast.lab.cli import app
from kvlab.reference import methods
from kvlab.reference.files import read_data
from kvlab.reference.proofs import PAPERS, claims
from kvlab.reference.proofs.ledger import LEDGER, MEASURED, ledger
from support.tables import cases

ROOT = Path(__file__).parents[2]
ROWS = ledger()
STORED = read_data(LEDGER)
COMMANDS = sorted({command for row in ROWS for command in row.commands})


def expanded(kind, numbers):
    return [f"{kind} {number}" for number in numbers]


def covered(place):
    """Name all that a place covers: Eq. 5-7 are three."""
    found = re.fullmatch(r"(\D+?) (\d+)-(\d+)", place)
    return expanded(found[1], range(int(found[2]), int(found[3]) + 1)) if found else [place]


@pytest.mark.parametrize("paper", PAPERS)
def test_everything_that_the_paper_contains_has_a_row(paper):
    found = [place for row in ROWS if row.paper == paper for place in covered(row.place)]
    assert len(found) == len(set(found)), "a place has two rows"
    for kind, numbers in STORED["contents"][paper].items():
        listed = range(1, numbers + 1) if isinstance(numbers, int) else numbers
        assert set(expanded(kind, listed)) <= set(found)


def test_every_line_that_implements_an_equation_is_tagged_once_and_listed():
    pattern = re.compile(r"# \[((?:LazyEviction|CAOTE|DesireKV|AhaKV) [^\]\n]+)\]$", re.MULTILINE)
    sources = [path.read_text("utf-8") for path in (ROOT / "reference").rglob("*.py")]
    tagged = sorted(tag for source in sources for tag in pattern.findall(source))
    assert tagged == sorted(tag for row in ROWS for tag in row.tags)
    formulas = [row for row in ROWS if re.match(r"Eq\.|Algorithm", row.place) and not row.tags]
    for paper, places in STORED["not_computed"].items():
        assert [row.place for row in formulas if row.paper == paper] == places


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}-{row.place}")
def test_no_row_is_empty(row):
    assert row.says and (row.claims or row.tests or row.figures or row.measured or row.declared)
    refuted = {claim.tag for claim in claims() if claim.expected == "refuted as printed"}
    assert set(row.elsewhere) <= refuted.intersection(row.claims)
    for each in row.measured:
        assert all(low <= mean <= high for mean, low, high in each.figures.values())


def test_every_claim_has_a_row():
    named = [(row.paper, tag) for row in ROWS for tag in row.claims]
    assert set(named) == {(claim.paper, claim.tag) for claim in claims()}


def test_every_measurement_belongs_to_a_row():
    places = {(row.paper, row.place) for row in ROWS if row.measured}
    assert {(name, place) for name, rows in read_data(MEASURED).items() for place in rows} == places


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    parse(command)


@cases(__file__, "wrong_commands_do_not", "command")
def test_wrong_commands_do_not(command):
    with pytest.raises((AssertionError, ValueError)):
        parse(command)


def parse(command):
    """Check program, options and values that the repository knows; nothing is run."""
    program, *arguments = shlex.split(command)
    if program == "pytest":
        return [known_test(each) for each in arguments]
    if program == "python":
        assert arguments.pop(0) == "-m"
        assert importlib.util.find_spec(arguments[0]) is not None
        return None
    assert program == "kvlab"
    name, *arguments = arguments
    found = typer.main.get_command(app).get_command(None, name)
    assert found is not None, name
    known_options = {option for each in found.params for option in each.opts}
    typed = {argument for argument in arguments if argument.startswith("--")}
    assert typed <= known_options, typed - known_options
    options = found.make_parser(found.context_class(found, info_name=name)).parse_args(arguments)[0]
    for spec in filter(None, (options.get("methods") or "").split(";")):
        methods.parse(spec)
    claims(None, options.get("claim"))


def known_test(name):
    path, _, test = name.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
