"""Writes what compilers make of every kernel, on GPUs that need not be there; run as a program.

PYTHONPATH=docs python -m study.report_kernels --out docs/study/results/kernels.json

Kernels are compiled as `compile_kernels` does. On the first GPU a kernel's first call is compiled
in every configuration that the tuner would try, and its other calls in the first one; on other GPUs
this takes ``--every``, without which they have the first call in its first configuration alone.
``--once`` takes that on the first GPU, and no other.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from study import compile_kernels
from study.compile_kernels import ONCE, as_on_a_gpu, ask_for_grid, call, kind_of, launch

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class Gpu(NamedTuple):
    """A GPU that kernels are compiled for, and what a multiprocessor of it holds."""

    name: str
    target: GPUTarget
    warps: int
    shared: int
    """KiB; a program has 1 KiB less at most, and each takes 1 KiB more than it asks for."""


GPUS = (
    Gpu("sm_90", compile_kernels.H200, 64, 228),
    Gpu("sm_80", GPUTarget("cuda", 80, 32), 64, 164),
    Gpu("sm_89", GPUTarget("cuda", 89, 32), 48, 100),
    Gpu("sm_100", GPUTarget("cuda", 100, 32), 64, 228),
    Gpu("sm_120", GPUTarget("cuda", 120, 32), 48, 100),
    Gpu("gfx942", GPUTarget("hip", "gfx942", 64), 8, 64),
)
REGISTERS = 65536
"""Registers of a multiprocessor of NVIDIA's; a warp is given them in units of 256."""


@dataclass(frozen=True)
class Figures:
    """What can be read off a kernel's machine code."""

    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of a thread's own memory."""
    shared: int
    """Bytes of a program."""
    occupancy: int
    """Per cent of a multiprocessor's warps that may be there together; 0: one does not fit."""
    widest: int
    """Bits of the widest load from global memory."""
    wide: int
    """Per cent of the bytes of all such loads, each counted once, that come 128 bits at a time."""
    tensor: int
    """Instructions for tensor cores."""
    barriers: int
    """Instructions at which a program's warps wait for each other."""
    per_byte: float | None
    """Instructions per byte loaded, of the innermost loop that loads most, if one loads."""


# --- reading machine code ------------------------------------------------------------------------

NVIDIA = {
    "line": re.compile(r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<code>\w[^;]*);"),
    "jump": re.compile(r"BRA\b.* 0x([0-9a-f]+)"),
    "load": re.compile(r"(?:LDG|LDGSTS)\.(?P<width>\S+)"),
    "tensor": re.compile(r"[HIQUTC]+G?MMA\b"),
    "barrier": re.compile(r"BAR\.SYNC|BAR\.RED"),
}
AMD = {
    "load": re.compile(r"(?:global|buffer|flat)_load_(?P<width>[a-z0-9_]+)"),
    "jump": re.compile(r"s_c?branch\w* (\.LBB\w+)"),
    "tensor": re.compile(r"v_mfma"),
    "barrier": re.compile(r"s_barrier"),
}
WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "short": 2}
"""Bytes of AMD's loads; all others are of one."""


def figures_of_nvidia(kernel: Any, gpu: Gpu) -> Figures:
    """Return the figures of a kernel for an NVIDIA GPU."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        used = printed("cuobjdump", "--dump-resource-usage", file.name)
        code = printed("cuobjdump", "-sass", file.name)
    registers, spilled = (int(re.findall(rf"{name}:(\d+)", used)[-1]) for name in ("REG", "STACK"))
    lines = [(int(at["at"], 16), at["code"]) for at in NVIDIA["line"].finditer(code)]
    jumps = [
        (int(to[1], 16), at) for at, text in lines if (to := NVIDIA["jump"].match(text)) is not None
    ]
    shared, warps = kernel.metadata.shared, kernel.metadata.num_warps
    of_a_warp = -(-registers * 32 // 256) * 256
    at_once = min(gpu.warps // warps, REGISTERS // of_a_warp // warps)
    at_once = min(at_once, gpu.shared * 1024 // (shared + 1024))
    return Figures(
        registers, spilled, shared, 100 * at_once * warps // gpu.warps,
        **read(lines, jumps, NVIDIA, nvidia_bytes),
    )  # fmt: skip


def printed(program: str, *arguments: str) -> str:
    """Return what a program of NVIDIA's prints."""
    command = [BIN / program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def nvidia_bytes(width: str) -> int:
    """Return the bytes of a load, from what follows its name."""
    for part in width.split("."):
        if part in ("128", "64"):
            return int(part) // 8
        if part in ("U16", "S16", "U8", "S8"):
            return int(part[1:]) // 8
    return 4


def figures_of_amd(kernel: Any, gpu: Gpu) -> Figures:
    """Return the figures of a kernel for an AMD GPU."""
    text = kernel.asm["amdgcn"]
    code, labels, lines = text.partition(".section\t.AMDGPU")[0], {}, []
    for number, line in enumerate(code.splitlines()):
        if line.startswith(".LBB"):
            labels[line.partition(":")[0]] = number
        elif re.match(r"\t[a-z]+_", line):
            lines.append((number, line.strip()))
    jumps = [
        (labels[to[1]], at) for at, line in lines if (to := AMD["jump"].match(line)) is not None
    ]

    def noted(name: str) -> int:
        found = re.search(rf"; {name}: (\d+)", text)
        assert found is not None, name
        return int(found[1])

    shared = kernel.metadata.shared
    occupancy = 100 * noted("Occupancy") // gpu.warps if shared <= gpu.shared * 1024 else 0
    return Figures(
        noted("TotalNumVgprs"), noted("ScratchSize"), shared, occupancy,
        **read(lines, jumps, AMD, lambda width: WIDTHS.get(width.removesuffix("_lds"), 1)),
    )  # fmt: skip


Lines = list[tuple[int, str]]


def read(
    lines: Lines,
    jumps: list[tuple[int, int]],
    patterns: dict[str, re.Pattern[str]],
    bytes_of: Callable[[str], int],
) -> dict[str, Any]:
    """Return the figures that instructions show; each jump is a pair, where to and from where."""

    def loaded(some: Lines) -> list[int]:
        found = (patterns["load"].match(code) for _, code in some)
        return [bytes_of(each["width"]) for each in found if each is not None]

    def count(what: str) -> int:
        return sum(patterns[what].match(code) is not None for _, code in lines)

    loads, loops = loaded(lines), [jump for jump in jumps if jump[0] < jump[1]]
    bodies = []
    for begin, end in loops:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops):
            body = [line for line in lines if begin <= line[0] <= end]
            bodies.append((sum(loaded(body)), len(body)))
    most, length = max(bodies, default=(0, 0))
    return {
        "widest": 8 * max(loads, default=0),
        "wide": round(100 * sum(each for each in loads if each == 16) / (sum(loads) or 1)),
        "tensor": count("tensor"),
        "barriers": count("barrier"),
        "per_byte": round(length / most, 2) if most else None,
    }


# --- compiling -----------------------------------------------------------------------------------


def constants_of(kernel: Any, left_out: set[str]) -> str:
    """Return what a kernel was compiled for: its constants, and pointers that are not given."""
    names = kernel.src.fn.arg_names
    found = {names[at[0]]: x for at, x in kernel.src.constants.items() if len(at) == 1}
    kept = {name: x for name, x in found.items() if name not in left_out}
    return " ".join(f"{name}={x}" for name, x in sorted(kept.items())).replace(
        "triton.language.", ""
    )


Found = dict[str, dict[str, dict[str, dict[str, list[Any]]]]]
"""Figures by kernel, constants, configuration and GPU."""


def compiled_for(gpu: Gpu) -> Found:
    """Compile all kernels for a GPU, and return their figures."""
    found: Found = {}
    seen: set[str] = set()
    once = ONCE or not (gpu == GPUS[0] or "--every" in sys.argv)
    read_figures = figures_of_nvidia if gpu.target.backend == "cuda" else figures_of_amd

    def take(
        kernel: Any, arguments: Any, options: dict[str, Any], tried: dict[str, Any], number: int
    ) -> str:
        """Compile a kernel in one configuration, note its figures, and return its constants."""
        kind = kind_of(kernel, options)
        if once and kind in found:
            return ""
        compiled: Any = launch(kernel, *arguments, warmup=True, **options, **tried)
        constants = constants_of(compiled, set(tried))
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            rows = found.setdefault(kind, {}).setdefault(constants, {})
            figures = [*vars(read_figures(compiled, gpu)).values()]
            rows.setdefault(f"{number}: {written(tried)}", {gpu.name: figures})
        return constants

    def run(kernel: Any, *arguments: Any, warmup: bool = False, **options: Any) -> None:
        take(kernel, arguments, options, {}, 0)

    def run_tuned(tuner: Any, *arguments: Any, warmup: bool = False, **options: Any) -> None:
        first, *others = [tried.all_kwargs() for tried in tuner.configs]
        ask_for_grid(**options, **first)
        constants = take(tuner.fn, arguments, options, first, 0)
        if not once and constants == next(iter(found[kind_of(tuner.fn, options)])):
            for number, tried in enumerate(others, 1):
                take(tuner.fn, arguments, options, tried, number)

    as_on_a_gpu(run, run_tuned, gpu.target)
    call(torch.bfloat16)
    return found


def joined(of_gpus: list[Found]) -> Found:
    """Join the figures of several GPUs."""
    found: Found = {}
    for one in of_gpus:
        for kind, calls in one.items():
            for constants, tried in calls.items():
                rows = found.setdefault(kind, {}).setdefault(constants, {})
                for configuration, figures in tried.items():
                    rows.setdefault(configuration, {}).update(figures)
    return found


def written(tried: dict[str, Any]) -> str:
    """Write a configuration down."""
    return " ".join(f"{name}={x}" for name, x in tried.items() if name != "num_ctas" and x)


if __name__ == "__main__":
    with ProcessPoolExecutor(1 if ONCE else os.cpu_count()) as pool:
        found = joined([*pool.map(compiled_for, GPUS[: 1 if ONCE else None])])
    figures = [*Figures.__dataclass_fields__]
    told = {"triton": triton.__version__, "figures": figures, "kernels": found}
    text = re.sub(r"\[[^]{}]*\]", lambda row: " ".join(row[0].split()), json.dumps(told, indent=1))
    if "--out" in sys.argv:
        Path(sys.argv[sys.argv.index("--out") + 1]).write_text(text + "\n", "utf-8")
    else:
        print(text)
