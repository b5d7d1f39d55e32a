"""Measures kvpress in its own environment: it needs an older transformers than kvlab.

    python3 -m venv /tmp/kvpress && /tmp/kvpress/bin/pip install torch==2.13.0 'kvpress==0.5.*'
    /tmp/kvpress/bin/python fast/benchmarks/kvpress_contender.py '{"press": "tova", ...}'

Prints one line of JSON. Run as a file, so that kvlab need not be installed there.
"""

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from workload import ENTRIES, Run, tiny_llama, tokens_per_second  # type: ignore


def main() -> None:
    """Read one JSON argument: press, interval, run, whole, threads, device."""
    warnings.filterwarnings("ignore")
    from kvpress import (  # type: ignore[import-not-found]
        DecodingPress,
        ObservedAttentionPress,
        SnapKVPress,
        TOVAPress,
    )

    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(wanted["threads"])
    model = tiny_llama(wanted["device"])
    presses = {
        "tova": TOVAPress,
        "snapkv": lambda: SnapKVPress(window_size=16),
        "observed_attention": ObservedAttentionPress,
    }
    if wanted["press"] == "observed_attention":
        model.set_attn_implementation("eager")
    speeds = []
    for _ in range(wanted["repeats"]):
        press = DecodingPress(
            base_press=presses[wanted["press"]](),
            compression_interval=wanted["interval"],
            target_size=ENTRIES,
        )
        with press(model):
            speeds.append(
                tokens_per_second(
                    model.generate, Run(**wanted["run"]), wanted["whole"], wanted["device"]
                )
            )
    versions = {name: version(name) for name in ("kvpress", "transformers", "torch")}
    print(json.dumps({"tokens_per_second": speeds, "versions": versions}))


if __name__ == "__main__":
    main()
