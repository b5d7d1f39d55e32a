"""Runs vLLM with the arguments of ``LLM`` that the settings name, in float32 where they name none.

``one_by_one``: each prompt is sent when the one before is answered. ``without_plugin``: vLLM loads
no plug-in. To what a worker writes it adds vLLM's ``version``, how many requests ran ``at_once`` at
most, how often one was ``preempted``, and the ``blocks`` that the plug-in evicted and freed; and,
unless it is ``timed``, ``counted``: how often vLLM's counters say that something happened.
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
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    """Write what was asked; vLLM starts processes that import this file."""
    asked = json.load(sys.stdin)
    timed = asked.get("timed", False)
    settings = {"dtype": "float32", "block_size": 32, "enable_prefix_caching": False}
    settings |= {"enforce_eager": True, "disable_log_stats": timed}
    settings["max_model_len"] = max(map(len, asked["prompts"])) + asked["tokens"]
    settings |= asked["settings"]
    one_by_one = settings.pop("one_by_one", False)
    if settings.pop("without_plugin", False):
        os.environ["VLLM_PLUGINS"] = ""
    from vllm import LLM, SamplingParams, __version__  # pyright: ignore

    llm = LLM(asked["weights"], skip_tokenizer_init=True, **settings)
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    greedy = {"temperature": 0, "ignore_eos": True, "detokenize": False}
    if timed:
        llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, **greedy))
    params = SamplingParams(max_tokens=asked["tokens"], logprobs=None if timed else 1, **greedy)
    numbered = list(enumerate(asked["prompts"]))
    requests, accounts, answers, at_once = {}, [], {}, 0
    times = [(time.process_time(), time.perf_counter())]
    for together in [[each] for each in numbered] if one_by_one else [numbered]:
        for number, prompt in together:
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        requests |= scheduler.requests
        if "additional_config" in settings:
            accounts += scheduler.connector.managers[0].accounts.values()
        while engine.has_unfinished_requests():
            for output in engine.step():
                answers[int(output.request_id)] = output.outputs[0]
            at_once = max(at_once, len(scheduler.running))
    times.append((time.process_time(), time.perf_counter()))
    written = [answers[number] for number, _ in numbered]
    found = {"tokens": [[*answer.token_ids] for answer in written], "times": times}
    found |= {"version": __version__, "at_once": at_once}
    found["preempted"] = sum(each.num_preemptions for each in requests.values())
    sums = {name: sum(vars(each)[name] for each in accounts) for name in ("evicted", "freed")}
    found["blocks"] = sums if accounts else {}
    if not timed:
        found["log_probs"] = [
            [
                rated[token].logprob
                for token, rated in zip(answer.token_ids, answer.logprobs, strict=True)
            ]
            for answer in written
        ]
        counters = engine.get_metrics()
        found["counted"] = {each.name: getattr(each, "value", None) for each in counters}
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
