"""What commands print is what the reference, the replay and the cost model say."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.fast.lab import generation, simulation
from kvlab.fast.lab.planning import pays_from
from kvlab.fast.lab.store import Store
from kvlab.reference import Transformer, methods
from kvlab.reference.generate import generate as reference_generate
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.cost import Plan, Runtime
from kvlab.reference.simulator.replay import replay
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from kvlab.reference.simulator.trace import load_trace
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer
from support.noise import noise

PROBLEM = reasoning.held_out(1)[0]
PROMPT = len(PROBLEM.prompt.split(" "))
SOLUTION = len(PROBLEM.solution.split(" "))
FULL_BYTES_PER_TOKEN = 4 * 2 * 2 * 32 * 4
"""Layers, keys and values, KV heads, channels, bytes of float32."""

# --- kvlab generate ------------------------------------------------------------------------------


def test_generate_solves_a_problem_of_its_own(data):
    found = data("generate", "--block-size", 16)
    assert f"{found['text']} {reasoning.END}" == PROBLEM.solution
    assert found["method"] == "full"
    assert (found["prompt_tokens"], found["written_tokens"]) == (PROMPT, SOLUTION)
    read = PROMPT + SOLUTION - 1
    assert found["tokens_read"] == found["fewest_entries"] == found["most_entries"] == read
    assert found["full_bytes"] == read * FULL_BYTES_PER_TOKEN
    assert found["full_bytes"] <= found["entry_bytes"] < 1.25 * found["full_bytes"]
    assert found["tokens_per_second"] > 0


def test_generate_writes_what_the_reference_writes_under_a_budget(data):
    method, tokens = "h2o@every=8", 60
    limits = ("--budget", "60%", "--max-new-tokens", tokens)
    found = data("generate", "--prompt", PROBLEM.prompt, "--method", method, *limits)
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
    after = found["after_eviction"]
    assert 0 < after["count"] < after["of"] == found["written_tokens"]


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


def test_what_the_tokenizer_refuses_is_refused():
    def tokenizer(text, **options):
        raise Exception("WordLevel error: Missing [UNK] token")

    with pytest.raises(ValueError, match="the tokenizer cannot encode the prompt: WordLevel"):
        generation.encode_prompt(tokenizer, "hello", "cpu")


# --- kvlab trace ---------------------------------------------------------------------------------


def test_trace_writes_what_it_says(data, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROBLEM.prompt, encoding="utf-8")
    path = tmp_path / "new" / "trace.npz"
    found = data(
        *("trace", "--prompt-file", tmp_path / "prompt.txt", "--max-new-tokens", 9),
        *("-o", path, "--layers", "0,2", "--dtype", "float16"),
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


def test_a_full_disk_is_named(refusal, tmp_path, monkeypatch):
    def fill(trace, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvlab.fast.lab.commands.generate.save_trace", fill)
    said = refusal("trace", "--max-new-tokens", 1, "-o", tmp_path / "t.npz")
    assert f"No space left on device: '{tmp_path / 't.npz'}'" in said


# --- kvlab simulate ------------------------------------------------------------------------------


def test_figures_are_those_of_the_replay(data, noise_file):
    arguments = ("--methods", "h2o full", "--budget", "12", "--budget", "30%", "--workers", "1")
    small, large, full = data("simulate", noise_file, *arguments)
    assert [small["budget"], large["budget"], full["budget"]] == [12, 21, None]
    fates = [one for (one,) in replay(noise(), [methods.get("h2o", 12)])]
    assert small["mass"] == pytest.approx(np.mean([fate.mass[:, 20:].mean() for fate in fates]))
    assert small["kilobytes"] == 2 * 2 * 12 * 16 * 2 / 1024
    assert small["mass"] < large["mass"] < full["mass"] == pytest.approx(1)
    assert [small["after_eviction"]["count"], full["after_eviction"]] == [50, None]
    assert large["after_eviction"] == {"count": 48, "of": 50, "unit": "tokens"}
    assert 0 < small["skill"] < 1
    assert small["regret"] > large["regret"] > 0
    assert small["hits"] <= large["hits"] < full["hits"] == 1
    assert (full["entries"], full["error"]) == (70, pytest.approx(0))
    assert (full["skill"], full["premature"], full["refusal"]) == (None, None, None)


def test_layers_that_were_judged_are_not_judged_again(noise_file):
    trace = load_trace(noise_file)

    def simulated(store):
        return simulation.simulate(trace, ["h2o", "tova"], ["50%"], store=store)

    whole, rest, alone, judged = Store(), Store(), simulated(None), []
    assert simulated(whole) == alone
    first, row = next(iter(whole.rows().items()))
    rest.keep(first, row)
    with pytest.MonkeyPatch.context() as patch:
        real = simulation.judge
        patch.setattr(simulation, "judge", lambda *x: judged.append(x[0]) or real(*x))
        assert simulated(rest).rows == alone.rows
    assert [rest.metadata.layers for rest in judged] == [trace.metadata.layers[1:]]


def test_a_bound_gives_less_skill_than_the_best_keep_sets(data, noise_file):
    arguments = ("simulate", noise_file, "--methods", "h2o", "--budget", "12", "--workers", "1")
    ((best,), (bound,)) = (data(*arguments, way) for way in ("--exact", "--bound"))
    assert best["skill"] > bound["skill"] > 0


# --- kvlab view ----------------------------------------------------------------------------------


def test_the_page_holds_what_every_method_did(data, tmp_path):
    path = tmp_path / "page.html"
    options = ("--methods", "h2o full", "--budget", "60%", "--max-new-tokens", "12")
    facts = data("view", path, *options)
    assert facts["file_bytes"] == path.stat().st_size
    h2o, full = facts["methods"]
    assert h2o["entries"] == h2o["budget"] < full["entries"] == full["tokens_read"]
    text = path.read_text(encoding="utf-8")
    stored = text.split('id="timeline">')[1].split("</script>")[0]
    assert [run["method"] for run in json.loads(stored)["runs"]] == ["h2o", "full"]
    assert "http://" not in text
    assert "https://" not in text


# --- kvlab plan ----------------------------------------------------------------------------------

SHORT = ("plan", "--prompt", "64", "--length", "256")


def test_figures_are_those_of_the_cost_model(data):
    found = data(*SHORT, "--methods", "full h2o", "--budget", "128", "--gpu", "a100")
    full, h2o = found["methods"]
    plan = Plan(SHAPES["llama-3.1-8b"], HARDWARE["a100"], methods.get("h2o", 128), 64, 256)
    assert (full["budget"], h2o["budget"]) == (None, 128)
    assert h2o["batch"] == h2o["largest_batch"] == plan.largest_batch > full["batch"]
    assert h2o["step_milliseconds"] == pytest.approx(
        1e3 * plan.with_batch(plan.largest_batch).decode_seconds / 256
    )
    assert found["asked"]["hardware"]["source"] == HARDWARE["a100"].source


def test_a_method_pays_once_its_steps_have_made_up_for_its_work():
    def seconds(each: Plan) -> np.ndarray:
        return np.cumsum(each.step_seconds)

    full, h2o = (
        Plan(SHAPES["llama-3.1-8b"], HARDWARE["h20"], methods.get(*spec), 64, 2048, batch=64)
        for spec in (("full",), ("h2o", 128))
    )
    found = pays_from(h2o, full)
    assert found is not None and 128 < found < 2048
    written = found - 64
    assert seconds(h2o)[written - 1] < seconds(full)[written - 1]
    assert seconds(h2o)[written - 2] >= seconds(full)[written - 2]
    assert pays_from(full, full) is None
    alone = [replace(each, batch=1, generated=200) for each in (h2o, full)]
    assert pays_from(*alone) is None
    assert pays_from(replace(full, runtime=Runtime(bandwidth_share=1.0)), full) == 65
