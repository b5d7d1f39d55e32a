"""All commands: help, what every option refuses, the data that they print, and how they start."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import typer
from sampling import slow

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.sweep import jobs

for needed in ("torch", "transformers"):
    pytest.importorskip(needed)


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


@pytest.mark.parametrize(("typed", "message"), REFUSED, ids=[typed for typed, _ in REFUSED])
def test_what_is_not_allowed_is_one_line(typed, message, refusal, noise_file, tmp_path):
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


def test_bad_output_is_refused_before_anything_is_computed(monkeypatch, refusal):
    def compute(*arguments, **options):
        raise AssertionError("computed before the output was checked")

    monkeypatch.setattr("kvlab.fast.lab.sweep.compare.compare", compute)
    monkeypatch.setattr("kvlab.fast.models.loading.load", compute)
    for typed in ("trace -o /dev/null/t.npz", "compare --report /dev/null/c.html"):
        assert "cannot be written" in refusal(*typed.split())


# --- the data that they print --------------------------------------------------------------------

TEXT, WHOLE, NUMBER = ({"type": name} for name in ("string", "integer", "number"))
TRUTH, MAYBE_TRUTH = {"type": "boolean"}, {"type": ["boolean", "null"]}
MAYBE_TEXT, MAYBE_WHOLE, MAYBE = ({"type": [x, "null"]} for x in ("string", "integer", "number"))


def thing(**fields):
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


def things(**fields):
    return {"type": "array", "minItems": 1, "items": thing(**fields)}


def named(schema):
    return {"type": "object", "minProperties": 1, "additionalProperties": schema}


METHOD_AND_BUDGET = {"method": TEXT, "budget": MAYBE_WHOLE, "refusal": MAYBE_TEXT}
PRINTED = (
    ("methods", thing(methods={"type": "object"}, variants=named(TEXT))),
    (
        "methods caote --divergences",
        named(things(topic=TEXT, paper=TEXT, elsewhere=TEXT, default=TEXT, option=TEXT)),
    ),
    (
        "recurrence --problems 1",
        thing(
            problems=WHOLE,
            threshold=NUMBER,
            entries=WHOLE,
            share_recurring=NUMBER,
            quantiles=named(NUMBER),
        ),
    ),
    ("models list", things(name=TEXT, about=TEXT, license=TEXT, here=TEXT)),
    (
        "generate --max-new-tokens 2",
        thing(
            text=TEXT,
            method=TEXT,
            budget=MAYBE_WHOLE,
            prompt_tokens=WHOLE,
            written_tokens=WHOLE,
            tokens_read=WHOLE,
            fewest_entries=WHOLE,
            most_entries=WHOLE,
            entry_bytes=WHOLE,
            state_bytes=WHOLE,
            full_bytes=WHOLE,
            first_token_seconds=NUMBER,
            tokens_per_second=MAYBE,
        ),
    ),
    (
        "trace --max-new-tokens 2 -o OUT.npz",
        thing(
            file=TEXT,
            file_bytes=WHOLE,
            array_bytes=WHOLE,
            model=TEXT,
            version=WHOLE,
            layers={"type": "array", "items": WHOLE},
            kv_heads=WHOLE,
            query_heads=WHOLE,
            head_dim=WHOLE,
            dtype=TEXT,
            softcap=MAYBE,
            prompt_tokens=WHOLE,
            written_tokens=WHOLE,
            mean_confidence=MAYBE,
        ),
    ),
    (
        "view OUT --trace TRACE --methods h2o;raas --budget 12",
        thing(
            file=TEXT,
            file_bytes=WHOLE,
            model=TEXT,
            methods=things(
                **METHOD_AND_BUDGET, tokens_read=MAYBE_WHOLE, entries=MAYBE, solved=MAYBE_TRUTH
            ),
        ),
    ),
    (
        "simulate TRACE --methods h2o;full;raas --budget 12 --workers 1",
        things(
            **METHOD_AND_BUDGET,
            entries=MAYBE_WHOLE,
            **dict.fromkeys(
                ("kilobytes", "mass", "skill", "regret", "error", "hits", "premature"), MAYBE
            ),
        ),
    ),
    (
        "plan --prompt 64 --length 64 --methods full;h2o;raas --budget 32",
        thing(
            asked={"type": "object"},
            methods=things(
                **METHOD_AND_BUDGET,
                **dict.fromkeys(
                    (
                        *("entries", "largest_batch", "batch", "devices", "users_per_device"),
                        "pays_from",
                    ),
                    MAYBE_WHOLE,
                ),
                **dict.fromkeys(
                    (
                        *("bits", "sequence_gb", "memory_gb", "first_token_seconds"),
                        *("step_milliseconds", "tokens_per_second", "policy_share"),
                    ),
                    MAYBE,
                ),
                limit=MAYBE_TEXT,
            ),
        ),
    ),
)


@pytest.mark.parametrize(("typed", "schema"), PRINTED, ids=[typed for typed, _ in PRINTED])
def test_data_are_of_the_documented_shape(typed, schema, data, noise_file, tmp_path):
    out = tmp_path / "out"
    places = {"TRACE": noise_file, "OUT": out, "OUT.npz": f"{out}.npz"}
    jsonschema.validate(data(*(places.get(word, word) for word in typed.split())), schema)


# --- starting and ending -------------------------------------------------------------------------


def test_help_loads_nothing_heavy():
    code = """
import sys
from typer.main import get_command
from kvlab.fast.lab.cli import app
get_command(app)
print(*{"torch", "transformers", "pyarrow", "ray", "matplotlib", "scipy"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (1, 130, -signal.SIGINT)
    assert "Traceback" not in done.stderr


def test_processes_leave_interrupts_to_the_one_that_started_them(monkeypatch):
    handlers = []
    monkeypatch.setattr(signal, "signal", lambda *given: handlers.append(given))
    jobs._ignore_interrupts()
    assert handlers == [(signal.SIGINT, signal.SIG_IGN)]


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
from kvlab.fast.lab.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 2
    expected = f"kvlab: this command needs {missing}: pip install 'kvlab[fast]'"
    assert [line for line in done.stderr.splitlines() if line.strip()] == [expected]
    assert done.stdout == ""
