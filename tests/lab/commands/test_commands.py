"""All commands: help, what every option refuses, the data that they print, and how they start."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import jsonschema
import pytest
import typer
from sampling import slow

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.sweep import worker

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

NOWHERE = "/nowhere does not exist"
DEVICE = "device = 'abacus' cannot be used"
METHOD = "unknown method 'h3o'"
BUDGET = "budget = '0' must be at least 1 entry"
WORKERS = "'--workers': Input should be greater than or equal to 1"
REFUSED = (
    ("compare --backend cuda", "backend = 'cuda' must be one of 'fast', 'reference'"),
    ("compare --budgets 0", BUDGET),
    ("compare --methods h3o", METHOD),
    ("compare --model /nowhere --backend reference", "/nowhere/tokenizer.json does not exist"),
    ("compare --problems 0", "problems = 0 must be at least 1"),
    ("compare --report /", "report = / is a directory"),
    ("compare --report /proc/c.html", "choose a path below a directory that you may write to"),
    ("compare --seed -1", "seed = -1 must be at least 0"),
    ("compare --task jumps@most=x", "most = 'x' of jumps must be a whole number"),
    ("compare --workers 0", WORKERS),
    ("conformance export /dev/null", "out = /dev/null/kvlab_vectors/__init__.py cannot be written"),
    ("conformance fuzz h4o no.py", "file = no.py does not exist"),
    ("conformance generate --out /dev/null", "out = /dev/null/index.json cannot be written"),
    ("conformance run", "either a Python file or --exec PROGRAM must be given"),
    ("conformance show full.store", "there are no vectors for 'full.store'"),
    ("generate --block-size 0", "block_size = 0 must be at least 1"),
    ("generate --budget none", "budget = 'none' must be a number of entries or a"),
    ("generate --method tova --budget 0%", "must be at least 1 entry"),
    ("generate --device abacus", DEVICE),
    ("generate --device cuda:99", "device = 'cuda:99' cannot be used"),
    ("generate --device meta", "device = 'meta' cannot be used: it holds no numbers"),
    ("generate --dtype int4", "dtype = 'int4' must be"),
    ("generate --max-new-tokens 0", "max_new_tokens = 0 must be at least 1"),
    ("generate --method h2o", "h2o needs a budget"),
    ("generate --method h3o", METHOD),
    ("generate --model /nowhere", "--prompt or --prompt-file must be given with --model"),
    ("generate --model /nowhere --prompt a", NOWHERE),
    ("generate --prompt \udcff", "--prompt = '\\udcff' must be UTF-8 text"),
    ("generate --prompt ", "prompt must hold at least one token"),
    ("generate --prompt-file /nowhere", NOWHERE),
    ("generate --prompt-file /", "prompt_file = / must be a file"),
    ("generate --prompt-file /usr/bin/env", "prompt_file = /usr/bin/env must be UTF-8 text"),
    ("generate --prompt a --prompt-file b", "--prompt and --prompt-file cannot both be"),
    ("generate --seed -1", "seed = -1 must be at least 0"),
    ("generate --temperature -1", "temperature = -1.0 must be at least 0"),
    ("generate --temperature nan", "temperature = nan must be at least 0"),
    ("generate --temperature inf", "temperature = inf must be finite"),
    ("methods h3o", METHOD),
    ("models get nothing", "name = 'nothing' must be one of smollm2"),
    ("models get mine --from /nowhere", NOWHERE),
    ("models get smollm2 --from-hub --from x", "--from-hub and --from cannot both be given"),
    ("needle --batch-size 0", "batch_size = 0 must be at least 1"),
    ("needle --block-size 0", "block_size = 0 must be at least 1"),
    ("needle --budgets x", "budget = 'x' must be a number"),
    ("needle --chat", "needs a --text"),
    ("needle --depths ,", "depths must name at least one"),
    ("needle --depths deep", "depths: 'deep' must be a number"),
    ("needle --depths 101", "depths = 101 must be between 0 and 100 percent"),
    ("needle --device abacus", DEVICE),
    ("needle --dtype int4", "dtype = 'int4' must be"),
    ("needle --heat-map /proc/x.svg", "heat_map = /proc/x.svg cannot be written"),
    ("needle --lengths 9", "needs a --text"),
    ("needle --methods h3o", METHOD),
    ("needle --model /nowhere --text README.md", NOWHERE),
    ("needle --parallel x", "parallel = 'x' must be"),
    ("needle --seed -1", "seed = -1 must be at least 0"),
    ("needle --text /nowhere", NOWHERE),
    ("needle --text README.md --lengths 0", "lengths = [0] must be positive"),
    ("needle --text README.md --lengths 99999", "lengths asks for 99999"),
    ("needle --trials 0", "trials = 0 must be at least 1"),
    ("perplexity --batch-size 0", "batch_size = 0 must be at least 1"),
    ("perplexity --block-size -1", "block_size = -1 must be at least 1"),
    ("perplexity --budgets 0", BUDGET),
    ("perplexity --device abacus", DEVICE),
    ("perplexity --dtype int4", "dtype = 'int4' must be"),
    ("perplexity --feed x", "feed = 'x' must be one of"),
    ("perplexity --methods h3o", METHOD),
    ("perplexity --model /nowhere --text README.md", NOWHERE),
    ("perplexity --parallel x", "parallel = 'x' must be"),
    ("perplexity --model reasoner --window 9", "needs a --text"),
    ("perplexity --text /nowhere", NOWHERE),
    ("perplexity --text README.md --window 1", "window = 1 must be at least 2"),
    ("perplexity --text README.md --window 9 --prompt 9", "prompt = 9 must be"),
    ("perplexity --windows 0", "windows = 0 must be at least 1"),
    ("plan --bandwidth-share 2", "bandwidth_share = 2.0 must be above 0 and at most 1"),
    ("plan --batch 0", "batch = 0 must be at least 1"),
    ("plan --batch 500000 --length 64", "batch = 500000 must be at most the"),
    ("plan --block-size 0", "block_size = 0 must be at least 1"),
    ("plan --budget 0%", "must be at least 1 entry"),
    ("plan --flops-share 0", "flops_share = 0.0 must be above 0 and at most 1"),
    ("plan --gpu tpu", "gpu = 'tpu' must be one of"),
    ("plan --host inf", "host = inf must be finite"),
    ("plan --length 0", "length = 0 must be at least 1"),
    ("plan --length 10000000", "length = 10000000 must be at most 200,000"),
    ("plan --methods h3o", METHOD),
    ("plan --methods ;", "methods must name at least one method"),
    ("plan --model nothing", "model = 'nothing' must be"),
    ("plan --model llama-3.1-70b --gpu v100 --length 64", "does not fit on V100"),
    ("plan --prompt 0", "prompt = 0 must be at least 1"),
    ("plan --report /dev/null/p.html", "report = /dev/null/p.html cannot be written"),
    ("plan --speed -1", "speed = -1.0 must be at least 0"),
    ("plan --users 0", "users = 0 must be at least 1"),
    ("plan --users many", "'--users': Input should be a valid integer"),
    ("prove --claim CA-0", "claim = 'CA-0' must be one of LE-1, LE-2,"),
    ("prove --paper h2o", "paper = 'h2o' must be one of lazy_eviction, caote, desirekv, ahakv"),
    ("prove --workers 0", WORKERS),
    ("recurrence --model /nowhere", "/nowhere/config.json does not exist"),
    ("recurrence --problems 0", "problems = 0 must be at least 1"),
    ("recurrence --seed -1", "seed = -1 must be at least 0"),
    ("recurrence --task jump", "jump"),
    ("recurrence --threshold 2", "threshold = 2.0 must be between 0 and 1"),
    ("report /nowhere", "directory = /nowhere holds no sweep"),
    ("simulate TRACE --block-size 0", "block_size = 0 must be at least 1"),
    ("simulate TRACE --budget 0", BUDGET),
    ("simulate TRACE --workers 1 --gap -1", "gap = -1 must be at least 0"),
    ("simulate TRACE --methods kivi@group=3", "group"),
    ("simulate TRACE --methods raas --budget 12", "no method could run; raas: budget = 12"),
    ("simulate TRACE --report /", "report = / is a directory"),
    ("simulate TRACE --workers 1 --threshold -1", "threshold = -1.0 must be between 0 and 1"),
    ("simulate TRACE --workers 0", WORKERS),
    ("simulate /nowhere", NOWHERE),
    ("simulate README.md", "is no trace: it is no complete archive of arrays (.npz)"),
    ("sweep /nowhere", "sweep = /nowhere does not exist"),
    ("sweep README.md", "sweep = README.md is not valid TOML"),
    ("trace --device abacus", DEVICE),
    ("trace --dtype int4", "dtype = 'int4' must be"),
    ("trace --layers 0,4", "layers = [0, 4] must be some of the full-attention layers"),
    ("trace --layers all", "layers = 'all' must be numbers, separated by commas"),
    ("trace --max-new-tokens 0", "max_new_tokens = 0 must be at least 1"),
    ("trace --model /nowhere --prompt a", NOWHERE),
    ("trace --prompt \udcff", "--prompt = '\\udcff' must be UTF-8 text"),
    ("trace --prompt-file /nowhere", NOWHERE),
    ("trace -o /", "output = / is a directory"),
    ("trace -o /dev/full", "output = /dev/full is no regular file"),
    ("trace --output /proc/nowhere/t.npz", "output = /proc/nowhere/t.npz cannot be written"),
    ("view /", "output = / is a directory"),
    ("view OUT --block-size 0", "block_size = 0 must be at least 1"),
    ("view OUT --budget 0", BUDGET),
    ("view OUT --max-new-tokens 0", "max_new_tokens = 0"),
    ("view OUT --methods h3o", METHOD),
    ("view OUT --model /nowhere", "/nowhere/tokenizer.json does not exist"),
    ("view OUT --most-values 0", "most_values = 0 must be at least 1"),
    ("view OUT --problem -1", "'--problem': Input should be greater than or equal to 0"),
    ("view OUT --prompt \udcff", "--prompt = '\\udcff' must be UTF-8 text"),
    ("view OUT --prompt-file /nowhere", NOWHERE),
    ("view OUT --threshold -1", "threshold = -1.0 must be at least 0"),
    ("view OUT --trace /nowhere", NOWHERE),
    ("view OUT --trace TRACE --prompt a", "--trace comes with its own text"),
    ("nothing", "No such command 'nothing'"),
    ("plan --userz 3", "No such option: --userz"),
    ("simulate", "Missing argument 'trace'"),
)


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
    monkeypatch.setattr(worker, "_workers", [])
    worker._start()
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
