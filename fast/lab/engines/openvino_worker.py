"""Runs OpenVINO GenAI; settings: ``start``, ``recent``, ``max``, ``aggregation``, ``window``,
``rotation`` as in its `CacheEvictionConfig` (none of them: no eviction).
"""

import json
import sys

import numpy as np  # pyright: ignore
import openvino  # pyright: ignore
import openvino_genai as genai  # pyright: ignore

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}


def main() -> None:
    """Write after every prompt that standard input names; all prompts at once."""
    asked = json.load(sys.stdin)
    pipeline = genai.ContinuousBatchingPipeline(
        asked["weights"], scheduler(asked["settings"]), "CPU", EXACT, {}
    )
    handles, written = [], []
    for number, prompt in enumerate(asked["prompts"]):
        wanted = genai.GenerationConfig()
        wanted.max_new_tokens, wanted.do_sample, wanted.logprobs = asked["tokens"], False, 1
        wanted.ignore_eos, wanted.apply_chat_template = True, False
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        handles.append(pipeline.add_request(number, ids, wanted))
        written.append({"tokens": [], "log_probs": []})
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for handle, found in zip(handles, written, strict=True):
            for part in handle.read().values() if handle.can_read() else ():
                found["tokens"].extend(part.generated_ids)
                found["log_probs"].extend(part.generated_log_probs)
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(written, file)


def scheduler(settings):
    """Return the engine's configuration: every prompt is read in one step."""
    made = genai.SchedulerConfig()
    made.cache_size, made.enable_prefix_caching, made.max_num_batched_tokens = 2, False, 10**6
    if settings:
        made.use_cache_eviction = True
        mode = getattr(genai.AggregationMode, settings["aggregation"])
        sizes = (settings[name] for name in ("start", "recent", "max"))
        rotation, window = settings.get("rotation", False), settings.get("window", 8)
        made.cache_eviction_config = genai.CacheEvictionConfig(*sizes, mode, rotation, window)
    return made


if __name__ == "__main__":
    main()
