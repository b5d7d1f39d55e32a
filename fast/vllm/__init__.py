"""The methods inside vLLM, through its own extension points: evicted blocks go back to the pool.

`register` is the entry point of the group ``vllm.general_plugins``. vLLM's ``additional_config``
says what to do: ``{"kvlab": {"method": "caote:h2o", "budget": 1024}}``; without it vLLM's own
classes are used as they are.

| module | process | what it does |
|---|---|---|
| `settings`, `points` | all | what was configured; what is refused, other versions too |
| `backend` | worker | the platform's attention, over the kept blocks |
| `requests`, `turns` | worker | who is in the batch; what is observed of a request and evicted |
| `blocks` | worker | reading keys and values out of vLLM's blocks |
| `connector` | both | says to the worker who is in its batch, to the scheduler what was evicted |
| `manager` | scheduler | frees blocks, and admits only requests that will never be preempted |
| `scheduler` | scheduler | ends what is read of a prompt in a step where blocks are evicted |
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any
from weakref import finalize

CONNECTOR = "KvlabConnector"
"""Name of the connector, for vLLM's ``kv_transfer_config``."""
SCHEDULER = "kvlab.fast.vllm.scheduler.in_blocks"
"""The scheduler, for vLLM's ``scheduler_cls``, if blocks are evicted within prompts."""
WRAPPED = {
    "CPU_ATTN": "CPUAttentionBackend",
    "FLASH_ATTN": "FlashAttentionBackend",
    "TRITON_ATTN": "TritonAttentionBackend",
}
"""Attention backends that evict, and vLLM's classes; those for GPUs were never run."""


def register() -> None:
    """Tell vLLM where the connector and the attention are; both are imported if they are used."""
    try:
        from vllm.config import get_current_vllm_config_or_none  # noqa: F401
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        for name in WRAPPED:
            register_backend(AttentionBackendEnum[name], f"{__name__}.{name}")
        with suppress(ValueError):  # it is registered already
            KVConnectorFactory.register_connector(CONNECTOR, f"{__name__}.connector", CONNECTOR)
    except (ImportError, AttributeError, KeyError) as error:
        logging.getLogger("kvlab").warning("kvlab does not know this version of vLLM: %s", error)


def __getattr__(name: str) -> type:
    """Resolve a backend by its path, as vLLM's platforms do.

    Unless the model that is being built asks for kvlab, that is vLLM's own class.
    """
    if name not in WRAPPED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if asked_of(config) is None:
        selector = import_module("vllm.v1.attention.selector")
        forget = getattr(getattr(selector, "_cached_get_attn_backend", None), "cache_clear", None)
        if config is not None and forget is not None:
            finalize(config, forget)  # a later engine of this process asks anew
        return own_backend(name)
    return import_module(f"{__name__}.backend").wrapped(name)


def own_backend(name: str) -> type:
    """Return vLLM's own class of a backend."""
    return getattr(import_module(f"vllm.v1.attention.backends.{name.lower()}"), WRAPPED[name])


def asked_of(config: Any) -> Any:
    """Return what a configuration of vLLM, or None, says to kvlab, unchecked; None if nothing."""
    given = getattr(config, "additional_config", None)
    return given.get("kvlab") if isinstance(given, Mapping) else None
