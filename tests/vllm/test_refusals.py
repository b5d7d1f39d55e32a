"""What kvlab cannot do inside vLLM is refused by name, before any weights are read."""

import logging
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from kvlab.fast.lab.engines import plugged
from kvlab.fast.vllm import points, register
from kvlab.fast.vllm.settings import UnsupportedError, settings_of
from support.block_oracle import asked
from support.tables import cases

WITH = {
    "model_config.model": "some model",
    "model_config.max_model_len": 512,
    "model_config.runner_type": "generate",
    "model_config.use_mla": False,
    "model_config.is_hybrid": False,
    "model_config.is_encoder_decoder": False,
    "parallel_config.tensor_parallel_size": 2,
    "model_config.get_total_num_kv_heads": lambda: 4,
    "cache_config.cache_dtype": "auto",
    "cache_config.block_size": 32,
    "cache_config.enable_prefix_caching": True,
    "device_config.device_type": "cpu",
    "compilation_config.cudagraph_mode": SimpleNamespace(name="FULL_AND_PIECEWISE"),
    "scheduler_config.async_scheduling": True,
    "scheduler_config.scheduler_cls": None,
    "kv_transfer_config.kv_connector": "KvlabConnector",
    "speculative_config": None,
    "additional_config": {"kvlab": {"method": "tova", "budget": 96}},
}
"""What kvlab reads of vLLM's configuration, as it may be."""


def configured(**change):
    """Return such a configuration, and what differs in it."""
    config = SimpleNamespace()
    for path, value in {**WITH, **change}.items():
        part, _, name = path.partition(".")
        if name:
            vars(config).setdefault(part, SimpleNamespace())
            setattr(getattr(config, part), name, value)
        else:
            setattr(config, part, value)
    return config


@pytest.fixture
def known(monkeypatch):
    """A version of vLLM in which nothing has moved."""
    monkeypatch.setattr(points, "check", lambda: None)


@pytest.mark.usefixtures("known")
def test_what_is_configured_otherwise_is_taken():
    found = settings_of(configured())
    assert found is not None
    assert (found.method, found.blocks, found.in_flight) == ("tova@page=32,kv_heads=model", 3, 1)
    assert settings_of(configured(additional_config={})) is None
    piecewise = {"compilation_config.cudagraph_mode": SimpleNamespace(name="PIECEWISE")}
    assert settings_of(configured(**{"device_config.device_type": "cuda"}, **piecewise)) is not None


REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["refused"]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["says"])
def test_a_configuration_is_refused_by_name(row):
    with pytest.raises(ValueError, match=row["says"]):
        settings_of(configured(**row["change"]))


@pytest.mark.usefixtures("known")
def test_tables_per_layer_share_no_prefixes():
    kvlab = {"kvlab": {"method": "tova@kv_heads=layer", "budget": 96}}
    found = settings_of(
        configured(**{"additional_config": kvlab, "cache_config.enable_prefix_caching": False})
    )
    assert found is not None and found.per_layer
    with pytest.raises(UnsupportedError, match="--no-enable-prefix-caching"):
        settings_of(configured(additional_config=kvlab))


@cases(__file__, "a_point_that_has_moved_is_refused_by_name", "kind point says")
def test_a_point_that_has_moved_is_refused_by_name(monkeypatch, kind, point, says):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.1"))
    monkeypatch.setattr(points, "POINTS", {kind: {point: "obj ratio level _name"}})
    points.check.cache_clear()
    with pytest.raises(points.UnknownVersionError, match=says):
        settings_of(configured())


def test_a_version_that_was_never_tried_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))
    points.check.cache_clear()
    with pytest.raises(points.UnknownVersionError, match="was never tried; kvlab knows"):
        points.check()


def test_a_version_without_the_first_points_says_so_at_start(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with caplog.at_level(logging.WARNING):
        register()
    assert "kvlab does not know this version of vLLM" in caplog.text


def test_the_connector_alone_is_refused(driver):
    found = driver.run(None, [], kv_transfer_config=plugged("tova", 96)["kv_transfer_config"])
    assert "needs additional_config" in found["error"]


def test_an_engine_without_the_connector_is_refused_after_one_without_kvlab(driver):
    """vLLM asks once in a process which class attends, and kvlab has it ask again."""
    assert "error" not in driver.run(None, [], keep_backends=True)
    found = driver.run(asked("tova"), [], kv_transfer_config=None, keep_backends=True)
    assert "through a connector, which needs --kv-transfer-config" in found["error"]


@pytest.mark.slow
def test_a_rank_says_why_it_is_refused_before_its_model_is_built(driver):
    """vLLM itself says only that a process of it has ended."""
    engine = {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}
    assert "error" in driver.run(asked("tova"), [], **engine)
    assert "kvlab: pipeline_parallel_size must be 1: a decision needs all" in driver.said()


SIZES = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512}


@cases(__file__, "a_model_is_refused_before_its_weights_are_read", "kind name options reason")
def test_a_model_is_refused_before_its_weights_are_read(
    driver, tmp_path, kind, name, options, reason
):
    """There are none: the folder has a configuration alone."""
    config = AutoConfig.for_model(kind, **SIZES, **options)
    config.architectures = [f"{name}ForCausalLM"]
    config.save_pretrained(tmp_path)
    found = driver.run(asked("tova"), [], model=str(tmp_path))
    assert reason in found["error"], found
