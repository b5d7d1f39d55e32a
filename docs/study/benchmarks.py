"""What benchmarks measured: tables, commands, machines and versions of each result.

    python -m study.benchmarks result.json

prints the tables of one file.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.fast.lab.benchmarks.memory import SETTLED
from kvlab.fast.lab.benchmarks.results import Result
from kvlab.fast.lab.reports import Block, Code, Heading, Text
from kvlab.fast.lab.tables import Column, Table, counted, percent, tabulate
from kvlab.fast.lab.terminal import console
from study.planner_figures import ROWS, TABLES, printed_milliseconds

RESULTS = Path(__file__).parent / "results" / "benchmarks"


def read(path: Path) -> Result:
    """Read a result.

    Raises:
        ValueError: if the file is no JSON object, or does not say where it was measured.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} must hold a JSON object")
    for name, kind in (("machine", dict), ("versions", dict), ("command", str)):
        if not isinstance(found.get(name), kind):
            raise ValueError(f"{path.name} must say its {name!r}")
    return found


def gpu_of(result: Result) -> str | None:
    """Return the name of the GPU that was measured, if one was."""
    return result["machine"].get("gpu")


def result_files(directory: Path = RESULTS) -> list[Path]:
    """Return the files of results, those of GPUs first, then by name."""
    return sorted(directory.glob("*.json"), key=lambda path: (not gpu_of(read(path)), path.name))


def blocks(directory: Path = RESULTS) -> Iterator[Block]:
    """Yield everything that was measured, file by file."""
    for path in result_files(directory):
        yield from result_blocks(path.name, read(path))


def result_blocks(name: str, result: Result) -> Iterator[Block]:
    """Yield one file of results: what was measured, with which command, where."""
    shown = layout(result)
    library = result["versions"].get("transformers")
    used = f"transformers {library}" if library else ""
    measured = result.get("method") or result.get("parameters", {}).get("model")
    parts = (shown.heading, measured, gpu_of(result) or "CPU", used)
    yield Heading(", ".join(part for part in parts if part))
    yield Text(f"From {name}.")
    yield from shown.contents(result)
    yield Code(result["command"])
    yield Text(machine_text(result))


def show(result: Result) -> None:
    """Print what was measured."""
    for block in layout(result).contents(result):
        if isinstance(block, Table):
            console.print(block.terminal())
        elif isinstance(block, Heading | Text):
            console.print(block.text, markup=False, highlight=False)


def machine_text(result: Result) -> str:
    """Say in one paragraph where a result was measured."""
    found = result["machine"]
    cores, memory, threads = (found.get(name) for name in ("cores", "memory_gib", "threads"))
    threaded = f", {counted(threads, 'thread')}" if threads else ""
    load = f", load average {found['load_before']:.1f}" if "load_before" in found else ""
    gpu = f"{found['gpu']}; " if found.get("gpu") else ""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items() if v is not None)
    return (
        f"Machine: {gpu}{found.get('processor')}, {cores} cores, {memory} GiB{threaded}{load}. "
        f"Versions: {versions}."
    )


@dataclass(frozen=True)
class Layout:
    """How the results of one benchmark are shown."""

    heading: str
    contents: Callable[[Result], Iterator[Block]]


def layout(result: Result) -> Layout:
    """Return the layout of a result; one key of the result says which benchmark wrote it.

    Raises:
        ValueError: if there is no such key.
    """
    for part, found in LAYOUTS.items():
        if part in result:
            return found
    raise ValueError(
        f"a result must hold one of {', '.join(LAYOUTS)}; it holds {', '.join(result)}"
    )


def speed(number: float) -> str:
    """Write tokens per second, with three digits at least."""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"


def low_to_high(each: Mapping[str, Any]) -> str:
    """Write the lowest and the highest round."""
    return f"{speed(each['lowest'])} to {speed(each['highest'])}"


# --- decode ---------------------------------------------------------------------------------------

DECODING = (
    Column("contender", "name"),
    Column("tokens/s", lambda each: speed(each["median"])),
    Column("lowest to highest", low_to_high),
    Column("of full", "share_of_full", percent),
    Column("entries", lambda each: each["peak"]["entries"]),
    Column("MiB", lambda each: each["peak"]["bytes"] / 2**20, ".1f"),
)


FIRST_TOKEN = Column("first token, s", lambda each: statistics.median(each["first_seconds"]), ".1f")
PARTS = {
    "constant": "Steps at constant size",
    "whole": "One long generation",
    "real": "A language model after a long prompt",
}


def decoding(result: Result) -> Iterator[Block]:
    """Yield tokens per second of the generations that were compared."""
    if not result["kvpress"]["measured"]:
        yield Text(f"kvpress was not measured: {result['kvpress']['reason']}.")
    asked = result["parameters"]
    if asked.get("cpu_time"):
        yield Text("Seconds are CPU time: others used the machine.")
    for name, outcomes in result["parts"].items():
        yield Heading(PARTS[name], 3)
        if name == "real":
            yield Text(
                f"{asked['model']} reads {asked['prompt']:,} tokens, at once unless a row says "
                f"otherwise, and writes {asked['tokens']:,}; {asked['entries']} entries may stay."
            )
        columns = (*DECODING, FIRST_TOKEN) if name == "real" else DECODING
        yield tabulate(outcomes, columns)


# --- memory ---------------------------------------------------------------------------------------


def resident(result: Result) -> Iterator[Block]:
    """Yield how the memory of a process grows while it writes."""
    readings = {int(token): reading / 2**20 for token, reading in result["resident_bytes"].items()}
    shown = {
        f"process at token {token:,}, MiB": f"{readings[token]:.1f}"
        for token in (500, 1000, SETTLED, 5000, 10_000, 20_000)
        if token in readings
    }
    facts = {
        "entries allowed": str(result["entries"]),
        "entries at the end": str(result["kept"]),
        "cache, MiB": f"{result['cache_bytes'] / 2**20:.2f}",
        **shown,
        "growth, KiB": f"{result['growth_bytes'] / 1024:.0f}",
    }
    yield Table(("what", "was"), list(facts.items()))


# --- kernels --------------------------------------------------------------------------------------


def gain(each: Mapping[str, Any]) -> str | None:
    """Say how much faster a kernel is than its rival; None if it has none."""
    return None if each.get("gain") is None else f"{each['gain']:.2f} × {each['rival']}"


KERNELS = (
    Column("kernel"),
    Column("batch"),
    Column("entries", format=","),
    Column("µs", lambda each: 1e6 * each["seconds"], ",.1f"),
    Column("of copying", "share_of_copy", percent),
    Column("gain", gain),
    Column("of its bytes", lambda each: each.get("share_of_gain"), percent),
)


def kernels(result: Result) -> Iterator[Block]:
    """Yield how long every kernel takes, and how near it comes to copying its bytes."""
    shape = result["shape"]
    copied = result["copy_bytes_per_second"] / 1e9
    yield Text(
        f"In {shape['dtype'].removeprefix('torch.')}: {shape['kv_heads']} KV heads, "
        f"{shape['group']} query heads each, head dimension {shape['head_dim']}. Copying reaches "
        f"{copied:,.0f} GB/s."
    )
    yield tabulate(result["results"], KERNELS)
    for each in result.get("left_out", ()):
        yield Text(
            f"Batch {each['batch']}, {each['entries']:,} entries: memory was not enough for what "
            f"comes after {each['all_after'] or 'the start'}."
        )


# --- end to end -----------------------------------------------------------------------------------


def signed_percent(share: float) -> str:
    """Write a difference."""
    return percent(share, sign="+")


def printed_over_full(each: Mapping[str, Any]) -> float | None:
    """Return what LazyEviction prints of the same: its latency over the full cache's, less 1."""
    if each["method"] not in ROWS or str(each["tokens"]) not in TABLES["throughput"]:
        return None
    method, full = (printed_milliseconds(each["tokens"], m)[0] for m in (each["method"], "full"))
    return method / full - 1


LATENCY = (
    Column("method"),
    Column("tokens", format=","),
    Column("budget", format=","),
    Column("ms per token", "ms_per_token", ".2f"),
    Column("over full", "over_full", signed_percent),
    Column("in the paper", printed_over_full, signed_percent),
)
CAPACITY = (
    Column("method"),
    Column("tokens", format=","),
    Column("sequences", "batch", ","),
    Column("tokens/s, all", "tokens_per_second", ",.0f"),
    Column("cache, GiB", "cache_bytes", lambda held: f"{held / 2**30:.1f}"),
)


def end_to_end(result: Result) -> Iterator[Block]:
    """Yield an 8B model beside the papers' own figures."""
    yield Text(f"Memory cap: {result['cap_bytes'] / 1e9:.0f} GB.")
    for name, columns in (("latency", LATENCY), ("capacity", CAPACITY)):
        if result[name]:
            yield tabulate(result[name], columns)


LAYOUTS: Mapping[str, Layout] = {
    "parts": Layout("Decoding speed", decoding),
    "resident_bytes": Layout("Memory of a long generation", resident),
    "copy_bytes_per_second": Layout("Kernels", kernels),
    "capacity": Layout("A whole model", end_to_end),
}
"""Layouts, by the key of a result that only this benchmark writes."""


def main(path: Annotated[Path, typer.Argument(help="What a benchmark wrote with --out.")]) -> None:
    """Print one file of results."""
    show(read(path))


if __name__ == "__main__":
    typer.run(main)
