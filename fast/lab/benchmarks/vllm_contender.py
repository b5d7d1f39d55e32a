"""Runs in vLLM's environment for ``vllm.py``: all requests at once, in one process and thread.

A worker as in `engines`; ``settings`` are arguments of ``LLM``. It adds the ``version`` of vLLM,
how many requests were ``preempted`` and how many ran ``at_once`` at most.
"""

import json
import os
import sys
import time

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    """Write what was asked."""
    asked = json.load(sys.stdin)
    if not asked["plugin"]:
        os.environ["VLLM_PLUGINS"] = ""
    from vllm import LLM, SamplingParams, __version__  # pyright: ignore

    llm = LLM(asked["weights"], skip_tokenizer_init=True, **asked["settings"])
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    tokens, requests, times, at_once = {}, [], [], 0
    greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
    llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, **greedy))
    params = SamplingParams(max_tokens=asked["tokens"], **greedy)
    times.append((time.process_time(), time.perf_counter()))
    for number, prompt in enumerate(asked["prompts"]):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    requests = list(scheduler.requests.values())
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[int(output.request_id)] = list(output.outputs[0].token_ids)
        at_once = max(at_once, len(scheduler.running))
    times.append((time.process_time(), time.perf_counter()))
    found = {"tokens": [tokens[number] for number in sorted(tokens)], "times": times}
    found |= {"version": __version__, "at_once": at_once}
    found["preempted"] = sum(each.num_preemptions for each in requests)
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
