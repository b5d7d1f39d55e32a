"""Backends of attention resolve by their paths, as vLLM's platforms resolve them."""

import json
import subprocess

from kvlab.fast.vllm import WRAPPED

SCRIPT = """
import json, sys
from types import ModuleType

import torch

sys.modules["vllm._C_stable_libtorch"] = ModuleType("of a build for CUDA")
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import cuda
from vllm.plugins import load_general_plugins
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec

load_general_plugins()
found, kvlab = [], {"kvlab": {"method": "tova", "budget": 96}}
for asked in ({}, kvlab, {}):
    with set_current_vllm_config(VllmConfig(additional_config=asked)):
        for name in sys.argv[1:]:
            backend = AttentionBackendEnum[name]
            by_cuda = resolve_obj_by_qualname(cuda._backend_cls_path(backend.get_class()))
            by_others = resolve_obj_by_qualname(backend.get_path())
            assert by_cuda is by_others
            found.append([by_cuda.__module__, by_cuda.__qualname__, by_cuda.__mro__[1].__name__])
    if asked:
        kept = by_others  # by vLLM, which asks for a backend once in a process
    elif "kvlab.fast.vllm.backend" in sys.modules:
        with set_current_vllm_config(VllmConfig()):
            assert kept.get_impl_cls() is by_others.get_impl_cls()
        assert kept.get_builder_cls() is by_others.get_builder_cls()
        spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32)
        assert type(kept.customize_spec(spec)) is type(by_others.customize_spec(spec))
    if len(found) == len(sys.argv) - 1:
        assert "kvlab.fast.vllm.backend" not in sys.modules
print(json.dumps(found))
"""
"""Run in vLLM's environment: resolves backends as CUDA does, and as ROCm and CPUs do."""


def test_backends_are_those_of_vllm_unless_kvlab_is_configured(python, environment):
    told = subprocess.run(
        [python, "-c", SCRIPT, *WRAPPED], capture_output=True, text=True, env=environment
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    own = [[f"vllm.v1.attention.backends.{key.lower()}", name] for key, name in WRAPPED.items()]
    before, configured, after = found[:3], found[3:6], found[6:]
    assert [each[:2] for each in before] == [each[:2] for each in after] == own
    assert configured == [["kvlab.fast.vllm", key, name] for key, name in WRAPPED.items()]
