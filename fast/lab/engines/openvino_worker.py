"""Runs OpenVINO GenAI of the folder that is named; settings as in its `CacheEvictionConfig`:
``start``, ``recent``, ``max``, ``aggregation``, ``window``, ``rotation``, ``crush`` (blocks and
anchor point mode); without ``max`` nothing is evicted. ``precision``: of the cache. ``batched``:
``max_num_batched_tokens``; then one prompt is read after the other.
"""

import json
import sys
import time

sys.path.insert(0, sys.argv[1])

import numpy as np  # pyright: ignore
import openvino  # pyright: ignore
import openvino_genai as genai  # pyright: ignore

asked, hints = json.load(sys.stdin), {"INFERENCE_NUM_THREADS": 1}
if asked.get("exact", True):
    hints |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    hints |= {"KV_CACHE_PRECISION": asked["settings"].get("precision", "f32")}
made, settings = genai.SchedulerConfig(), asked["settings"]
made.cache_size, made.enable_prefix_caching = 2, False
made.max_num_batched_tokens = settings.get("batched", 10**6)
if "max" in settings:
    made.use_cache_eviction = True
    mode = getattr(genai.AggregationMode, settings["aggregation"])
    sizes = settings["start"], settings["recent"], settings["max"], mode
    blocks, anchor = settings.get("crush", (0, "RANDOM"))
    crush = genai.KVCrushConfig(blocks, getattr(genai.KVCrushAnchorPointMode, anchor))
    more = settings.get("rotation", False), settings["window"], crush
    made.cache_eviction_config = genai.CacheEvictionConfig(*sizes, *more)
pipeline = genai.ContinuousBatchingPipeline(asked["weights"], made, "CPU", hints, {})
wanted = genai.GenerationConfig()
wanted.max_new_tokens, wanted.do_sample = asked["tokens"], False
wanted.logprobs = 1 - asked.get("timed", 0)
wanted.ignore_eos, wanted.apply_chat_template = True, False
times = [(time.process_time(), time.perf_counter())]
tokens, log_probs = [[] for _ in asked["prompts"]], [[] for _ in asked["prompts"]]
handles = []
for prompt in asked["prompts"]:
    ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
    handles.append(pipeline.add_request(len(handles), ids, wanted))
    if "batched" not in settings and len(handles) < len(tokens):
        continue
    while pipeline.has_non_finished_requests():
        pipeline.step()
        times.append((time.process_time(), time.perf_counter()))
        for number, handle in enumerate(handles):
            for part in handle.read().values() if handle.can_read() else ():
                tokens[number].extend(part.generated_ids)
                log_probs[number].extend(part.generated_log_probs)
held = pipeline.get_metrics()
found = {"tokens": tokens, "log_probs": log_probs, "times": [*times[:2], times[-1]]}
found["bytes"] = int(held.cache_usage / 100 * held.cache_size_in_bytes)
with open(asked["out"], "w", encoding="utf-8") as file:
    json.dump(found, file)
