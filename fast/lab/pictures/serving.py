"""What the cache costs: tables and drawings of the cost model's plans."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from kvlab.fast.lab.pictures.picture import Picture, canvas, finish
from kvlab.fast.lab.pictures.table import Table
from kvlab.reference.generate import Session
from kvlab.reference.notation import Array
from kvlab.reference.planner.cost import Plan, fleet
from kvlab.reference.planner.hardware import Hardware
from kvlab.reference.planner.shape import Shape

GB = 1e9
STRAIGHT = 1e-9
"""Change of slope, as a share of the largest value, that nobody sees."""


def cache_sizes(shapes: Sequence[Shape], tokens: int) -> Table:
    """List what one token, and one sequence of ``tokens`` tokens, takes in the cache of models.

    ``break-even`` is the number of cached tokens that weigh as much as the model itself.
    """
    return Table(
        (
            "model",
            "layers",
            "KV heads",
            "channels",
            "weights",
            "per token",
            f"{tokens:,} tokens",
            "break-even",
        ),
        [
            (
                shape.name,
                str(shape.layers),
                str(shape.kv_heads),
                str(shape.head_dim),
                f"{shape.weight_bytes / GB:.1f} GB",
                f"{shape.token_bytes / 1024:.0f} KiB",
                f"{tokens * shape.token_bytes / GB:.2f} GB",
                f"{shape.weight_bytes / shape.token_bytes:,.0f} tokens",
            )
            for shape in shapes
        ],
    )


def growth(sessions: Sequence[Session], shape: Shape) -> Picture:
    """Draw the bytes that caches of a running generation hold, and the formula's line."""
    figure, (axes,) = canvas()
    seen = np.array([session.seen for session in sessions])
    axes.plot(
        seen,
        [session.nbytes / 1024 for session in sessions],
        "o",
        markersize=2.5,
        label="bytes held",
    )
    line = f"{shape.token_bytes} bytes a token"
    axes.plot(seen, seen * shape.token_bytes / 1024, linewidth=0.9, label=line)
    axes.set(xlabel="tokens seen", ylabel="KiB of keys and values", xlim=(0, None), ylim=(0, None))
    return finish(figure, "Bytes in the cache grow in proportion to the tokens seen.")


def memory_over_tokens(
    shapes: Sequence[Shape], hardware: Hardware, batch: int, tokens: int
) -> Picture:
    """Draw weights and cache of ``batch`` sequences over their length, and a device's memory."""
    figure, (axes,) = canvas()
    length = np.linspace(0, tokens, 100)
    for shape in shapes:
        line = (shape.weight_bytes + batch * shape.token_bytes * length) / GB
        axes.plot(length, line, label=shape.name, linewidth=1.4)
    axes.axhline(hardware.memory / GB, color="tab:red", linestyle="--", linewidth=1)
    axes.annotate(
        hardware.name,
        (0, hardware.memory / GB),
        textcoords="offset points",
        xytext=(4, 4),
        fontsize=8,
        color="tab:red",
    )
    axes.set(xlabel=f"tokens of each of {batch} sequences", ylabel="GB: weights and cache")
    axes.set(xlim=(0, tokens), ylim=(0, 2 * hardware.memory / GB))
    return finish(
        figure,
        f"Weights and cache of {batch} sequences grow with their length and pass the memory of "
        f"{hardware.name}.",
    )


def time_of_steps(plan: Plan) -> Picture:
    """Draw where the time of a step of decoding goes, over the tokens written, stacked."""
    figure, (axes,) = canvas()
    kernels = {
        name: 1e3 * kernel.seconds(plan.hardware, plan.runtime)
        for name, kernel in plan.kernels.items()
    }
    times = np.stack([np.broadcast_to(each, plan.generated) for each in kernels.values()])
    steps = corners(times)
    base = np.zeros(len(steps))
    for number, (name, milliseconds) in enumerate(zip(kernels, times[:, steps], strict=True)):
        shade = f"C{number}"
        axes.fill_between(steps, base, base + milliseconds, label=name, color=shade, alpha=0.8)
        base = base + milliseconds
    axes.set(xlabel="tokens written", ylabel="milliseconds per step", ylim=(0, None))
    axes.set(xlim=(0, plan.generated))
    axes.legend(*map(reversed, axes.get_legend_handles_labels()), fontsize=7.5, frameon=False)
    return finish(
        figure,
        f"Time of a step of {plan.shape.name}, batch {plan.batch}: attention, which reads the "
        "cache, grows while the rest stays.",
    )


def corners(curves: Float[Array, "curves steps"]) -> Int[Array, " corners"]:
    """Return the steps that are needed to draw these curves: their ends, and where one bends."""
    bend = np.abs(np.diff(curves, n=2)).max(axis=0)
    bends = 1 + np.flatnonzero(bend > STRAIGHT * np.abs(curves).max())
    return np.union1d(bends, [0, curves.shape[1] - 1])


def servings(plans: Mapping[str, Plan]) -> Table:
    """List how many sequences fit on the plans' device under each method, and how fast it is."""
    rows = []
    for name, plan in plans.items():
        most = plan.with_batch(max(1, plan.largest_batch))
        rows.append(
            (
                name,
                f"{most.held.peak:,}",
                f"{most.sequence_bytes / GB:.2f} GB",
                f"{plan.largest_batch:,}",
                f"{1e3 * most.decode_seconds / most.generated:.1f} ms",
                f"{most.tokens_per_second:,.0f}",
            )
        )
    columns = ("method", "entries", "per sequence", "sequences that fit", "a step", "tokens/s")
    return Table(columns, rows)


def fleets(plans: Mapping[str, Plan], users: int, least_speed: float) -> Table:
    """List the devices that ``users`` need under each method, at a speed for each of them."""
    rows = []
    for name, plan in plans.items():
        needed = fleet(plan, users, least_speed)
        rows.append(
            (
                name,
                f"{needed.batch:,}",
                f"{needed.tokens_per_second:.1f}",
                needed.limit,
                f"{needed.devices:,}",
            )
        )
    columns = ("method", "users per GPU", "tokens/s per user", "limited by", "GPUs")
    return Table(columns, rows)
