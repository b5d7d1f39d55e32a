"""``kvlab generate`` and ``kvlab trace``, as they are typed."""

import io
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from sampling import slow
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app, main
from kvlab.fast.lab.sweep import engines
from kvlab.fast.lab.tables import Table, visible
from kvlab.reference import Transformer, methods
from kvlab.reference import generate as reference_generate
from kvlab.reference.files import load_tokenizer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.trace import load_trace
from kvlab.reference.tasks import reasoning

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
generation = pytest.importorskip("kvlab.fast.lab.generation")

PROBLEM = reasoning.held_out(1)[0]
PROMPT = len(PROBLEM.prompt.split(" "))
SOLUTION = len(PROBLEM.solution.split(" "))
FULL_BYTES_PER_TOKEN = 4 * 2 * 2 * 32 * 4
"""Layers, keys and values, KV heads, channels, bytes of float32."""


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, str(result.exception))
    return result.stdout


def refusal(monkeypatch, capfd, *arguments: object) -> str:
    monkeypatch.setattr("sys.argv", ["kvlab", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capfd.readouterr().err


# --- kvlab generate ------------------------------------------------------------------------------


def test_generate_solves_a_problem_of_its_own():
    found = json.loads(run("generate", "--json"))
    assert f"{found['text']} {reasoning.END}" == PROBLEM.solution
    assert found["method"] == "full"
    assert found["budget"] is None
    assert (found["prompt_tokens"], found["written_tokens"]) == (PROMPT, SOLUTION)
    read = PROMPT + SOLUTION - 1
    assert found["tokens_read"] == found["fewest_entries"] == found["most_entries"] == read
    assert found["full_bytes"] == read * FULL_BYTES_PER_TOKEN
    assert found["full_bytes"] <= found["entry_bytes"] < 1.25 * found["full_bytes"]
    assert found["tokens_per_second"] > 0


def test_generate_writes_what_the_reference_writes_under_a_budget():
    method, tokens = "h2o@every=8", 60
    found = json.loads(
        run("generate", "--method", method, "--budget", "60%", "--max-new-tokens", tokens, "--json")
    )
    budget = -(-6 * (PROMPT + tokens) // 10)
    assert found["budget"] == budget
    tokenizer = load_tokenizer(reasoner_directory())
    written = reference_generate(
        Transformer.from_directory(reasoner_directory()),
        methods.get(method, budget),
        tokenizer.encode(PROBLEM.prompt).ids,
        tokens,
        stop=0,
    )
    assert found["text"] == tokenizer.decode(list(written.tokens))
    assert found["text"] not in PROBLEM.solution  # the budget did change something
    entries = {cache.positions.shape[1] for cache in written.session.caches}
    assert entries == {found["fewest_entries"]} == {found["most_entries"]}
    assert found["entry_bytes"] < found["full_bytes"]


def test_generate_prints_text_and_figures():
    printed = run(
        *("generate", "--prompt", PROBLEM.prompt, "--max-new-tokens", 30),
        *("--method", "streaming_llm", "--budget", "50%", "--block-size", 16),
    )
    assert f"streaming_llm, budget 50% = {-(-(PROMPT + 30) // 2)} entries" in printed
    assert f"{PROMPT} given, 30 written" in printed
    assert f"{-(-(PROMPT + 30) // 2)} of {PROMPT + 29} per KV head" in printed
    assert "of the full cache's 278.0 KiB" in printed  # 139 tokens of 2 KiB
    assert "tokens/s" in printed


def test_sampling_follows_seed_and_temperature():
    def sample(*options: object) -> str:
        arguments = ("--max-new-tokens", 20, "--json", *options)
        return json.loads(run("generate", *arguments))["text"]

    greedy, hot = sample(), sample("--temperature", 3, "--seed", 1)
    assert hot == sample("--temperature", 3, "--seed", 1)
    assert len({greedy, hot, sample("--temperature", 3, "--seed", 2)}) == 3


def test_one_token_has_no_rate():
    printed = run("generate", "--max-new-tokens", 1)
    assert f"{PROMPT} given, 1 written" in printed
    assert "–" in printed


def test_a_model_s_own_sampling_does_not_apply():
    own = SimpleNamespace(eos_token_id=[7, 8], pad_token_id=None, repetition_penalty=1.3)
    options = generation.decoding_options(SimpleNamespace(generation_config=own), 5, 0.5)
    assert options["pad_token_id"] == 7
    assert (options["top_k"], options["top_p"], options["repetition_penalty"]) == (0, 1.0, 1.0)


def test_times_of_tokens_by_hand():
    """Prompt at 0 s, tokens at 2, 3, 4 and 5 s: 2 s to the first, then one a second."""
    timer = generation.TokenTimer(total=9)
    timer.times = [0.0, 2.0, 3.0, 4.0, 5.0]
    assert timer.first_token_seconds == 2.0
    assert timer.tokens_per_second == 1.0
    timer.times = [0.0, 2.0]
    assert timer.tokens_per_second is None


# --- kvlab trace ---------------------------------------------------------------------------------


def test_trace_writes_what_it_says(tmp_path):
    (tmp_path / "prompt.txt").write_text(PROBLEM.prompt, encoding="utf-8")
    path = tmp_path / "new" / "trace.npz"
    found = json.loads(
        run(
            *("trace", "--prompt-file", tmp_path / "prompt.txt", "--max-new-tokens", 9),
            *("-o", path, "--layers", "0,2", "--dtype", "float16", "--json"),
        )
    )
    trace = load_trace(path)
    assert trace.queries.shape == (2, 2, 2, PROMPT + 8, 32)
    assert trace.queries.dtype == np.float16
    assert trace.metadata.layers == (0, 2)
    solution = load_tokenizer(reasoner_directory()).encode(PROBLEM.solution).ids
    assert trace.tokens[PROMPT:].tolist() == solution[:8]
    assert found["file_bytes"] == path.stat().st_size
    assert found["array_bytes"] == 2 * 2 * (2 + 1 + 1) * (PROMPT + 8) * 32 * 2
    assert (found["prompt_tokens"], found["written_tokens"]) == (PROMPT, 8)
    assert found["mean_confidence"] == pytest.approx(np.nanmean(trace.confidence))


def test_trace_prints_a_summary(tmp_path):
    printed = run("trace", "--max-new-tokens", 1, "-o", tmp_path / "t.npz")
    assert "4 query, 2 KV, 32 channels each" in printed
    assert f"{PROMPT} given, 0 written and read" in printed
    assert "schema 1" in printed


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["generate", "trace"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens = 0 must be at least 1"),
        (["--prompt", "a", "--prompt-file", "b"], "--prompt and --prompt-file cannot both be"),
        (["--prompt-file", "/nowhere"], "/nowhere does not exist"),
        (["--model", "/nowhere"], "--prompt or --prompt-file must be given with --model"),
        (["--model", "/nowhere", "--prompt", "a"], "model = /nowhere does not exist"),
        (["--prompt", ""], "prompt must hold at least one token"),
        (["--device", "abacus"], "device = 'abacus' cannot be used"),
        (["--device", "meta"], "device = 'meta' cannot be used: it holds no numbers"),
        (["--prompt-file", "/"], "prompt_file = / must be a file"),
        (["--dtype", "int4"], "dtype = 'int4' must be"),
    ],
)
def test_bad_input_is_one_line(command, arguments, message, monkeypatch, capfd):
    error = refusal(monkeypatch, capfd, command, *arguments)
    assert message in error
    assert error.count("kvlab: ") == 1
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--method", "h3o"], "unknown method 'h3o'"),
        (["generate", "--method", "h2o"], "h2o"),
        (["generate", "--budget", "none"], "budget = 'none' must be a number of entries or a"),
        (["generate", "--method", "tova", "--budget", "0%"], "must be at least 1 entry"),
        (["generate", "--block-size", "0"], "block_size = 0 must be at least 1"),
        (["generate", "--temperature", "-1"], "temperature = -1.0 must be at least 0"),
        (["generate", "--temperature", "nan"], "temperature = nan must be at least 0"),
        (["generate", "--temperature", "inf"], "temperature = inf must be finite"),
        (["generate", "--seed", "-1"], "seed = -1 must be at least 0"),
        (["trace", "-o", "/dev/full"], "output = /dev/full is no regular file"),
        (["trace", "--layers", "0,4"], "layers = [0, 4] must be some of the full-attention layers"),
        (["trace", "--layers", "all"], "layers = 'all' must be numbers, separated by commas"),
        (["trace", "-o", "/"], "output = / is a directory"),
        (["trace", "-o", "/proc/nowhere/t.npz"], "output = /proc/nowhere/t.npz cannot be written"),
        (["compare", "--report", "/proc/c.html"], "report = /proc/c.html cannot be written"),
        (["compare", "--report", "/"], "report = / is a directory"),
        (["prove", "--pages", "/dev/null/p"], "pages = /dev/null/p/errata.md cannot be written"),
    ],
)
def test_a_bad_option_is_named(arguments, message, monkeypatch, capfd):
    assert message in refusal(monkeypatch, capfd, *arguments)


def test_a_prompt_that_is_not_text_is_refused(tmp_path, monkeypatch, capfd):
    (tmp_path / "prompt").write_bytes(b"\xff\xfe\xfd")
    error = refusal(monkeypatch, capfd, "trace", "--prompt-file", tmp_path / "prompt")
    assert f"prompt_file = {tmp_path / 'prompt'} must be UTF-8 text" in error


def test_bad_output_is_refused_before_anything_is_computed(monkeypatch, capfd):
    def compute(*arguments, **options):
        raise AssertionError("computed before the output was checked")

    monkeypatch.setattr("kvlab.fast.lab.evaluate.compare.compare", compute)
    monkeypatch.setattr("kvlab.fast.lab.commands.prove.proofs.prove", compute)
    monkeypatch.setattr("kvlab.fast.models.loading.load", compute)
    for arguments in (
        ["trace", "-o", "/dev/null/t.npz"],
        ["compare", "--report", "/dev/null/c.html"],
        ["prove", "--pages", "/dev/null/pages"],
    ):
        assert "cannot be written" in refusal(monkeypatch, capfd, *arguments)


@pytest.mark.parametrize("command", ["generate", "trace", "view"])
def test_a_prompt_with_stray_bytes_is_refused(command, monkeypatch, capfd):
    """Python turns bytes of the command line that are no UTF-8 into lone surrogates."""
    assert "--prompt = '\\udcff' must be UTF-8 text" in refusal(
        monkeypatch, capfd, command, "--prompt", "\udcff"
    )


def test_any_other_archive_is_no_trace(tmp_path, monkeypatch, capfd):
    path = tmp_path / "t.npz"
    path.write_bytes(b"\x80" + bytes(range(200)))
    error = refusal(monkeypatch, capfd, "simulate", path)
    assert "is no trace: it is no complete archive of arrays (.npz)" in error
    assert "unsafe" not in error


def test_a_full_disk_is_named(tmp_path, monkeypatch, capfd):
    def fill(trace, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvlab.fast.lab.commands.trace.save_trace", fill)
    arguments = ("trace", "--max-new-tokens", 1, "-o", tmp_path / "t.npz")
    error = refusal(monkeypatch, capfd, *arguments)
    assert f"No space left on device: '{tmp_path / 't.npz'}'" in error


def test_a_report_that_cannot_be_written_says_what_to_do(monkeypatch, capfd):
    error = refusal(monkeypatch, capfd, "compare", "--report", "/proc/c.html")
    assert "choose a path below a directory that you may write to" in error


def test_control_characters_are_shown_not_obeyed():
    assert visible("a\x1b[31mb\nc\u202e") == "a\\x1b[31mb\nc\\u202e"
    table = Table(("model", "x"), [("\x1b[2J", "1")])
    console = Console(file=io.StringIO(), width=40)
    console.print(table.terminal("\x1b[2J"))
    assert "\x1b" not in console.file.getvalue()


def test_the_version_is_that_of_the_package():
    assert run("--version") == f"kvlab {version('kvlab')}\n"


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
    monkeypatch.setattr(engines, "_workers", [])
    engines._start()
    assert handlers == [(signal.SIGINT, signal.SIG_IGN)]


def test_what_the_tokenizer_refuses_is_refused():
    def tokenizer(text, **options):
        raise Exception("WordLevel error: Missing [UNK] token")

    with pytest.raises(ValueError, match="the tokenizer cannot encode the prompt: WordLevel"):
        generation.encode_prompt(tokenizer, "hello", "cpu")


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
