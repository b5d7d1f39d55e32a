"""What pages say about times and bytes, from stored benchmarks and from the cost model."""

from dataclasses import replace
from functools import cache
from typing import Any

from kvlab.fast.lab.planning import pays_from
from kvlab.reference import methods
from kvlab.reference.simulator.cost import Plan, Runtime
from kvlab.reference.simulator.sizes import HARDWARE, LAUNCHES, SHAPES
from study.benchmarks import CONTROL, with_gains, with_limits, with_speeds
from study.planner_figures import PaperFigure, all_figures
from study.stored import stored_file

GIB = 2**30


def decoded(method: str, prompt: int, texts: int = 1, graphed: bool = True) -> dict[str, Any]:
    """Return the row of a whole model on the H200; of presses, that beside kvpress.

    Raises:
        ValueError: if not one row is meant.
    """
    part = "one_text" if texts == 1 else "equal_memory"
    part = "beside_kvpress" if method.startswith("kvpress") else part
    rows = with_limits(stored_file("benchmarks/end-to-end-gpu"), part)
    asked = {"method": method, "prompt": prompt, "batch": texts, "graphed": graphed}
    (found,) = (row for row in rows if asked.items() <= row.items())
    return found


def token_ms(method: str, prompt: int, texts: int = 1, graphed: bool = True) -> float:
    """Return the milliseconds of a token, the median of the rounds."""
    return decoded(method, prompt, texts, graphed)["quartiles"][1]


def least_ms(method: str, prompt: int, texts: int = 1) -> float:
    """Return the milliseconds in which weights and cache can be read at the rate of copying."""
    return decoded(method, prompt, texts)["limit_ms"]


def peak_gib(method: str, texts: int, graphed: bool = True) -> float:
    """Return the peak beside the weights, with prompts of 4,096 tokens read at once."""
    return decoded(method, 4096, texts, graphed)["peak_bytes"] / GIB


def timed(kernel: str, texts: int = 1) -> dict[str, Any]:
    """Return the row of a kernel.

    Raises:
        ValueError: if not one row is meant.
    """
    rows = with_gains(stored_file("benchmarks/kernels-gpu")["parts"]["kernels"])
    asked = {"kernel": kernel, "batch": texts}
    (found,) = (row for row in rows if asked.items() <= row.items())
    return found


def kernel_us(kernel: str, texts: int = 1) -> float:
    """Return the microseconds of a kernel."""
    return 1e6 * timed(kernel, texts)["seconds"]


def of_copying(kernel: str, texts: int = 1) -> float:
    """Return the percentage of copying at which the bytes move that must."""
    return 100 * timed(kernel, texts)["share_of_copy"]


def copied_us(kernel: str) -> float:
    """Return the microseconds in which a plain copy moves a kernel's bytes."""
    rate = stored_file("benchmarks/kernels-gpu")["about"]["copy_bytes_per_second"]
    return 1e6 * timed(kernel)["must_bytes"] / rate


def measured_methods() -> set[str]:
    """Return the methods whose speed was measured on SmolLM2."""
    rows = stored_file("benchmarks/decode-smollm2-cpu")["parts"]["real"]
    return {row["name"].removeprefix("kvlab ") for row in rows}


def of_limit(method: str) -> float:
    """Return the percentage of the speed of a full cache with as few entries, on SmolLM2."""
    rows = stored_file("benchmarks/decode-smollm2-cpu")["parts"]["real"]
    speed = {row["name"]: row["quartiles"][1] for row in rows}
    return 100 * speed[f"kvlab {method}"] / speed["transformers full cache of 512"]


@cache
def planned(
    spec: str, prompt: int, length: int, batch: int, budget: int, gpu: str = "h200", host: float = 0
) -> Plan:
    """Return the plan of a model of 8B shape, as ``kvlab plan`` makes it; host in microseconds."""
    held = _alone(spec, prompt, length, budget).with_batch(batch)
    plan = replace(held, hardware=HARDWARE[gpu], runtime=Runtime(host=host / 1e6))
    vars(plan).update(layers=held.layers, held=held.held)  # what takes the time
    return plan


@cache
def _alone(spec: str, prompt: int, length: int, budget: int) -> Plan:
    policy = methods.get(spec, budget if methods.takes_budget(spec) else None)
    return Plan(SHAPES["llama-3.1-8b"], HARDWARE["h200"], policy, prompt, length)


def planned_ms(spec: str, prompt: int, budget: int, batch: int = 1) -> float:
    """Return the milliseconds of a token while 64 are written."""
    return 1e3 * planned(spec, prompt, 64, batch, budget).decode_seconds / 64


def pays(spec: str, length: int, batch: int, gpu: str = "h200", host: float = 0) -> int | None:
    """Return from how many tokens on a method with a quarter of the entries saves time."""
    quarter = -(-(512 + length) // 4)
    plans = (planned(each, 512, length, batch, quarter, gpu, host) for each in (spec, "full"))
    return pays_from(*plans)


def over_planned(method: str, prompt: int, texts: int = 1) -> float:
    """Return how many times as long as planned a token took, with a quarter of the entries."""
    return token_ms(method, prompt, texts) / planned_ms(method, prompt, prompt // 4, texts)


def printed(what: str) -> tuple[float, float]:
    """Return what a paper prints of memory or time, and what the cost model says."""
    (found,) = (each for each in _printed() if each.what == what)
    return found.printed, found.modelled


@cache
def _printed() -> list[PaperFigure]:
    return [*all_figures()]


EVICTING = ("streaming_llm@protected=first4", "random:h2o", "tova", "h2o", "caote:h2o")
"""Methods timed inside vLLM."""
MEMORY = (1.0, 0.5, 0.25)
"""Shares of the blocks that all requests need, which vLLM has."""


def served(prompt: int, memory: float, method: str, key: str) -> Any:
    """Return a figure of a row of vLLM's times; ``full`` is vLLM's own cache."""
    name = CONTROL if method == "full" else method
    pools = with_speeds(stored_file("benchmarks/vllm-cpu"), str(prompt))
    (found,) = (row for row in pools if row["share"] == memory and row["method"] == name)
    return found[key]


def times_full(prompt: int, memory: float) -> list[float]:
    """Return the speed of each method in vLLM, as a multiple of the full cache's."""
    return [served(prompt, memory, method, "times_full") for method in EVICTING]


def fewer_than_random(method: str, prompt: int) -> list[float]:
    """Return how many percent fewer tokens per second than ``random:h2o``, for each `MEMORY`."""
    speeds = (
        [served(prompt, memory, name, "tokens_per_second") for memory in MEMORY]
        for name in (method, "random:h2o")
    )
    return [100 - 100 * a / b for a, b in zip(*speeds, strict=True)]


def in_blocks() -> list[dict[str, Any]]:
    """Return the rows with eviction within prompts, with speeds over the full cache's."""
    return with_speeds(stored_file("vllm_in_blocks"), "1024")


def times_full_in_blocks(share: float) -> list[float]:
    """Return the median speed of each of these methods, as a multiple of the full cache's."""
    rows = (row for row in in_blocks() if row["share"] == share and row["blocks"])
    return [row["times_full"] for row in rows]


def at_once_in_blocks() -> int:
    """Return how many requests the full cache holds at once with a quarter of the memory."""
    rows = (row for row in in_blocks() if row["share"] == 0.25 and row["method"] == CONTROL)
    return next(rows)["at_once"]


def agreed() -> dict[str, int]:
    """Return how many rows of vLLM's agreement there are, and how many agree in every token."""
    rows = stored_file("vllm_agreement")["rows"]
    return {
        "rows": len(rows),
        "agree": sum(row["agreed"] == row["tokens"] for row in rows),
        "controls": sum("control" in row["setting"] for row in rows),
    }


def decisions_apart(model: str, side: str) -> list[int]:
    """Return how many decisions in bfloat16 part from float32's, and how many were compared.

    ``side``: "vllm", or "bfloat16" for transformers alone.
    """
    rows = [x for x in stored_file("vllm_bfloat16")["rows"] if x["model"] == model]
    return [sum(x[f"{side} float32"][name] for x in rows) for name in ("parted", "decisions")]


FUNCTIONS = {
    **{each.__name__: each for each in (token_ms, least_ms, peak_gib, timed, kernel_us)},
    **{each.__name__: each for each in (of_copying, copied_us, of_limit)},
    **{each.__name__: each for each in (planned, planned_ms, pays, over_planned, printed)},
    **{each.__name__: each for each in (served, times_full, fewer_than_random, agreed)},
    **{each.__name__: each for each in (times_full_in_blocks, at_once_in_blocks, decisions_apart)},
    **{"EVICTING": EVICTING, "MEMORY": MEMORY, "LAUNCHES": LAUNCHES},
    **{"SHAPES": SHAPES, "HARDWARE": HARDWARE, "Runtime": Runtime},
}
"""What expressions of the ledger may call besides its own."""
