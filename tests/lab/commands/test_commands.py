"""All commands: help, what every option refuses, the data that they print, and how they start."""

import signal
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import typer

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.commands import options
from support.outside import methods_named, write_files
from support.running import invoke, python
from support.sampling import slow


def commands(group, *path):
    for name, each in group.commands.items():
        below = hasattr(each, "commands")
        yield from commands(each, *path, name) if below else [(" ".join([*path, name]), each)]


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option(name, printed):
    shown = printed(*name.split(), "--help")
    command = COMMANDS[name]
    assert command.help
    for option in command.params:
        assert option.help, option.name
        assert option.param_type_name == "argument" or option.opts[0] in shown


def test_what_is_said_of_options_is_said_of_an_option():
    said = tomllib.loads(Path(options.__file__).with_name("options.toml").read_text("utf-8"))
    named = {name: {each.name for each in command.params} for name, command in COMMANDS.items()}
    assert said.pop("every").keys() <= set().union(*named.values())
    for name, own in said.items():
        below = (each for command, each in named.items() if f"{command} ".startswith(f"{name} "))
        assert own.keys() <= set().union(*below), name


def test_the_version_is_that_of_the_package(printed):
    assert printed("--version") == f"kvlab {version('kvlab')}\n"


# --- what is refused -----------------------------------------------------------------------------

TABLE = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))
REFUSED = [
    (f"{command} {options}" if options else command, message)
    for command, refused in TABLE.items()
    for options, message in refused.items()
]
REFUSED += [
    (f"{command} --prompt \udcff", "--prompt = '\\udcff' must be UTF-8 text")
    for command in ("generate", "trace", "view OUT")
]


@pytest.fixture
def no_model(monkeypatch):
    """Loading the weights of a model fails the test, as do processes; the hub cannot be reached."""

    def load(*arguments, **options):
        raise AssertionError("a model is loaded, or a comparison begun")

    monkeypatch.setattr("kvlab.fast.models.loading._load_network", load)
    monkeypatch.setattr("kvlab.fast.lab.sweep.compare.in_processes", load)
    monkeypatch.setattr("kvlab.reference.transformer.Transformer.from_directory", load)
    monkeypatch.setattr("kvlab.fast.models.hub_answers", lambda: False)


@pytest.mark.parametrize(("typed", "message"), REFUSED, ids=[typed for typed, _ in REFUSED])
def test_what_is_not_allowed_is_one_line_before_a_model_is_loaded(
    typed, message, refusal, no_model, noise_file, tmp_path
):
    out = tmp_path / "page.html"
    places = {"TRACE": noise_file, "OUT": out}
    assert message in refusal(*(places.get(word, word) for word in typed.split(" ")))
    assert not out.exists()


ELSEWHERE = ("conformance", "eval", "report", "sweep")
"""Commands most of whose refusals stand beside their other tests."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.split()[0] not in ELSEWHERE])
def test_every_option_that_takes_a_value_refuses_one(name):
    typed = [words.split(" ") for words, _ in REFUSED if words.startswith(f"{name} ")]
    for option in COMMANDS[name].params:
        takes_a_value = option.param_type_name == "option" and not option.is_flag
        if takes_a_value and not {*option.opts} & {"--help"}:
            assert any({*option.opts} & {*words} for words in typed), option.opts


def test_control_characters_are_shown_not_obeyed(refusal):
    assert "\\x1b[31m" in refusal("generate", "--method", "\x1b[31m")


# --- the data that they print --------------------------------------------------------------------

PRINTED = tomllib.loads(Path(__file__).with_name("printed.toml").read_text(encoding="utf-8"))


def schema_of(shape):
    """Return the JSON schema of data that have this shape, and nothing besides."""
    match shape:
        case str():
            name = shape.removesuffix("?")
            return {"type": name if name == shape else [name, "null"]}
        case [item]:
            return {"type": "array", "minItems": 1, "items": schema_of(item)}
        case {"*": item}:
            return {"type": "object", "minProperties": 1, "additionalProperties": schema_of(item)}
    fields = {name: schema_of(each) for name, each in shape.items()}
    strict = {"required": [*fields], "additionalProperties": False}
    return {"type": "object", "properties": fields, **strict}


@pytest.mark.parametrize("typed", PRINTED)
def test_data_are_of_the_documented_shape_and_people_are_told(
    typed, data, printed, noise_file, tmp_path, computed_once
):
    out = tmp_path / "out"
    places = {"TRACE": noise_file, "OUT": out, "OUT.npz": f"{out}.npz"}
    words = [places.get(word, word) for word in typed.split()]
    jsonschema.validate(data(*words), schema_of(PRINTED[typed]))
    assert printed(*words).strip()


# --- starting and ending -------------------------------------------------------------------------


def test_help_loads_nothing_heavy():
    code = """
import sys
from typer.main import get_command
from kvlab.fast.lab.cli import app
get_command(app)
print(*{"torch", "transformers", "pyarrow", "ray", "matplotlib", "scipy"} & sys.modules.keys())
"""
    done = python("-c", code, check=True)
    assert not done.stdout.strip()


INTERRUPTED = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["kvlab", "compare", "--problems", "1", "--workers", "1", "--report", {report!r}]
from kvlab.fast.lab.start import main
main()
"""


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("kvlab.fast.lab.commands.compare", id="while the command line is loaded"),
        pytest.param(
            "multiprocessing.popen_spawn_posix",
            id="while processes are started",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_interrupt_prints_no_traceback(module, tmp_path):
    code = INTERRUPTED.format(module=module, report=str(tmp_path / "r.html"))
    done = python("-c", code)
    assert done.returncode in (1, 130, -signal.SIGINT)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "missing"), [("generate", "torch"), slow(("trace", "transformers"))]
)
def test_without_the_extra_one_line_says_what_to_install(command, missing):
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = ["kvlab", {command!r}]
from kvlab.fast.lab.start import main
main()
"""
    done = python("-c", code)
    assert done.returncode == 2
    expected = f"kvlab: this command needs {missing}: pip install 'kvlab[fast]', or make"
    assert " ".join(done.stderr.split()) == f"{expected} .venv/dev"
    assert done.stdout == ""


def test_both_sides_of_a_method_of_one_s_own_are_compared(tmp_path):
    fast, *reference = write_files(tmp_path)
    fast.write_text(fast.read_text().replace("clock.seen - ", "clock.seen + "))
    with methods_named():
        done = invoke("methods", "check", *reference, fast)
    for each in (fast, *reference):
        sys.modules.pop(each.stem)
    assert done.exit_code == 1 and "smallest: scores is wrong" in done.stdout
    for step, *counts in (("observe", 21, 0), ("score", 0, 21), ("keep", 21, 0)):
        assert f"looks.{step} {counts[0]} {counts[1]}" in " ".join(done.stdout.split())
    refused = invoke("methods", "check", tmp_path / "none.py")
    assert "must be Python files with methods of your own" in str(refused.exception)
