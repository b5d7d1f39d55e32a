"""What was measured, from the JSON files in ``results``: tables, machines, versions, commands."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlab.fast.lab.benchmarks.memory import SETTLED
from kvlab.fast.lab.documents import Block, Cell, Code, Grid, Heading, Text

RESULTS = Path(__file__).parent / "results"

Result = Mapping[str, Any]


def result_files(directory: Path = RESULTS) -> list[Path]:
    """Return the files of results, those of GPUs first, then by name."""
    return sorted(directory.glob("*.json"), key=lambda path: (not gpu_of(read(path)), path.name))


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
    for name in ("machine", "versions"):
        if not isinstance(found.get(name), dict):
            raise ValueError(f"{path.name} must say its {name!r}, as an object")
    return found


def gpu_of(result: Result) -> str | None:
    """Return the name of the GPU that was measured, if one was."""
    return result["machine"].get("gpu")


def blocks(directory: Path = RESULTS) -> Iterator[Block]:
    """Yield everything that was measured, file by file."""
    for path in result_files(directory):
        yield from result_blocks(path.name, read(path))


def result_blocks(name: str, result: Result) -> Iterator[Block]:
    """Yield one file of results: what was measured, with which command, where."""
    heading, tables, command = layout(result)
    library = result["versions"].get("transformers")
    used = f"transformers {library}" if library else ""
    parts = (heading, result.get("method"), gpu_of(result) or "CPU", used)
    yield Heading(", ".join(part for part in parts if part))
    yield Text(f"From {name}.")
    yield from tables(result)
    if ran := command(result):
        yield Code(ran)
    yield Text(machine_text(result))


# --- where ----------------------------------------------------------------------------------------


def machine_text(result: Result) -> str:
    """Say in one paragraph where a result was measured."""
    found = result["machine"]
    cores, memory, threads = (found.get(name) for name in ("cores", "memory_gib", "threads"))
    threaded = f", {threads} {'thread' if threads == 1 else 'threads'}" if threads else ""
    load = f", load average {found['load_before']:.1f}" if "load_before" in found else ""
    gpu = f"{found['gpu']}; " if found.get("gpu") else ""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items() if v is not None)
    return (
        f"Machine: {gpu}{found.get('processor')}, {cores} cores, {memory} GiB{threaded}{load}. "
        f"Versions: {versions}."
    )


# --- what: by the parts that a file holds ---------------------------------------------------------

Layout = tuple[str, Callable[[Result], Iterator[Block]], Callable[[Result], str]]


def layout(result: Result) -> Layout:
    """Return heading, tables and command for a result, by what it holds."""
    for part, found in LAYOUTS.items():
        if part in result:
            return found
    return "Other measurements", anything, command_inside


def command_inside(result: Result) -> str:
    """Return the command that a result names itself, if it does."""
    return str(result.get("command", ""))


def called(module: str, options: Mapping[str, Any]) -> str:
    """Write the command that makes a result again."""
    given = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    return " ".join([f"python -m kvlab.fast.lab.benchmarks.{module}", *given, "--out result.json"])


# --- decode ---------------------------------------------------------------------------------------

DECODE_COLUMNS = ("contender", "tokens/s", "lowest to highest", "of full", "entries", "MiB")


def decoding(result: Result) -> Iterator[Block]:
    """Yield tokens per second of the generations that were compared."""
    parameters = result["parameters"]
    about = {
        "constant": (
            "Steps at constant size",
            f"What one token costs at {parameters['entries']} entries per KV head, whatever the "
            f"method, over {parameters['stretch']} tokens; {parameters['repeats']} rounds.",
        ),
        "whole": (
            "One long generation",
            f"{parameters['tokens']:,} tokens from a short prompt, which is included in the time; "
            f"{parameters['whole_repeats']} rounds.",
        ),
    }
    yield Text(
        "Decoding speed of a small Llama with random weights, in Hugging Face's generate. All "
        "contenders are measured in turn, in another order in every round: medians over rounds. "
        "“of full” is the median share of the speed of the full cache of transformers in the same "
        "round. Entries and MiB are peaks, per KV head and of the whole cache."
    )
    if not result["kvpress"]["measured"]:
        yield Text(f"kvpress was not measured: {result['kvpress']['reason']}.")
    for name, outcomes in result["parts"].items():
        title, says = about.get(name, (name, ""))
        yield Heading(title, 3)
        if says:
            yield Text(says)
        yield Grid(DECODE_COLUMNS, [decode_row(each) for each in outcomes])


def decode_row(outcome: Mapping[str, Any]) -> list[Cell]:
    """Write one contender."""
    return [
        outcome["name"],
        f"{outcome['median']:.0f}",
        f"{outcome['lowest']:.0f} to {outcome['highest']:.0f}",
        f"{100 * outcome['share_of_full']:.0f} %",
        str(outcome["peak"]["entries"]),
        f"{outcome['peak']['bytes'] / 2**20:.1f}",
    ]


def decode_command(result: Result) -> str:
    """Return the command that measures decoding again."""
    asked = {k: v for k, v in result["parameters"].items() if k != "entries"}
    kvpress = {"kvpress": "PYTHON"} if result["kvpress"]["measured"] else {}
    return called("decode", {**kvpress, **asked, "threads": result["machine"]["threads"]})


# --- memory ---------------------------------------------------------------------------------------


def resident(result: Result) -> Iterator[Block]:
    """Yield how the memory of a process grows while it writes."""
    yield Text(
        f"One generation of {result['tokens']:,} tokens under {result['method']} with a budget of "
        f"{result['entries']} entries: a small Llama with random weights. Growth is by how much "
        f"the resident memory of the process ever exceeded its reading at token {SETTLED:,}."
    )
    readings = result["resident_bytes"]
    shown = [token for token in readings if int(token) in (500, 1000, 2000, 5000, 10_000, 20_000)]
    rows: list[list[Cell]] = [
        ["entries at the end", str(result["kept"])],
        ["cache, MiB", f"{result['cache_bytes'] / 2**20:.2f}"],
        *(
            [f"process at token {int(token):,}, MiB", f"{readings[token] / 2**20:.1f}"]
            for token in shown
        ),
        ["growth, KiB", f"{result['growth_bytes'] / 1024:.0f}"],
    ]
    yield Grid(("what", "was"), rows)


def memory_command(result: Result) -> str:
    """Return the command that measures memory again."""
    return called("memory", {"method": result["method"], "tokens": result["tokens"]})


# --- kernels --------------------------------------------------------------------------------------


def kernels(result: Result) -> Iterator[Block]:
    """Yield how long every kernel takes, and how near it comes to copying its bytes."""
    shape = result["shape"]
    yield Text(
        f"Each kernel alone, in {shape['dtype'].removeprefix('torch.')}: {shape['kv_heads']} KV "
        f"heads, {shape['group']} query heads each, head dimension {shape['head_dim']}. Copying "
        f"reaches {result['copy_bytes_per_second'] / 1e9:,.0f} GB/s there; “of copying” is the "
        "rate at which a kernel moves the bytes that it has to move, as a share of that. A gain is "
        "the speed over another kernel's at the same size; “of its bytes” is its share of the gain "
        "that reading fewer bytes allows."
    )
    rows: list[list[Cell]] = [
        [
            each["kernel"],
            str(each["batch"]),
            f"{each['entries']:,}",
            f"{1e6 * each['seconds']:,.1f}",
            share(each["share_of_copy"]),
            f"{each['gain']:.2f} × {each['rival']}" if each.get("gain") is not None else "–",
            share(each.get("share_of_gain")),
        ]
        for each in result["results"]
    ]
    yield Grid(("kernel", "batch", "entries", "µs", "of copying", "gain", "of its bytes"), rows)
    for each in result.get("left_out", ()):
        yield Text(
            f"Batch {each['batch']}, {each['entries']:,} entries: memory was not enough for what "
            f"comes after {each['all_after'] or 'the start'}."
        )


def share(of: float | None) -> str:
    """Write a share in percent, or a dash."""
    return "–" if of is None else f"{100 * of:.0f} %"


# --- end to end -----------------------------------------------------------------------------------


def end_to_end(result: Result) -> Iterator[Block]:
    """Yield an 8B model beside the papers' own figures."""
    yield Text(
        "A model of Llama-3-8B's shape with random weights, in bfloat16. Latency beside "
        "LazyEviction's Table 8 (another model and GPU: compare the two columns of overhead, not "
        f"the times); how many sequences fit under {result['cap_bytes'] / 1e9:.0f} GB beside "
        "DesireKV's Fig. 5b."
    )
    if result["latency"]:
        yield Grid(
            ("method", "tokens", "budget", "ms per token", "over full", "in the paper"),
            [latency_row(each) for each in result["latency"]],
        )
    if result["capacity"]:
        yield Grid(
            ("method", "tokens", "sequences", "tokens/s, all", "cache, GiB"),
            [capacity_row(each) for each in result["capacity"]],
        )


def latency_row(each: Mapping[str, Any]) -> list[Cell]:
    """Write one generation."""
    return [
        each["method"],
        f"{each['tokens']:,}",
        "–" if each["budget"] is None else f"{each['budget']:,}",
        f"{each['ms_per_token']:.2f}",
        signed_percent(each["over_full"]),
        signed_percent(each["paper_over_full"]),
    ]


def capacity_row(each: Mapping[str, Any]) -> list[Cell]:
    """Write the largest batch that fitted."""
    held = each["cache_bytes"]
    return [
        each["method"],
        f"{each['tokens']:,}",
        f"{each['batch']:,}",
        f"{each['tokens_per_second']:,.0f}",
        "–" if held is None else f"{held / 2**30:.1f}",
    ]


def signed_percent(share: float | None) -> str:
    """Write a difference, or a dash."""
    return "–" if share is None else f"{100 * share:+.0f} %"


# --- viewer --------------------------------------------------------------------------------------


def viewer(result: Result) -> Iterator[Block]:
    """Yield how soon the page of `kvlab view` is there, how it moves and changes."""
    asked = result["parameters"]
    yield Text(
        "The page of kvlab view in headless Chromium, which draws in software: "
        f"{asked['tokens']:,} tokens × {asked['layers']} layers × {asked['kv_heads']} KV heads "
        f"under {asked['methods']} methods that decide at random, "
        f"{result['page_bytes'] / 2**20:.1f} MiB. Opened {asked['rounds']} times: medians over the "
        "rounds, lowest to highest. A change takes from the event to the frame that shows it."
    )
    yield Grid(
        ("what", "ms", "lowest to highest"),
        [
            *(paint_row(name, each) for name, each in result["paint_ms"].items()),
            *(paint_row(f"change of {name}", each) for name, each in result["change_ms"].items()),
        ],
    )
    yield Text(
        f"Movements of {asked['seconds']:g} seconds: “drag” moves the slider evenly over all "
        "steps, “jump” puts it elsewhere at every frame, “play” plays as fast as the page offers; "
        "of all heads together, or of one. The browser draws at most 60 frames a second. “within” "
        "is the 95th percentile of the time from one frame to the next."
    )
    yield Grid(
        ("movement", "frames/s", "lowest to highest", "ms per frame", "within, ms"),
        [frames_row(name, each) for name, each in result["frames"].items()],
    )


def paint_row(name: str, each: Mapping[str, Any]) -> list[Cell]:
    """Write one time that was taken once a round."""
    return [name, f"{each['median']:.0f}", f"{each['lowest']:.0f} to {each['highest']:.0f}"]


def frames_row(name: str, each: Mapping[str, Any]) -> list[Cell]:
    """Write one movement."""
    rate, interval = each["frames_per_second"], each["interval_ms"]
    return [
        name,
        f"{rate['median']:.0f}",
        f"{rate['lowest']:.0f} to {rate['highest']:.0f}",
        f"{interval['median']:.1f}",
        f"{interval['percentile_95']:.1f}",
    ]


def viewer_command(result: Result) -> str:
    """Return the command that measures the viewer again."""
    return called("viewer", {k: v for k, v in result["parameters"].items() if k != "methods"})


# --- anything else --------------------------------------------------------------------------------

ABOUT = ("schema", "machine", "versions", "command")


def anything(result: Result) -> Iterator[Block]:
    """Yield the figures of a file that no other layout fits: a row each, by their names."""
    rows: list[list[Cell]] = [
        [name, figure(value)]
        for part, content in result.items()
        if part not in ABOUT
        for name, value in leaves(part, content)
    ]
    yield Grid(("what", "was"), rows)


def leaves(name: str, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield every single value inside, named by the way to it."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(f"{name}: {key}".replace("_", " "), value)
    elif isinstance(content, Sequence) and not isinstance(content, str):
        for number, value in enumerate(content, start=1):
            yield from leaves(f"{name} {number}", value)
    else:
        yield name.replace("_", " "), content


def figure(value: Any) -> str:
    """Write a value with four digits at most behind the leading ones."""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


LAYOUTS: Mapping[str, Layout] = {
    "parts": ("Decoding speed", decoding, decode_command),
    "resident_bytes": ("Memory of a long generation", resident, memory_command),
    "copy_bytes_per_second": ("Kernels", kernels, lambda result: called("kernels", {})),
    "paint_ms": ("The viewer", viewer, viewer_command),
    "capacity": ("A whole model", end_to_end, lambda result: called("end_to_end", {})),
}
"""By the part of a result that only this kind of benchmark has."""
