"""What a method's page shows of the package at work: the picture of what is kept, and the costs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kvlab.fast.lab.drawing import Picture
from kvlab.fast.lab.tables import Table
from kvlab.fast.lab.viewing import Source, problem_source
from kvlab.reference import methods
from kvlab.reference.policy import Policy
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.cost import Plan
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from kvlab.reference.simulator.timeline import Run
from study.costs import entry_bytes, entry_columns, memory_held, work_per_token
from study.kept import kept_over_steps

Meta = Mapping[str, Any]

PROBLEM = 0
"""Held-out jump program that the pictures show, as in ``kvlab view``."""
SHARE = "50%"
BUDGET, PROMPT, GENERATED = 1024, 2048, 2304
"""Entries and tokens for which answers and costs are shown."""
MODEL, GPU = "llama-3.1-8b", "h200"


def policy(meta: Meta) -> Policy:
    """Return the composition whose answers and costs a page shows."""
    spec = meta.get("policy", meta["method"])
    return methods.get(spec, BUDGET if methods.takes_budget(spec) else None)


# --- picture -------------------------------------------------------------------------------------


def pictures(meta: Meta) -> str:
    """Return the pictures of a page, and what they show."""
    return "\n\n".join([*(unsearched(drawn(spec)) for spec in meta["picture"]), caption(meta)])


def unsearched(picture: Picture) -> str:
    """Return a picture as HTML; the numbers on its axes are nothing to search for."""
    return picture.figure.replace("<figure ", "<figure data-search-exclude ", 1)


@cache
def drawn(spec: str) -> Picture:
    """Draw what a method keeps while the embedded model runs a program at half the memory."""
    return kept_over_steps(recorded(spec))


def caption(meta: Meta) -> str:
    """Say what the pictures show."""
    specs = meta["picture"]
    named = ", then ".join(f"`{spec}`" for spec in specs)
    allowed = "memory as its own rule has it"
    if methods.takes_budget(specs[0]):
        allowed = f"{half()} entries, half of what the full cache holds in the end"
    outcomes = ["right" if recorded(spec).solved else "wrong" for spec in specs]
    outcome = outcomes[0] if len(set(outcomes)) == 1 else ", then ".join(outcomes)
    return (
        f"*{named} on a held-out program of the [embedded model](../view.md): {allowed}. A row "
        "is a position of the text, a column a step. Blue is kept: the paler, the fewer bits, or "
        "the fewer of the model’s layers and KV heads; grey is evicted. What the model writes is "
        f"{outcome}. All methods are shown on this program.*"
    )


def recorded(spec: str) -> Run:
    """Record the embedded model under a method, at half the memory if it takes a budget."""
    return run_problem(spec, half() if methods.takes_budget(spec) else None)


@cache
def half() -> int:
    """Return half of the entries that the full cache holds in the end, rounded up."""
    return budget_entries(SHARE, run_problem("full", None).read)


@cache
def run_problem(spec: str, budget: int | None) -> Run:
    """Let the embedded model run the program under a method."""
    return source().record(methods.get(spec, budget), budget=budget)


@cache
def source() -> Source:
    """Return the model with the program, as ``kvlab view`` plays them."""
    return problem_source(PROBLEM)


# --- state, cost ---------------------------------------------------------------------------------


def costs(meta: Meta) -> str:
    """Say what is remembered of an entry, and what deciding takes, by the planner's count."""
    composed = policy(meta)
    plan, full = planned(composed), planned(methods.get("full"))
    beside = ", ".join(f"`{name}`" for name in entry_columns(composed))
    budget = f", {BUDGET:,} entries" if methods.takes_budget(composed.name) else ""
    return "\n\n".join(
        [
            f"Besides its key and value an entry carries {beside}: {entry_bytes(composed)} bytes "
            f"per KV head and layer. These are counts, not measurements: `kvlab plan` for "
            f"`{composed.name}`{budget}; {plan.shape.name} with 16-bit weights, a prompt of "
            f"{PROMPT:,} tokens and {GENERATED:,} more, one sequence, on an {plan.hardware.name}.",
            shown(memory_held(plan, full)),
            "Per generated token, for one KV head of one layer, means over all steps:",
            shown(work_per_token(plan)),
            *([] if plan.policy_work else ["While it writes, nothing is decided."]),
        ]
    )


@cache
def planned(composed: Policy) -> Plan:
    """Return the plan whose counts a page shows."""
    return Plan(SHAPES[MODEL], HARDWARE[GPU], composed, PROMPT, GENERATED)


def shown(table: Table) -> str:
    """Return a table as the notebooks show it."""
    return f'<div class="kvlab-shown kvlab-counts">{table._repr_html_()}</div>'
