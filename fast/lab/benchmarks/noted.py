"""What benchmarks note beside a time: bytes that must move, quartiles, kernels, configurations."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.profiler import profile


def must_read(model: Any, entries: float, batch: int, cache_bytes: float = float("inf")) -> int:
    """Return the bytes that a token reads at least: every weight used, and every entry once.

    Args:
        model: of transformers.
        entries: of each head and text.
        batch: texts at once.
        cache_bytes: what the cache takes, where it may store entries in fewer bits.
    """
    config, looked_up = model.config, model.get_input_embeddings().weight
    weights = sum(x.nbytes for x in model.parameters())
    if model.get_output_embeddings().weight is not looked_up:
        weights -= looked_up.nbytes
    channels = config.num_key_value_heads * config.head_dim
    whole = 2 * config.num_hidden_layers * channels * looked_up.itemsize * entries * batch
    return weights + int(min(whole, cache_bytes))


def quartiles(found: Sequence[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile."""
    return np.quantile(found, (0.25, 0.5, 0.75)).tolist()


def profiled(run: Callable[[], Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the kernels of a call, longest first, and the backends of PyTorch that attend in it.

    On a GPU they are what it ran, a replayed graph's kernels among them; else PyTorch's operations,
    each without those that it calls. A backend is named by its operation, such as
    ``aten::_scaled_dot_product_flash_attention``.
    """
    with profile() as found:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    every: Any = found.key_averages()
    own = [x for x in every if x.device_type.name == "CUDA"]
    time = "self_device_time_total" if own else "self_cpu_time_total"
    rows = [
        {"kernel": x.key, "runs": x.count, "microseconds": getattr(x, time)} for x in own or every
    ]
    backends = {x.key for x in every if x.key.startswith("aten::_scaled_dot_product")}
    return sorted(rows, key=lambda row: -row["microseconds"]), sorted(backends)


def configurations() -> dict[str, dict[str, str]]:
    """Return what each of kvlab's tuned kernels that ran in this process took, by its calls."""
    return {
        f"{name}.{x.base_fn.__name__}": {str(call): str(y) for call, y in x.cache.items()}
        or {"every call": str(x.best_config)}
        for name, module in [*sys.modules.items()]
        if "kvlab.fast.kernels." in name
        for x in vars(module).values()
        if type(x).__name__ == "Autotuner" and "best_config" in vars(x)
    }
