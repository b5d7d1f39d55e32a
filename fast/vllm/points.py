"""What of vLLM the plug-in uses. Where a version moved one of them, it is refused by name."""

import inspect
from functools import cache
from pydoc import locate
from typing import Any

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1"
HYBRID = "vllm.distributed.kv_transfer.kv_connector.v1.base.SupportsHMA"
MANAGER = "vllm.v1.core.single_type_kv_cache_manager.FullAttentionManager"

POINTS = {
    "vllm.v1.attention.backends.registry.register_backend": "backend class_path",
    "vllm.v1.kv_cache_spec_registry.KVCacheSpecRegistry.register": "kvcache_spec_cls manager_class",
    "vllm.v1.kv_cache_interface.FullAttentionSpec.merge": "specs",
    "vllm.v1.kv_cache_interface.FullAttentionSpec.is_uniform_with_collection": "kv_cache_specs",
    "vllm.v1.core.block_pool.BlockPool.free_blocks": "ordered_blocks",
    "vllm.v1.attention.backend.CommonAttentionMetadata.replace": "kwargs",
    "vllm.v1.attention.backend.AttentionBackend.customize_spec": "spec",
    "vllm.distributed.tensor_model_parallel_all_gather": "input_ dim",
    f"{MANAGER}.find_longest_cache_hit": "block_hashes kv_cache_group_ids kv_cache_spec",
    f"{MANAGER}.get_num_blocks_to_allocate": "request_id num_tokens new_computed_blocks",
    f"{MANAGER}.allocate_new_blocks": "request_id num_tokens",
    f"{MANAGER}.cache_blocks": "request num_tokens",
    f"{MANAGER}.free": "request_id",
    f"{CONNECTOR}.on_new_request": "request",
    f"{CONNECTOR}.bind_kv_cache_manager": "kv_cache_manager",
    f"{CONNECTOR}.register_kv_caches": "kv_caches",
    f"{CONNECTOR}.bind_connector_metadata": "connector_metadata",
    f"{CONNECTOR}.build_connector_meta": "scheduler_output",
    f"{CONNECTOR}.build_connector_worker_meta": "",
    f"{CONNECTOR}.update_connector_output": "connector_output",
    f"{HYBRID}.request_finished_all_groups": "request block_ids",
    f"{CONNECTOR}.get_kv_connector_stats": "",
    f"{CONNECTOR}.build_prom_metrics": "vllm_config metric_types labelnames",
}
"""Where each is, and parameters that it takes."""


class UnknownVersionError(RuntimeError):
    """This version of vLLM has moved something that kvlab needs."""


@cache
def check() -> None:
    """Raise `UnknownVersionError` if vLLM lacks something, or calls it by other parameters."""
    for point, parameters in POINTS.items():
        found: Any = locate(point)
        missing = set(parameters.split()) - set(
            inspect.signature(found).parameters if found else ()
        )
        if found is None or missing:
            what = f"takes no {min(missing)}" if found else "is gone"
            raise UnknownVersionError(
                f"vLLM {locate('vllm.__version__')}: {point} {what}; kvlab knows vLLM 0.32"
            )
