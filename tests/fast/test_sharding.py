"""KV heads in several processes: which methods can, and the same text from two as from one."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import ALL, ONE_EACH
from replay import random_blocks
from sampling import sampled
from sharded import PROMPTS, SPECS, TOKENS, run_all, write_found
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from kvlab.fast import compress, methods
from kvlab.fast.engine.layers import Layers
from kvlab.fast.huggingface.sharding import Shard, check_heads, shard_of
from kvlab.fast.models.loading import load
from kvlab.reference.methods import takes_budget
from kvlab.reference.models import reasoner_directory

HEADS = (4, 2, 8)
BUDGET = 14


def policy_for(spec: str):
    return methods.get(spec, BUDGET if takes_budget(spec) else None)


def kept(spec: str, first: int, last: int, number: int | None = None) -> list[list]:
    """What each of some heads keeps, and at how many bits, after every step of a random stream.

    ``number`` is what the first of them is said to be, if it is not its own.
    """
    found = [[] for _ in range(first, last)]

    def watch(block, result):
        order = result.cache.positions.sort(dim=-1)
        bits = result.cache.bits().gather(-1, order.indices)
        for g, steps in enumerate(found):
            steps.append((order.values[:, g].tolist(), bits[:, g].tolist()))

    heads, layers = slice(first, last), Layers(policy_for(spec), 1, watch=watch)
    for (block,) in random_blocks(3, HEADS, (16, 13), 24, 6, torch.float64):
        vectors = {name: getattr(block, name)[:, heads] for name in ("queries", "keys", "values")}
        layers.begin(block.clock)
        layers.attend(0, replace(block, **vectors, first_head=first if number is None else number))
        layers.finish()
    return found


@pytest.mark.parametrize("spec", sampled([*ALL, "rpc@heads=group"], [*ONE_EACH, "rpc@heads=group"]))
def test_methods_say_whether_heads_decide_together(spec):
    """Heads that say that they decide alone keep the same in halves; the others do not."""
    apart = kept(spec, 0, 2) + kept(spec, 2, 4)
    assert (kept(spec, 0, 4) != apart) == policy_for(spec).couples_heads


def test_nacl_draws_the_noise_of_every_head_for_itself():
    assert kept("nacl", 2, 4) == kept("nacl", 0, 4)[2:]
    assert kept("nacl", 2, 4, number=0) != kept("nacl", 0, 4)[2:]


def test_a_process_knows_its_heads():
    assert Shard(1, 2, 8).first_head(4) == 4
    assert Shard(1, 2, 8).first_head(8) == 0  # the plan left them whole
    assert Shard(0, 1, 8).first_head(8) == 0


def test_heads_that_cannot_be_shared_evenly_are_refused():
    config = SimpleNamespace(num_key_value_heads=2, num_attention_heads=8)
    whole = SimpleNamespace(get_text_config=lambda decoder: config)
    model = SimpleNamespace(config=whole, _tp_size=4, _device_mesh=object())
    with pytest.raises(ValueError, match="4 processes cannot share 2 KV heads"):
        shard_of(model)


@pytest.mark.parametrize("spec", ["tova", "caote:h2o@heads=layer", "rpc", "desirekv"])
def test_methods_whose_heads_decide_together_are_refused_before_anything_runs(spec):
    policy = methods.get(spec, 50 if spec.startswith(("tova", "caote")) else None)
    with pytest.raises(ValueError, match=f"{spec} lets the KV heads of a layer decide together"):
        check_heads(policy, Shard(0, 2, 8))
    check_heads(policy, Shard(0, 1, 8))


# --- two processes -------------------------------------------------------------------------------


def forked(rank: int, port: int, folder: Path) -> None:
    """Be one of two processes; torchrun starts its own with these variables."""
    torch.set_num_threads(1)  # a fork has none of its parent's threads, and waits for them
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in here.items()}, MASTER_ADDR="127.0.0.1")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the parent listens, as torchrun does
    write_found(folder)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes wrote and kept, and what they refused."""
    folder = tmp_path_factory.mktemp("ranks")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        get_context("fork").Process(target=forked, args=(rank, store.port, folder))
        for rank in (0, 1)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, where threads run
        for each in processes:
            each.start()
    for each in processes:
        each.join(timeout=300)
        if each.is_alive():
            each.kill()
    assert [each.exitcode for each in processes] == [0, 0]
    return found_in(folder)


def found_in(folder: Path) -> list[dict]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_torchrun_starts_two_such_processes(ranks, tmp_path):
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", Path(__file__).with_name("sharded.py"), tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert found_in(tmp_path) == ranks


@pytest.fixture(scope="module")
def alone():
    model, tokenizer = load(reasoner_directory(), "float64")
    return run_all(model, tokenizer)


@pytest.mark.parametrize("spec", SPECS)
def test_two_processes_write_what_one_writes(spec, ranks, alone):
    first, second = (rank[spec] for rank in ranks)
    if methods.get(spec, SPECS[spec]).couples_heads:
        for each in (first, second):
            assert "decide together" in each["refusal"]
        assert "tokens" in alone[spec]
        return
    assert first["tokens"] == second["tokens"] == alone[spec]["tokens"]
    for layer, whole in enumerate(alone[spec]["positions"]):
        for row in range(len(PROMPTS)):
            assert first["positions"][layer][row] == whole[row][:1]
            assert second["positions"][layer][row] == whole[row][1:]


def test_the_comparison_sees_another_keep_set(ranks, alone):
    """Both heads of one process keep different entries: a swap would be seen."""
    first, second = (rank["h2o"]["positions"] for rank in ranks)
    assert first != second
    assert ranks[0]["h2o"]["tokens"] != ranks[0]["streaming_llm"]["tokens"]


def test_tensor_parallelism_needs_torchrun(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="parallel = 'tensor' needs the processes of torchrun"):
        load(reasoner_directory(), parallel="tensor")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes cannot share 2 KV heads"):
        load(reasoner_directory(), parallel="tensor")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parallel": "rows"}, "parallel = 'rows' must be one of None, 'layers', 'tensor'"),
        ({"parallel": "layers", "device": "cpu"}, "device = 'cpu' cannot be chosen with parallel"),
    ],
)
def test_bad_input_names_argument_and_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        load(reasoner_directory(), **arguments)


# --- layers on several devices -------------------------------------------------------------------


def answer(model, tokenizer, spec: str):
    """Tokens, positions and cache of a generation; inputs are on the CPU."""
    inputs = tokenizer(PROMPTS[0], return_tensors="pt")
    with compress(model, spec, SPECS[spec], block_size=32) as cache:
        written = model.generate(**inputs, past_key_values=cache, max_new_tokens=TOKENS)
        return written.tolist(), [layer.tolist() for layer in cache.positions()], cache


needs_accelerate = pytest.mark.skipif(not find_spec("accelerate"), reason="needs accelerate")


@needs_accelerate
@pytest.mark.parametrize("spec", ["caote:h2o", "kivi@residual=32,group=8"])
def test_layers_that_are_fetched_from_the_disk_change_nothing(spec, tmp_path):
    """What ``device_map="auto"`` does where memory is full; all that a CPU alone can try."""
    from accelerate import dispatch_model

    model, tokenizer = load(reasoner_directory(), "float64")
    expected = answer(model, tokenizer, spec)[:2]
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {f"model.layers.{n}": ("cpu", "disk")[n % 2] for n in range(4)} | {"lm_head": "cpu"}
    dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path)  # type: ignore[arg-type]
    assert next(model.model.layers[1].parameters()).is_meta
    assert answer(model, tokenizer, spec)[:2] == expected


@needs_accelerate
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_caches_are_where_their_layers_are(spec):
    """Half of the layers on a GPU, half really on the CPU."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model, tokenizer = load(reasoner_directory(), "float64", "cpu")
    expected = answer(model, tokenizer, spec)[:2]
    for layer in model.model.layers[:2]:
        layer.to("cuda")
        hook = AlignDevicesHook(execution_device="cuda", io_same_device=True)
        add_hook_to_module(layer, hook)
    tokens, positions, cache = answer(model, tokenizer, spec)
    assert (tokens, positions) == expected
    devices = [each.positions.device.type for each in cache.compressed.caches]
    assert devices == ["cuda", "cuda", "cpu", "cpu"]
