"""Runs vLLM with the arguments of ``LLM`` that the settings name, in float32 where they name none.

``one_by_one``: each prompt is sent when the one before is answered. ``times`` are not told. To what
a worker writes it adds ``counted``: how often vLLM's counters say that something happened.
"""

import json
import os
import sys

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    """Write what was asked; vLLM starts processes that import this file."""
    from vllm import LLM, SamplingParams  # pyright: ignore

    asked = json.load(sys.stdin)
    settings = {"dtype": "float32", "block_size": 32, "enable_prefix_caching": False}
    settings |= {"enforce_eager": True, "disable_log_stats": False}
    settings["max_model_len"] = max(map(len, asked["prompts"])) + asked["tokens"]
    settings |= asked["settings"]
    one_by_one = settings.pop("one_by_one", False)
    engine = LLM(asked["weights"], skip_tokenizer_init=True, **settings)
    greedy = SamplingParams(
        max_tokens=asked["tokens"], temperature=0, ignore_eos=True, logprobs=1, detokenize=False
    )
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    requests = [[each] for each in prompts] if one_by_one else [prompts]
    answers = [
        answer.outputs[0]
        for together in requests
        for answer in engine.generate(together, greedy, use_tqdm=False)
    ]
    written = {
        "tokens": [[*answer.token_ids] for answer in answers],
        "log_probs": [
            [
                rated[token].logprob
                for token, rated in zip(answer.token_ids, answer.logprobs, strict=True)
            ]
            for answer in answers
        ],
        "counted": {each.name: getattr(each, "value", None) for each in engine.get_metrics()},
    }
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(written, file)


if __name__ == "__main__":
    main()
