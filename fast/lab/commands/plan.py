"""``kvlab plan``: memory, time and devices, from the cost model. Needs the reference alone."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kvlab.fast.lab.commands.options import at_least, prepare_output, read_methods
from kvlab.fast.lab.commands.terminal import AsJson, console, working
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.measured import measured_figures
from kvlab.reference import methods as registry
from kvlab.reference.planner.cost import Plan, Runtime, fleet
from kvlab.reference.planner.figures import PaperFigure, paper_figures
from kvlab.reference.planner.hardware import HARDWARE, Hardware, find_hardware
from kvlab.reference.planner.shape import SHAPES, Shape, find_shape
from kvlab.reference.selection import budget_entries

DEFAULT_METHODS = "full streaming_llm h2o tova caote:h2o lazy_eviction kivi desirekv"
GB = 1e9
MOST_TOKENS = 200_000
"""A policy is asked once per token."""


@dataclass(frozen=True)
class Asked:
    """What to plan for."""

    shape: Shape
    hardware: Hardware
    prompt: int
    length: int
    batch: int | None
    block_size: int | None
    runtime: Runtime
    users: int
    speed: float
    spread: bool


@dataclass(frozen=True)
class Row:
    """One method; figures are None where ``refusal`` says why."""

    method: str
    budget: int | None
    refusal: str | None = None
    entries: int | None = None
    """Most per KV head and layer."""
    bits: float | None = None
    """Mean per stored element after the last token."""
    sequence_gb: float | None = None
    """Cache and state of one sequence at its fullest, 10⁹ bytes."""
    largest_batch: int | None = None
    batch: int | None = None
    """Sequences that memory and time are given for."""
    memory_gb: float | None = None
    first_token_seconds: float | None = None
    step_milliseconds: float | None = None
    """Mean over the written tokens."""
    tokens_per_second: float | None = None
    """Of the whole batch, the prompts' time included."""
    policy_share: float | None = None
    """Share of the decoding time that goes into observing, scoring, selecting and moving."""
    devices: int | None = None
    """For all users."""
    users_per_device: int | None = None
    limit: str | None = None


def plan(
    model: Annotated[
        str,
        typer.Option(help=f"config.json, its directory, or one of {', '.join(SHAPES)}."),
    ] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(HARDWARE)}.")] = "h200",
    methods: Annotated[
        str, typer.Option("--methods", "--method", help="Registry syntax, separated by blanks.")
    ] = DEFAULT_METHODS,
    budget: Annotated[
        str, typer.Option(help="Entries, or percent of prompt and length together.")
    ] = "25%",
    prompt: Annotated[int, typer.Option(help="Tokens given.")] = 512,
    length: Annotated[int, typer.Option(help="Tokens written.")] = 16384,
    batch: Annotated[
        int | None, typer.Option(help="Sequences at once; default: as many as fit.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Read prompts in blocks of so many tokens.")
    ] = None,
    users: Annotated[int, typer.Option(help="Who all write at the same time.")] = 1_000_000,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread", help="Users are anywhere in their texts; default: all at their fullest."
        ),
    ] = False,
    speed: Annotated[
        float, typer.Option(help="Tokens per second that every user gets, at the slowest.")
    ] = 0.0,
    bandwidth_share: Annotated[
        float, typer.Option(help="Of the peak bandwidth, that kernels reach.")
    ] = Runtime.bandwidth_share,
    flops_share: Annotated[
        float, typer.Option(help="Of the peak arithmetic, that matrix products reach.")
    ] = Runtime.flops_share,
    host: Annotated[
        float, typer.Option(help="Microseconds of the host per kernel; 0: CUDA graphs.")
    ] = 0.0,
    papers: Annotated[
        bool, typer.Option("--papers", help="Print the papers' figures beside the model's.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="HTML report to write; with --papers, a Markdown table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan memory, time and devices for a model under a method; nothing is run."""
    if report is not None:
        prepare_output("report", report)
    if papers:
        show_papers(as_json, report)
        return
    for name, value, most in (
        ("prompt", prompt, MOST_TOKENS),
        ("length", length, MOST_TOKENS),
        ("users", users, 10**12),
    ):
        at_least(name, value, 1)
        if value > most:
            raise ValueError(f"{name} = {value} must be at most {most:,}")
    at_least("speed", speed, 0)
    at_least("host", host, 0)
    if batch is not None:
        at_least("batch", batch, 1)
    asked = Asked(
        find_shape(model),
        find_hardware(gpu),
        prompt,
        length,
        batch,
        block_size,
        Runtime(bandwidth_share, flops_share, host=host * 1e-6),
        users,
        speed,
        spread,
    )
    specs = read_methods(methods)
    entries = budget_entries(budget, prompt + length)
    found: list[tuple[Row, Plan | None]] = []
    for spec in specs:
        with working(f"planning {spec}"):
            found.append(planned(asked, spec, entries))
    rows = [row for row, _ in found]
    if all(row.refusal for row in rows):
        raise ValueError(f"{rows[0].method}: {rows[0].refusal}")
    if report is not None:
        write_report(asked, found, report)
    if as_json:
        print(
            json.dumps({"asked": asdict(asked), "methods": [asdict(row) for row in rows]}, indent=1)
        )
        return
    console.print(table(asked, rows))
    console.print(CAPTION, style="dim")
    if report is not None:
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


CAPTION = (
    "A roofline, not a measurement (docs/plan.md). entries: most per KV head · bits: per stored "
    "element at the end · GB/seq: cache and state at their fullest · fits: sequences on one device "
    "· ms: mean step of decoding at that batch · tokens/s: of the device, prompts included · "
    "policy: its share of the decoding time · devices: for all users"
)


def planned(asked: Asked, spec: str, budget: int) -> tuple[Row, Plan | None]:
    """Plan for one method.

    Raises:
        ValueError: if the method is unknown or an option of it is not allowed.
    """
    entries = budget if takes_budget(spec) else None
    try:
        plan = Plan(
            asked.shape,
            asked.hardware,
            registry.get(spec, entries),
            asked.prompt,
            asked.length,
            asked.batch or 1,
            asked.block_size,
            asked.runtime,
            asked.spread,
        )
        servers = fleet(plan, asked.users, asked.speed, asked.batch)
    except ValueError as error:
        return Row(spec, entries, str(error)), None
    plan = plan.with_batch(servers.batch)
    return (
        Row(
            method=spec,
            budget=entries,
            entries=plan.held.peak,
            bits=float(plan.held.bits[-1]),
            sequence_gb=plan.sequence_bytes / GB,
            largest_batch=plan.largest_batch,
            batch=plan.batch,
            memory_gb=plan.memory.total / GB,
            first_token_seconds=plan.prefill_seconds,
            step_milliseconds=1e3 * plan.decode_seconds / plan.generated,
            tokens_per_second=plan.tokens_per_second,
            policy_share=plan.eviction_share,
            devices=servers.devices,
            users_per_device=servers.batch,
            limit=servers.limit,
        ),
        plan,
    )


COLUMNS = (
    "entries",
    "bits",
    "GB/seq",
    "fits",
    "batch",
    "GB",
    "ms",
    "tokens/s",
    "policy",
    "devices",
)


def cells(row: Row) -> list[str]:
    """Format the figures of a row, or its refusal."""
    if row.refusal is not None:
        return [row.refusal]
    return [
        f"{row.entries:,}",
        f"{row.bits:.1f}",
        f"{row.sequence_gb:.3f}",
        f"{row.largest_batch:,}",
        f"{row.batch:,}",
        f"{row.memory_gb:.1f}",
        f"{row.step_milliseconds:.2f}",
        f"{row.tokens_per_second:,.0f}",
        f"{100 * (row.policy_share or 0):.1f} %",
        f"{row.devices:,}",
    ]


def title(asked: Asked) -> str:
    """Say what is planned for."""
    return (
        f"{asked.shape.name} on {asked.hardware.name}: {asked.prompt:,} tokens given, "
        f"{asked.length:,} written; {asked.users:,} users at once"
    )


def table(asked: Asked, rows: Sequence[Row]) -> Table:
    """Lay the figures out."""
    result = Table(
        title=escape(title(asked)),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
    )
    result.add_column("method", overflow="fold", min_width=14)
    for name in COLUMNS:
        result.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.refusal is None:
            result.add_row(row.method, *cells(row))
        else:
            result.add_row(f"{row.method}\n[dim]{row.refusal}[/dim]", *["–"] * len(COLUMNS))
    return result


def write_report(asked: Asked, found: Sequence[tuple[Row, Plan | None]], path: Path) -> None:
    """Write the table and what happens over the tokens."""
    from kvlab.fast.lab.pages import TablePage

    plans = [(row.method, plan) for row, plan in found if plan is not None]
    runtime = asked.runtime
    TablePage(
        title="kvlab plan",
        introduction=f"{title(asked)}. Source of the hardware's figures: {asked.hardware.source}. "
        f"Kernels reach {runtime.bandwidth_share:.0%} of the bandwidth and "
        f"{runtime.flops_share:.0%} of the arithmetic; {runtime.memory_share:.0%} of the memory "
        "may be used.",
        columns=("method", *COLUMNS),
        rows=[(row.method, *cells(row)) for row, _ in found],
        caption=CAPTION,
        plots=[
            ("Memory of one sequence", memory_over_tokens(plans)),
            ("Time of a step", time_over_tokens(plans)),
        ],
    ).write(path)


def memory_over_tokens(plans: Sequence[tuple[str, Plan]]) -> str:
    """GB of keys and values of one sequence over its tokens, as SVG."""
    from kvlab.fast.lab.pages import color, plot, svg

    figure, axes = plot()
    for number, (name, plan) in enumerate(plans):
        heads = plan.shape.layers * plan.shape.kv_heads
        curve = heads * plan.held.elements(plan.shape.head_dim) / 8 / GB
        axes.plot(curve, label=name, linewidth=1.2, color=color(number, len(plans)))
    axes.set(xlabel="tokens", ylabel="GB of keys and values", ylim=(0, None))
    return svg(figure)


def time_over_tokens(plans: Sequence[tuple[str, Plan]]) -> str:
    """Milliseconds of every step of decoding, mean over 64 tokens, as SVG."""
    import numpy as np

    from kvlab.fast.lab.pages import color, plot, svg

    figure, axes = plot()
    for number, (name, plan) in enumerate(plans):
        milliseconds = 1e3 * plan.step_seconds
        window = min(64, len(milliseconds))
        smooth = np.convolve(milliseconds, np.full(window, 1 / window), mode="valid")
        label = f"{name}, batch {plan.batch}"
        axes.plot(smooth, label=label, linewidth=1.2, color=color(number, len(plans)))
    axes.set(xlabel="tokens written", ylabel="ms per step", ylim=(0, None))
    return svg(figure)


def show_papers(as_json: bool, report: Path | None) -> None:
    """Print the papers' figures beside the model's."""
    with working("planning what the papers measured"):
        found = [*paper_figures(), *measured_figures()]
    if report is not None:
        report.write_text(papers_markdown(found), encoding="utf-8")
    if as_json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in found], indent=1))
        return
    console.print(papers_table(found))


def papers_table(found: Sequence[PaperFigure]) -> Table:
    """Lay the figures out."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("paper", "where", "figure"):
        result.add_column(name, overflow="fold")
    for name in ("printed", "model", "ratio"):
        result.add_column(name, justify="right", no_wrap=True)
    for each in found:
        what = f"{each.what}\n[dim]{each.note}[/dim]" if each.note else each.what
        result.add_row(
            each.paper,
            each.source,
            what,
            f"{each.printed:g} {each.unit}",
            f"{each.modelled:.4g}",
            f"{each.ratio:.2f}",
        )
    return result


def papers_markdown(found: Sequence[PaperFigure]) -> str:
    """Write the figures as a table for the docs."""
    lines = ["| paper | where | figure | printed | model | ratio |", "|---|---|---|--:|--:|--:|"]
    for each in found:
        what = f"{each.what}; {each.note}" if each.note else each.what
        printed, modelled = f"{each.printed:g} {each.unit}", f"{each.modelled:.4g}"
        cells = (each.paper, each.source, what, printed, modelled, f"{each.ratio:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
