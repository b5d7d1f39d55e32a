"""What of vLLM the plug-in uses. Where a version moved one of them, it is refused by name."""

import inspect
import re
from functools import cache
from pydoc import locate
from typing import Any

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1"
HYBRID = "vllm.distributed.kv_transfer.kv_connector.v1.base.SupportsHMA"
METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.metrics.KVConnectorPromMetrics"
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
    f"{CONNECTOR}.requires_piecewise_for_cudagraph": "extra_config",
    "vllm.v1.request.Request.get_finished_reason": "",
    "vllm.sampling_params.SamplingParams.from_optional": "skip_clone detokenize logprobs",
    "vllm.v1.attention.selector._cached_get_attn_backend": "attn_selector_config",
}
"""Where each is, and parameters that it takes."""
ATTRIBUTES = {
    f"{CONNECTOR}.bind_kv_cache_manager": "_kv_cache_manager",
    f"{MANAGER}.__init__": "_null_block block_pool req_to_blocks",
    "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator.__init__": "single_type_managers",
    "vllm.v1.core.block_pool.BlockPool.__init__": "num_gpu_blocks",
    f"{METRICS}.__init__": "per_engine_labelvalues _labelnames _counter_cls",
    "vllm.v1.request.Request.__init__": "max_tokens stop_reason num_computed_tokens num_preemptions",
    "vllm.v1.attention.backend.CommonAttentionMetadata.__init__": "_num_computed_tokens_cache "
    "block_table_tensor seq_lens seq_lens_cpu_upper_bound slot_mapping query_start_loc_cpu",
}
"""Attributes that a constructor or another function assigns, or parameters of it."""
VERSIONS = ("0.31", "0.32")
"""Versions with which the plug-in was tested."""


class UnknownVersionError(RuntimeError):
    """This version of vLLM has moved something that kvlab needs."""


@cache
def check() -> None:
    """Raise `UnknownVersionError` if vLLM lacks something, or calls it by other parameters."""
    version = str(locate("vllm.__version__"))
    known = f"kvlab knows vLLM {' and '.join(VERSIONS)}"
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        raise UnknownVersionError(f"vLLM {version} was never tried; {known}")
    for names, kind, lacks in ((POINTS, _parameters, "takes no"), (ATTRIBUTES, _assigned, "has no")):
        for point, wanted in names.items():
            found: Any = locate(point)
            missing = set(wanted.split()) - (kind(found) if found else set())
            if found is None or missing:
                what = f"{lacks} {min(missing)}" if found else "is gone"
                raise UnknownVersionError(f"vLLM {version}: {point} {what}; {known}")


def _parameters(found: Any) -> set[str]:
    return set(inspect.signature(found).parameters)


def _assigned(found: Any) -> set[str]:
    """Return the parameters, and the attributes of ``self`` that are assigned."""
    return _parameters(found) | set(re.findall(r"self\.(\w+)\b[^=\n]*=[^=]", _source(found)))


def _source(found: Any) -> str:
    try:
        return inspect.getsource(found)
    except (OSError, TypeError):  # written by `dataclass`
        return ""
