"""What a policy's decisions cost: the planner's counts, as tables."""

from collections.abc import Iterator

import numpy as np

from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.accounting import NUMBER
from kvlab.reference.planner.cost import Kernel, Plan
from kvlab.reference.planner.shape import WIDE, Shape
from kvlab.reference.policy import Block, Clock, Policy, empty_cache, step

MEANING = {
    "attention": "attention itself",
    "observe": "update what is remembered",
    "score": "rate the entries",
    "select": "find who goes",
    "move": "move the survivors together",
    "quantise": "quantise",
}


def decisions(plan: Plan) -> Table:
    """List what one KV head of one sequence takes per generated token, means over all of them."""
    attention = plan.kernels["attention"]
    heads = plan.batch * plan.shape.layers * plan.shape.kv_heads
    one_head = Kernel(attention.bytes / heads, attention.flops / heads, attention.launches)
    return Table(
        ("work", "runs", "KiB moved", "kFLOP"),
        [
            row(MEANING[name], work)
            for name, work in {"attention": one_head, **plan.policy_work}.items()
        ],
    )


def row(name: str, work: Kernel) -> tuple[str, str, str, str]:
    """Return one kernel's row."""
    runs = int(np.count_nonzero(work.launches))
    return (
        name,
        often(runs, len(work.launches)),
        f"{work.bytes.mean() / 1024:,.1f}",
        f"{work.flops.mean() / 1000:,.1f}",
    )


def often(runs: int, steps: int) -> str:
    """Say at how many steps something happens."""
    if runs == steps:
        return "every step"
    return f"{runs:,} of {steps:,} steps"


def memory(plan: Plan, full: Plan) -> Table:
    """List what one sequence holds, beside the full cache."""
    return Table(
        ("one sequence", "this method", "full cache"),
        [
            (what, mine, whole)
            for (what, mine), (_, whole) in zip(held(plan), held(full), strict=True)
        ],
    )


def held(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield names and figures of what one sequence holds."""
    written = slice(plan.prompt, None)
    elements = plan.held.elements(plan.shape.head_dim)[written]
    heads = plan.shape.layers * plan.shape.kv_heads
    yield "entries per KV head during a step, at most", f"{plan.held.attended[written].max():,}"
    yield "bits per stored element, at the end", f"{plan.held.bits[-1]:.2f}"
    yield "keys and values after a step, at most", f"{heads * elements.max() / 8 / 2**20:,.0f} MiB"
    entries = plan.held.entries[written].max()
    state = heads * entries * entry_bytes(plan.policy)
    yield "positions and scores after a step, at most", f"{state / 2**20:,.1f} MiB"
    queries = plan.shape.layers * remembered_bytes(plan.policy, plan.shape, plan.prompt)
    yield "remembered queries", f"{queries / 2**20:,.1f} MiB" if queries else "none"
    yield "share of decoding time that deciding takes", f"{plan.eviction_share:.1%}"


def columns(policy: Policy) -> tuple[str, ...]:
    """Return the numbers that are kept beside the key and value of every entry."""
    return "position", *policy.score.columns


def entry_bytes(policy: Policy) -> int:
    """Bytes of those numbers: what an entry takes besides its key and its value."""
    return NUMBER * len(columns(policy))


def remembered(policy: Policy, shape: Shape, prompt: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of what a layer remembers besides its entries, once the prompt is read.

    Found by letting the policy look at a prompt of zeros, for one KV head.
    """
    rho, d = shape.group, shape.head_dim
    queries, keys = np.zeros((1, rho, prompt, d)), np.zeros((1, prompt, d))
    clock = Clock(prompt, prompt, prompt)
    block = Block(clock, 0, queries, keys, keys, np.full(prompt, np.nan))
    state = step(policy, empty_cache(policy, 1, d), block).cache.state
    return {name: array.shape for name, array in state.stream.items()}


def remembered_bytes(policy: Policy, shape: Shape, prompt: int) -> int:
    """Bytes of the queries that one layer remembers, at 16 bits an element."""
    found = remembered(policy, shape, prompt).get("queries")
    return 0 if found is None else WIDE * shape.kv_heads * int(np.prod(found))
