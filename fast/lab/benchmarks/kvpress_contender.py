"""Measures kvpress in an environment of its own: kvpress needs an older transformers than kvlab.

    python3 -m venv /tmp/kvpress-venv
    /tmp/kvpress-venv/bin/pip install torch==2.13.0 'kvpress==0.5.*'

``decode.py`` starts this file once and asks it in turn with the others: one JSON request per line
comes in, one JSON answer per line goes out. Run as a file, so that kvlab need not be installed.
"""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvpress  # type: ignore[import-not-found]
import torch
from transformers import DynamicCache

sys.path.insert(0, str(Path(__file__).parent))
from workload import Run, fetched, measure, tiny_llama  # type: ignore[import-not-found]

PRESSES: dict[str, Callable[[], Any]] = {
    "streaming_llm": kvpress.StreamingLLMPress,
    "snapkv": lambda: kvpress.SnapKVPress(window_size=16),
    "tova": kvpress.TOVAPress,
    "observed_attention": kvpress.ObservedAttentionPress,
    "critical_tova": lambda: kvpress.CriticalKVPress(kvpress.TOVAPress()),
}
NEED_WEIGHTS = {"observed_attention"}
"""Presses that read the attention weights of the model, which only eager attention returns."""


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Measure one generation; without a press it is the full cache of this environment."""
    name, run = request["press"], Run(**request["run"])
    model.set_attn_implementation("eager" if name in NEED_WEIGHTS else "sdpa")
    press = nullcontext()
    if name is not None:
        press = kvpress.DecodingPress(
            base_press=PRESSES[name](),
            compression_interval=request["interval"],
            target_size=request["entries"],
        )(model)
    given = model, run, DynamicCache(config=model.config), request["watched"], request["cpu_time"]
    with press:
        return asdict(measure(*given))


def main() -> None:
    """Say the versions, then answer requests; arguments: device, threads, model's directory."""
    device, threads, directory = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = fetched(directory) if directory else tiny_llama(device)
    names = ("kvpress", "transformers", "torch")
    print(json.dumps({name: version(name) for name in names}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
