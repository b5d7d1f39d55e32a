"""What fails ends alone: its blocks come back, and neither the engine nor other texts notice."""

import pytest
import torch

from support.block_oracle import arriving, asked, assert_as_specified, texts

POOL = {"num_gpu_blocks_override": 18, "max_num_seqs": 4}
APART = {"enable_prefix_caching": False, "num_gpu_blocks_override": 40}
BROKEN = 2
"""The token whose embedding is no number, in `broken`; random prompts have none below 3."""


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    """The model, of which one token's embedding is NaN, saved in a directory."""
    directory = tmp_path_factory.mktemp("broken")
    embeddings = model[0].get_input_embeddings().weight
    kept = embeddings.data[BROKEN].clone()
    embeddings.data[BROKEN] = torch.nan
    model[0].save_pretrained(directory)
    embeddings.data[BROKEN] = kept
    return str(directory)


@pytest.mark.parametrize(
    ("method", "says", "engine"),
    [
        ("looks@recent=16", "looks@recent=16,page=32,kv_heads=model failed: division by zero", {}),
        ("tova", "a score is NaN", {}),
        ("caote:h2o@recent=16", "a score is NaN", {}),
        ("tova@kv_heads=layer", "a score is NaN", APART),
    ],
)
def test_a_request_fails_alone(driver, model, broken, method, says, engine):
    """Two others run beside it; one comes later, and takes its blocks.

    Not if they hold NaN, which vLLM's kernel multiplies by 0: then nobody takes a block any more.
    """
    prompts, later = texts(130, 96, seed=8), texts(250, seed=10)["r0"]
    wrong, nan = texts(77, seed=9)["r0"], "NaN" in says
    if nan:
        wrong[40] = BROKEN
    events = [*arriving({**prompts, "bad": wrong}, 23), ["drain"]]
    if not nan:
        prompts["later"] = later
        events += [*arriving({"later": later}, 23), ["drain"]]
    found = driver.run(asked(method), events, broken if nan else None, **POOL | engine)
    assert "error" not in found, found["trace"]
    reason, error = found["reasons"].pop("bad/0")
    assert reason == "error" and says in error and any(says in line for line in found["log"])
    assert len(found["texts"].pop("bad/0")["tokens"]) < 23
    assert assert_as_specified(model[0], found, prompts, method) >= 3
    assert {reason for reason, _ in found["reasons"].values()} == {"length"}
    assert found["preempted"] == 0


def test_beam_search_is_refused(driver):
    """Each of its tokens is a request of its own, which asks for what only beams ask for."""
    asks = {"logprobs": 4, "skip_clone": True}
    found = driver.run(asked("tova"), [*arriving(texts(50), 1, **asks), ["drain"]], **POOL)
    assert found["reasons"]["r0/0"][0] == "abort" and found["free"] == found["blocks"]
    assert any("beam search makes a request of every token" in line for line in found["log"])


def test_after_kill_9_another_process_begins_anew(driver, driver_of, model):
    killed, prompts = driver_of("CPU_ATTN"), texts(100)
    events = [*arriving(prompts), ["step", {"times": 10}]]
    assert "error" not in killed.run(asked("tova"), events)
    killed.process.kill()
    found = driver.run(asked("tova"), [*arriving(prompts), ["drain"]])
    assert assert_as_specified(model[0], found, prompts, "tova") >= 2
