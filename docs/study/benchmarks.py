"""What benchmarks measured: tables, commands, machines and versions of each result.

    python -m study.benchmarks docs

draws the throughput of vLLM, ``images/vllm.svg``.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvlab.fast.lab.benchmarks.results import Result
from kvlab.fast.lab.drawing import GREY, INK, NARROW, Picture, canvas, finish, name_rows
from kvlab.fast.lab.reports import Block, Code, Drawing, Heading, Text
from kvlab.fast.lab.tables import Column, counted, percent, tabulate
from study.stored import RESULTS


def results(directory: Path = RESULTS / "benchmarks") -> dict[str, Result]:
    """Return what was measured by the names of the files, GPUs first, then by name."""
    found = {path.name: json.loads(path.read_text("utf-8")) for path in directory.glob("*.json")}
    return {name: found[name] for name in sorted(found, key=lambda n: (not gpu_of(found[n]), n))}


def gpu_of(result: Result) -> str | None:
    """Return the name of the GPU that was measured, if one was."""
    return result["machine"].get("gpu")


def result_blocks(name: str, result: Result) -> Iterator[Block]:
    """Yield one file of results: what was measured, with which command, where."""
    heading, contents = LAYOUTS[result["benchmark"]]
    library = result["versions"].get("transformers")
    used = f"transformers {library}" if library else ""
    other = versions_of_kvpress(result).get("transformers", library)
    used += f", kvpress with {other}" if other != library else ""
    asked = result["parameters"]
    measured = asked.get("model")
    some = "some contenders" if asked.get("only") else ""
    some = f"{asked['lengths']} tokens" if result["benchmark"] == "engines" else some
    parts = (heading, measured, some, gpu_of(result) or "CPU", used)
    yield Heading(", ".join(part for part in parts if part))
    yield Text(f"From {name}. {result.get('note', '')}".rstrip())
    yield from contents(result)
    yield Code(result["command"])
    yield Text(machine_text(result))


def versions_of_kvpress(result: Result) -> Mapping[str, str]:
    """Return the versions in the environment in which kvpress ran, if it did."""
    return result["about"].get("kvpress", {}).get("versions", {})


def machine_text(result: Result) -> str:
    """Say in one paragraph where a result was measured."""
    found = result["machine"]
    cores, memory, threads = (found.get(name) for name in ("cores", "memory_gib", "threads"))
    threaded = f", {counted(threads, 'thread')}" if threads else ""
    gpu = f"{found['gpu']}; " if found.get("gpu") else ""
    versions = [
        ", ".join(f"{name} {number}" for name, number in each.items() if number is not None)
        for each in (result["versions"], versions_of_kvpress(result))
    ]
    own = f" Rows of kvpress: {versions[1]}." if versions[1] else ""
    changed = " The code had changes that were not committed." if "-dirty" in versions[0] else ""
    return (
        f"Machine: {gpu}{found.get('processor')}, {cores} cores, {memory} GiB{threaded}. "
        f"Versions: {versions[0].replace('-dirty', '')}.{own}{changed}"
    )


def speed(number: float) -> str:
    """Write tokens per second, with three digits at least."""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"


COLOURS = {"kvlab": "tab:blue", "kvpress": "tab:orange", "openvino": "tab:green"}
COLOURS |= {"llama.cpp": "tab:purple"}
"""Of the libraries that are compared; transformers is grey."""

# --- decode ---------------------------------------------------------------------------------------

MIB = 2**20
NEED_WEIGHTS = "observed_attention"
"""A press that needs eager attention, which kvpress's full cache has not."""


def control_of(name: str) -> str | None:
    """Return the row whose machinery a row of decoding shares, and which evicts nothing."""
    library, _, own = name.partition(" ")
    if name.startswith("transformers") or NEED_WEIGHTS in name:
        return None
    if library in ("kvlab", "kvpress"):
        return "kvlab full" if library == "kvlab" else "kvpress's transformers full cache"
    if library == "llama.cpp":
        return "llama.cpp f16"
    return f"{library} {own.partition(',')[0]}" if library == "openvino" else name


def limit_of(name: str, part: str, names: Sequence[str]) -> str | None:
    """Return the full cache of transformers with as few entries as a row holds, if it ran."""
    stock = "transformers full cache"
    if not name.startswith(("kvlab", "kvpress")) or part == "whole":
        return stock if name == "kvlab full" else None
    fewer = (each for each in names if each.startswith(f"{stock} of"))
    return stock if name.endswith("full") or part == "constant" else next(fewer, None)


def share(own: Mapping[str, Any], other: Mapping[str, Any] | None) -> float | None:
    """Return the median, over the rounds, of a row's speed over another's."""
    if other is None:
        return None
    pairs = zip(own["tokens_per_second"], other["tokens_per_second"], strict=True)
    return statistics.median(mine / its for mine, its in pairs)


def decoding_columns(part: str, rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of a table of decoding speeds."""
    found = {row["name"]: row for row in rows}

    def limit(row: Mapping[str, Any]) -> float | None:
        return share(row, found.get(limit_of(row["name"], part, [*found]) or ""))

    def control(row: Mapping[str, Any]) -> float | None:
        return share(row, found.get(control_of(row["name"]) or ""))

    def ends(row: Mapping[str, Any]) -> str:
        speeds = row["tokens_per_second"]
        return f"{speed(min(speeds))} to {speed(max(speeds))}"

    return (
        Column("contender", "name"),
        Column("tokens/s", lambda row: speed(row["quartiles"][1])),
        Column("lowest to highest", ends),
        Column("of stock", lambda row: share(row, rows[0]), percent),
        Column("of its control", control, percent),
        Column("of its limit", limit, percent),
        Column("must, MiB", lambda row: row["must_bytes"] and row["must_bytes"] / MIB, ",.0f"),
        Column("entries", lambda row: row["peak"]["entries"]),
        Column("MiB", lambda row: row["peak"]["bytes"] / MIB, ".1f"),
    )


def first_token(full: Mapping[str, Any]) -> tuple[Column, Column]:
    """Return columns: seconds until the first token, and how many times the full cache's."""

    def times_full(each: Mapping[str, Any]) -> float:
        pairs = zip(each["first_seconds"], full["first_seconds"], strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    seconds = Column("first token, s", lambda x: statistics.median(x["first_seconds"]), ".1f")
    return seconds, Column("× full", times_full, ".2f")


def speeds(outcomes: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw tokens per second, from the lowest to the highest round, beside the full cache's."""
    figure, (axes,) = canvas(width=NARROW, height=0.7 + 0.23 * len(outcomes))
    for place, each in enumerate(reversed(outcomes)):
        found, (_, median, _) = each["tokens_per_second"], each["quartiles"]
        ends = [[median - min(found)], [max(found) - median]]
        colour = COLOURS.get(each["name"].partition(" ")[0].removesuffix("'s"), GREY)
        axes.errorbar(median, place, xerr=ends, fmt="o", color=colour, markersize=4)
    axes.axvline(outcomes[0]["quartiles"][1], color=GREY, linestyle=":", linewidth=1)
    names = [f"{each['name']} ({each['peak']['bytes'] / 2**20:.1f} MiB)" for each in outcomes]
    name_rows(axes, names)
    axes.set(xlim=(0, None))
    axes.set_xlabel(f"tokens per second; dotted: {outcomes[0]['name']}")
    return finish(
        figure,
        "Tokens per second of every contender, a line from its lowest to its highest round. The "
        "table below has the figures.",
        "none",
    )


PARTS = {
    "constant": "Steps at constant size",
    "whole": "One long generation",
    "real": "A language model after a long prompt",
}


def decoding(result: Result) -> Iterator[Block]:
    """Yield tokens per second of the generations that were compared."""
    if not (kvpress := result["about"]["kvpress"])["measured"]:
        yield Text(f"kvpress was not measured: {kvpress['reason']}.")
    asked = result["parameters"]
    if asked.get("cpu_time"):
        yield Text("Seconds are CPU time: others used the machine.")
    for name, outcomes in result["parts"].items():
        yield Heading(PARTS[name], 3)
        if name == "real":
            yield Text(
                f"{asked['model']} reads {asked['prompt']:,} tokens, at once unless a row says "
                f"otherwise, and writes {asked['tokens']:,}; budget: {asked['entries']} entries."
            )
        columns = decoding_columns(name, outcomes)
        columns += first_token(outcomes[0]) if name == "real" else ()
        yield Drawing("speeds", "Tokens per second", speeds(outcomes))
        yield tabulate(outcomes, columns)


def deployed(result: Result) -> Iterator[Block]:
    """Yield engines beside transformers and kvlab, one table per length of the prompt."""
    for length, outcomes in result["parts"].items():
        full = statistics.median(outcomes[0]["wall"])
        wall = Column(
            "of stock, by the clock", lambda x, y=full: statistics.median(x["wall"]) / y, percent
        )
        yield Heading(f"A prompt of {int(length):,} tokens", 3)
        yield Drawing("speeds", "Tokens per second", speeds(outcomes))
        *columns, _, size = decoding_columns("engines", outcomes)
        yield tabulate(outcomes, (*columns, wall, size, *first_token(outcomes[0])))


# --- kernels --------------------------------------------------------------------------------------


KERNELS = (
    Column("kernel"),
    Column("batch"),
    Column("entries", format=","),
    Column("µs", lambda each: 1e6 * each["seconds"], ",.1f"),
    Column("must, MiB", lambda each: each["must_bytes"] / MIB, ",.1f"),
    Column("of copying", "share_of_copy", percent),
    Column("gain", lambda each: each["gain"] and f"{each['gain']:.2f} × {each['rival']}"),
    Column("of its bytes", "share_of_gain", percent),
)


def with_gains(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add each kernel's speed over its rival's, and that gain over the ratio of their bytes."""
    known = {(each["kernel"], each["batch"], each["entries"]): each for each in rows}
    found = []
    for each in rows:
        gain = of_bytes = None
        rival = known.get((each["rival"], each["batch"], each["entries"]))
        if rival is not None:  # without a rival, or its memory was not enough
            gain = rival["seconds"] / each["seconds"]
            if each["by_bytes"] and each["must_bytes"] < rival["must_bytes"]:
                of_bytes = gain * each["must_bytes"] / rival["must_bytes"]
        found.append({**each, "gain": gain, "share_of_gain": of_bytes})
    return found


def with_limits(result: Result, part: str) -> list[dict[str, Any]]:
    """Add to the rows of whole models the time in which their bytes can be copied."""
    rate = result["about"]["copied_bytes_per_second"]
    limits = [1e3 * row["must_bytes"] / rate for row in result["parts"][part]]
    rows = zip(result["parts"][part], limits, strict=True)
    return [
        {**row, "limit_ms": limit, "share_of_limit": limit / row["quartiles"][1]}
        for row, limit in rows
    ]


def backends_of(result: Result) -> str:
    """Name the backends of PyTorch's attention in the rows of a result."""
    rows = (row for rows in result["parts"].values() for row in rows)
    named = {name.removeprefix("aten::") for row in rows for name in row.get("backends") or ()}
    return ", ".join(sorted(named)) or "a backend that was not noted"


def kernels(result: Result) -> Iterator[Block]:
    """Yield how long every kernel takes, and how near it comes to copying its bytes."""
    about, shape = result["about"], result["about"]["shape"]
    copied = about["copy_bytes_per_second"] / 1e9
    yield Text(
        "Each kernel runs alone. “must” is what it is given, read once, and what it returns, "
        "written once; “of copying” compares the rate at which this moves with the rate of a plain "
        "copy on the same GPU; a dash where arithmetic is the limit. A gain is the speed "
        "over another kernel's speed at the same size; “of its bytes” is the share of the gain "
        f"that reading fewer bytes allows. SDPA attended by {backends_of(result)}."
    )
    yield Text(
        f"In {shape['dtype'].removeprefix('torch.')}: {shape['kv_heads']} KV heads, "
        f"{shape['group']} query heads each, head dimension {shape['head_dim']}. Copying reaches "
        f"{copied:,.0f} GB/s."
    )
    yield tabulate(with_gains(result["parts"]["kernels"]), KERNELS)
    for each in about["left_out"]:
        yield Text(
            f"Batch {each['batch']}, {each['entries']:,} entries: memory was not enough for what "
            f"comes after {each['all_after'] or 'the start'}."
        )


# --- end to end -----------------------------------------------------------------------------------


def decoded_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of whole models; a control has the same prompt, and a graph or none."""

    def control(row: Mapping[str, Any]) -> float | None:
        name = "stock" if row["method"].startswith("kvpress") else "full"
        like = {"method": name, "prompt": row["prompt"], "graphed": row["graphed"]}
        found = next((x["tokens_per_second"] for x in rows if like.items() <= x.items()), None)
        return found and row["tokens_per_second"] / found

    return (
        Column("method"),
        Column("prompt", format=","),
        Column("texts", "batch", ","),
        Column("CUDA graph", lambda each: "yes" if each["graphed"] else "no"),
        Column("ms per token", lambda each: each["quartiles"][1], ".2f"),
        Column("limit, ms", "limit_ms", ".2f"),
        Column("of its limit", "share_of_limit", percent),
        Column("tokens/s, all", "tokens_per_second", ",.0f"),
        Column("of its control", control, percent),
        Column("cache, MiB", lambda each: each["cache_bytes"] / MIB, ",.0f"),
        Column("peak, MiB", lambda each: (each["peak_bytes"] or 0) / MIB, ",.0f"),
        Column("of the allocator", share_allocated, partial(percent, digits=1)),
    )


def share_allocated(each: Mapping[str, Any]) -> float | None:
    """Return the bytes that the cache reports over those that the allocator gave; None if graphed.

    A graph has memory of its own.
    """
    held = each["allocated_bytes"]
    return None if each["graphed"] or not held else each["cache_bytes"] / held


def end_to_end(result: Result) -> Iterator[Block]:
    """Yield how fast a model of 8B shape decodes, and what memory it needs."""
    parts = {part: with_limits(result, part) for part in result["parts"]}
    yield Text(
        "A model of Llama-3.1-8B's shape has random weights in bfloat16. Methods keep a quarter of "
        "the prompt's entries. With a CUDA graph the host starts a token's work as one: without, "
        "it starts more than a thousand kernels. The stock model's graph reads a StaticCache of "
        "transformers under a mask, so it repeats keys and values for the query heads at every "
        "token and is no control for the methods. The limit is the time in which weights and "
        "cache can be read at the rate of copying. A control is full, or stock for a press, with "
        "a graph or without as the row has; a dash says that none ran. “peak” is what reading the "
        "prompt and decoding needed beside the weights. PyTorch attended by "
        f"{backends_of(result)}."
    )
    yield Text(
        "The dotted line is the least time that bytes allow a full cache. None was measured, so "
        "the picture says nothing about what eviction gains."
    )
    yield Drawing("graphed", "Time of a token, with CUDA graphs", over_prompts(parts["one_text"]))
    yield tabulate(parts["one_text"], decoded_columns(parts["one_text"]))
    yield Text("Several texts at once, beside what their caches hold:")
    yield tabulate(parts["equal_memory"], decoded_columns(parts["equal_memory"]))
    if beside := parts.get("beside_kvpress"):
        versions = result["about"]["beside_kvpress"]
        used = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Text(
            f"Presses of kvpress, which evict once, after the prompt, in an environment of their "
            f"own ({used}). None of these rows has a graph, so the host sets their times, which "
            "say little about a press:"
        )
        yield tabulate(beside, decoded_columns(beside))


def over_prompts(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw the time of a token as a CUDA graph over the length of the prompt."""
    figure, (axes,) = canvas(width=NARROW, height=5.2)
    graphed = [each for each in rows if each["graphed"]]
    prompts = sorted({each["prompt"] for each in graphed})
    for method in dict.fromkeys(x["method"] for x in graphed if x["method"] != "stock"):
        own = {x["prompt"]: x["quartiles"][1] for x in graphed if x["method"] == method}
        times = [own[prompt] for prompt in prompts]
        axes.plot(prompts, times, "o-", markersize=4, label=method)
    every = {x["prompt"]: x["limit_ms"] for x in graphed if x["method"] in ("stock", "full")}
    least = [every[prompt] for prompt in prompts]
    axes.plot(prompts, least, ":", color=GREY, label="all entries: a limit by bytes, not measured")
    axes.set(xticks=prompts, xticklabels=[f"{each:,}" for each in prompts], ylim=(0, None))
    axes.set(xlabel="tokens of the prompt", ylabel="ms per token")
    return finish(
        figure,
        "Milliseconds per token over the length of the prompt. Methods keep a quarter of the "
        "entries. Dotted: the least time in which weights and all entries can be read.",
        "below",
    )


# --- vLLM -----------------------------------------------------------------------------------------

SERVED = (
    Column("memory", "share", percent),
    Column("method"),
    Column("tokens/s", lambda each: speed(each["tokens_per_second"])),
    Column("by the clock", lambda each: speed(each["tokens_per_second_by_the_clock"])),
    Column("of its control", "times_full", percent),
    Column("must, MiB", lambda each: each["must_bytes"] / MIB, ",.0f"),
    Column("requests at once", "at_once"),
    Column("preempted"),
    Column("blocks evicted", lambda each: each["blocks"].get("evicted")),
    Column("freed", lambda each: each["blocks"].get("freed")),
    Column("accepted", lambda each: each["accepted"], percent),
)
VLLM, CONTROL = "vllm-cpu.json", "full, without the plug-in"


def with_speeds(result: Result, part: str) -> list[dict[str, Any]]:
    """Add to vLLM's rows tokens per second, and the speed over the control's in the same round.

    ``rounds`` has that speed in each round, ``times_full`` the median.
    """
    asked, rows = result["parameters"], result["parts"][part]
    tokens = asked["requests"] * asked["written"]
    full = {x["share"]: x["cpu_seconds"] for x in rows if x["method"] == CONTROL}
    found = []
    for row in rows:
        pairs = zip(full[row["share"]], row["cpu_seconds"], strict=True)
        rounds = [its / mine for its, mine in pairs]
        speeds = (tokens / statistics.median(row[name]) for name in ("cpu_seconds", "seconds"))
        names = "tokens_per_second", "tokens_per_second_by_the_clock"
        over = {"rounds": rounds, "times_full": statistics.median(rounds)}
        found.append({**row, **dict(zip(names, speeds, strict=True)), **over})
    return found


def served(result: Result) -> Iterator[Block]:
    """Yield what vLLM writes in a second, by the memory that it has."""
    asked = result["parameters"]
    yield Text(
        f"{asked['requests']} requests at once, each writes {asked['written']} tokens. The memory "
        "is what all need together, a half, and a quarter; methods keep a quarter of a request. "
        "Speeds are of CPU time. The control is vLLM's own full cache at the same memory in the "
        f"same round, the median of {counted(asked['rounds'], 'round')}. “must” is what a token of "
        "all requests at once reads: weights and entries; no row is a limit. “accepted” is the "
        "share of the tokens written that the full cache finds likeliest, after the same tokens."
    )
    yield Drawing("served", "Tokens per second over the memory", throughput(result, narrow=True))
    for length in result["parts"]:
        yield Heading(f"Prompts of {int(length):,} tokens", 3)
        yield tabulate(with_speeds(result, length), SERVED)


def throughput(result: Result, narrow: bool = False) -> Picture:
    """Draw tokens per second over the memory, a curve per method, beside the full cache's."""
    pools = {length: with_speeds(result, length) for length in result["parts"]}
    shares = sorted({each["share"] for rows in pools.values() for each in rows})
    panels = {"rows": len(pools), "width": NARROW, "height": 4.4 * len(pools)} if narrow else {}
    figure, every = canvas(**{"columns": 1 if narrow else len(pools), **panels})
    for axes, (length, rows) in zip(every, pools.items(), strict=True):
        for method in dict.fromkeys(each["method"] for each in rows):
            found = {x["share"]: x["tokens_per_second"] for x in rows if x["method"] == method}
            if len(found) == len(shares):
                full = {"color": INK, "linewidth": 2} if method.startswith("full") else {}
                label, _, _ = method.partition("@" if "@" in method else ",")
                axes.plot(shares, [found[x] for x in shares], "o-", label=label, **full)
        axes.set(title=f"prompts of {int(length):,} tokens", xlabel="memory, of what all need")
        axes.set(xticks=shares, xticklabels=map(percent, shares), ylim=(0, None))
        axes.set_ylabel("tokens per second of CPU time" if narrow or axes is every[0] else "")
    return finish(
        figure,
        "Tokens per second that vLLM writes over the memory that it has: the full cache loses as "
        "memory shrinks, methods that evict blocks lose less.",
        "below",
    )


LAYOUTS: Mapping[str, tuple[str, Callable[[Result], Iterator[Block]]]] = {
    "decode": ("Decoding speed", decoding),
    "engines": ("Engines that people deploy", deployed),
    "kernels": ("Kernels", kernels),
    "end_to_end": ("A whole model", end_to_end),
    "vllm": ("vLLM with kvlab inside", served),
}
"""Headings and contents of the benchmarks."""


if __name__ == "__main__":
    for narrow, folder in ((False, ""), (True, "narrow")):
        picture = throughput(results()[VLLM], narrow)
        picture.save(Path(sys.argv[1]) / "images" / folder / "vllm.svg")
