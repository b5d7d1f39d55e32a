"""What a cache and a policy cost, by the planner's count: bytes and time."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from kvlab.fast.lab.drawing import RED, Picture, canvas, finish
from kvlab.fast.lab.tables import Column, Table, tabulate
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Policy
from kvlab.reference.simulator.cost import Kernel, Plan
from kvlab.reference.simulator.sizes import WIDE, Hardware, Shape
from kvlab.reference.simulator.work import NUMBER
from kvlab.reference.step import Block, empty_cache, step
from kvlab.reference.streams import rotary

GB = 1e9

# --- models and devices ---------------------------------------------------------------------------


def cache_sizes(shapes: Sequence[Shape], tokens: int) -> Table:
    """List what one token, and one sequence of ``tokens`` tokens, takes in the cache of models.

    The break-even is the number of cached tokens that weigh as much as the model itself.
    """
    columns = (
        Column("model", "name"),
        Column("layers"),
        Column("KV heads", "kv_heads"),
        Column("channels", "head_dim"),
        Column("weights, GB", lambda shape: shape.weight_bytes / GB, ".1f"),
        Column("per token, KiB", lambda shape: shape.token_bytes / 1024, ".0f"),
        Column(f"{tokens:,} tokens, GB", lambda shape: tokens * shape.token_bytes / GB, ".2f"),
        Column("break-even, tokens", lambda s: s.weight_bytes / s.token_bytes, ",.0f"),
    )
    return tabulate(shapes, columns)


def memory_over_tokens(
    shapes: Sequence[Shape], hardware: Hardware, batch: int, tokens: int
) -> Picture:
    """Draw weights and cache of ``batch`` sequences over their length, and a device's memory."""
    figure, (axes,) = canvas()
    length, available = np.linspace(0, tokens, 100), hardware.memory / GB
    for shape in shapes:
        line = (shape.weight_bytes + batch * shape.token_bytes * length) / GB
        axes.plot(length, line, label=shape.name, linewidth=1.4)
    axes.axhline(available, color=RED, linestyle="--", linewidth=1)
    above = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 8, "color": RED}
    axes.annotate(hardware.name, (0, available), **above)
    axes.set(xlabel=f"tokens of each of {batch} sequences", ylabel="GB: weights and cache")
    axes.set(xlim=(0, tokens), ylim=(0, 2 * available))
    return finish(
        figure,
        f"Weights and cache of {batch} sequences grow with their length and pass the memory of "
        f"{hardware.name}.",
    )


def time_of_steps(plan: Plan) -> Picture:
    """Draw where the time of a step of decoding goes, over the tokens written, stacked."""
    figure, (axes,) = canvas()
    seconds = [each.seconds(plan.hardware, plan.runtime) for each in plan.kernels.values()]
    times = 1e3 * np.stack([np.broadcast_to(each, plan.generated) for each in seconds])
    steps = np.linspace(0, plan.generated - 1, 200).astype(int)
    base = np.zeros(len(steps))
    for name, milliseconds in zip(plan.kernels, times[:, steps], strict=True):
        axes.fill_between(steps, base, base + milliseconds, label=name, alpha=0.8)
        base = base + milliseconds
    axes.set(xlabel="tokens written", ylabel="milliseconds per step")
    axes.set(xlim=(0, plan.generated), ylim=(0, None))
    axes.legend(*map(reversed, axes.get_legend_handles_labels()), fontsize=7.5, frameon=False)
    return finish(
        figure,
        f"Time of a step of {plan.shape.name}, batch {plan.batch}: attention, which reads the "
        "cache, grows while the rest stays.",
    )


def servings(plans: Mapping[str, Plan]) -> Table:
    """List how many sequences fit on the plans' device under each method, and how fast it is."""
    filled = {name: plan.with_batch(max(1, plan.largest_batch)) for name, plan in plans.items()}
    columns = (
        Column("method", lambda each: each[0]),
        Column("entries", lambda each: each[1].held.peak, ","),
        Column("per sequence, GB", lambda each: each[1].sequence_bytes / GB, ".2f"),
        Column("sequences that fit", lambda each: plans[each[0]].largest_batch, ","),
        Column(
            "mean step, ms", lambda each: 1e3 * each[1].decode_seconds / each[1].generated, ".1f"
        ),
        Column("tokens/s", lambda each: each[1].tokens_per_second, ",.0f"),
    )
    return tabulate(filled.items(), columns)


# --- one policy -----------------------------------------------------------------------------------

MEANING = {
    "attention": "attention itself",
    "observe": "update what is remembered",
    "score": "rate the entries",
    "select": "find what to evict",
    "move": "move the survivors together",
    "quantise": "quantise",
}


def work_per_token(plan: Plan) -> Table:
    """List what one KV head of one sequence takes per generated token, means over all of them."""
    attention = plan.kernels["attention"]
    heads = plan.batch * plan.shape.layers * plan.shape.kv_heads
    one_head = Kernel(attention.bytes / heads, attention.flops / heads, attention.launches)
    columns = (
        Column("work", lambda each: MEANING[each[0]]),
        Column("steps", lambda each: np.count_nonzero(each[1].launches), ","),
        Column("KiB moved", lambda each: each[1].bytes.mean() / 1024, ",.1f"),
        Column("kFLOP", lambda each: each[1].flops.mean() / 1000, ",.1f"),
    )
    return tabulate({"attention": one_head, **plan.policy_work}.items(), columns)


def memory_held(plan: Plan, full: Plan) -> Table:
    """List what one sequence holds, beside the full cache."""
    mine, whole = held(plan), held(full)
    rows = [(name, mine[name], whole[name]) for name in mine]
    return Table(("one sequence", "this method", "full cache"), rows)


def held(plan: Plan) -> dict[str, str]:
    """Name and write what one sequence holds."""
    written = slice(plan.prompt, None)
    heads, MiB = plan.shape.layers * plan.shape.kv_heads, 2**20
    vectors = heads * plan.held.elements(plan.shape.head_dim)[written].max() / 8
    state = heads * plan.held.entries[written].max() * entry_bytes(plan.policy)
    queries = plan.shape.layers * remembered_bytes(plan.policy, plan.shape, plan.prompt)
    return {
        "entries per KV head during a step, at most": f"{plan.held.attended[written].max():,}",
        "bits per stored element, at the end": f"{plan.held.bits[-1]:.2f}",
        "keys and values after a step, at most": f"{vectors / MiB:,.0f} MiB",
        "positions and scores after a step, at most": f"{state / MiB:,.1f} MiB",
        "remembered queries": f"{queries / MiB:,.1f} MiB" if queries else "none",
        "share of decoding time that deciding takes": f"{plan.eviction_share:.1%}",
    }


def entry_columns(policy: Policy) -> tuple[str, ...]:
    """Return the numbers that are kept beside the key and value of every entry."""
    return "position", *policy.score.columns


def entry_bytes(policy: Policy) -> int:
    """Bytes of those numbers: what an entry takes besides its key and its value."""
    return NUMBER * len(entry_columns(policy))


@cache
def remembered_bytes(policy: Policy, shape: Shape, prompt: int) -> int:
    """Bytes of the queries that one layer remembers, at 16 bits, once the prompt is read.

    The policy observes a prompt of zeros, for one KV head.
    """
    clock = Clock(prompt, prompt, prompt)
    if policy.schedule.ended(clock):  # PyTorch's cache has freed them then
        return 0
    queries = np.zeros((1, shape.group, prompt, shape.head_dim))
    keys = np.zeros((1, prompt, shape.head_dim))
    block = Block(clock, 0, queries, keys, keys, np.full(prompt, np.nan), rotary)
    state = step(policy, empty_cache(policy, 1, shape.head_dim), block).cache.state
    found = state.stream.get("queries")
    return 0 if found is None else WIDE * shape.kv_heads * found.size
