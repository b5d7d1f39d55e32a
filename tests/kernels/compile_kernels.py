"""Compiles every kernel for a GPU that need not be there; run as a program, not interpreted.

The interpreter takes what the compiler refuses: shapes that are no powers of two, operands of
different types, variables that change type in a loop.
"""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner

from kvlab.fast.kernels import (
    caote,
    decode,
    keep,
    mixed_precision,
    move,
    prefill,
    quantise,
)

SIZES = {"RHO": 4, "D": 128, "BLOCK_D": 128, "BLOCK_N": 32}
POINTERS = {
    "positions": "*i32", "safe": "*u8", "kept": "*i64", "keep": "*i64", "wide": "*i32",
    "narrow": "*i32", "other": "*i32", "rows_at": "*i32", "entries_at": "*i32",
    "heaviest": "*i32", "elapsed": "*i32", "interval": "*i32",
    **dict.fromkeys(["raw", "part_output", "received", "retention", "points",
                     "others", "mass", "errors", "output", "scores", "gains", "lse", "sums"],
                    "*fp32"),
}  # fmt: skip
MOST_SHARED = 227 * 1024
"""Bytes of shared memory that a block of an H100 or H200 can have."""
NUMBERS = dict.fromkeys(["scale", "softcap", "threshold", "safe_mass", "most"], "fp32")


def kernels(stored):
    """Yield kernels, their constants, and what they are compiled for."""
    vectors = dict.fromkeys(["queries", "keys", "values"], f"*{stored}")
    wide = {"WIDE": stored == "fp32"}
    for wide_head in (False, True):
        sizes = {"D": 256, "BLOCK_D": 256} if wide_head else {"D": 128, "BLOCK_D": 128}
        rows = {**sizes, "SOFTCAP": wide_head, "GAIN": False, **wide}
        one = {"BLOCK_M": 16, "CAUSAL": False, "RAGGED": wide_head, "SCORES": wide_head}
        absent = {"rows_at": None, "gains": None, **({} if wide_head else {"entries_at": None})}
        yield decode.attend_to_parts, {**rows, **one, **absent, "WITH_VALUES": True}, vectors
        many = {"CAUSAL": True, "RAGGED": True, "SCORES": False, "raw": None}
        kinds = {**vectors, "output": f"*{stored}"}
        attend = prefill.attend_block_of_rows
        yield attend, {**rows, **many, "gains": None, "WITH_VALUES": True}, kinds
        gained = {**rows, **many, "GAIN": True, "output": None, "WITH_VALUES": False}
        yield attend, gained, kinds
        sums = {**rows, "RHO": 2 if wide_head else 4, "GAIN": wide_head}
        yield prefill.column_sums, sums if wide_head else {**sums, "gains": None}, kinds
    for reduce, count in (("none", False), ("max", True), ("mean", False), ("skip", False)):
        yield (
            decode.combine,
            {**SIZES, "PARTS": 64, "BLOCK_PARTS": 64, "BLOCK_RHO": 16, "REDUCE": reduce,
             "COUNT": count, "BLOCK_N": 512},
            {"output": f"*{stored}"},
        )  # fmt: skip
    yield (
        caote.find_heaviest,
        {"ROWS": 4, "D": 128, "BLOCK_H": 4096, "BLOCK_N": 64, "BLOCK_D": 128},
        vectors,
    )
    constants = {"ROWS": 4, "D": 128, "PARTS": 64, "BLOCK_ROWS": 16, "BLOCK_D": 128}
    yield caote.weighted_sums, constants, {**vectors, "weights": "*fp32"}
    for fast in (False, True):
        constants = {"ROWS": 4, "D": 128, "BLOCK_D": 128, "FAST": fast}
        yield caote.errors_of_entries, constants, vectors
    yield tables_of(stored, (4,), (False,), (4,))
    if stored != "fp16":
        yield tables_of(stored, (2, 16), (True, False), (2, 16))
    if stored == "bf16":
        yield tables_of(stored, (16, 8, 4, 2), (False,) * 4, (4, 16, 8, 2))
    for bits in (8, 4, 2):
        constants = {"LENGTH": 128, "GROUP": 64, "GROUPS": 2, "BITS": bits}
        kinds = {"vectors": f"*{stored}", "codes": "*u8", "scales": "*fp16", "zeros": "*fp16"}
        yield quantise.quantise_groups, constants, kinds
    constants = {"LENGTH": 128, "GROUP": 64, "GROUPS": 2, "OF_OUTLIERS": True, "BLOCK": 16}
    yield quantise.outliers_of_groups, constants, {"vectors": f"*{stored}", "scores": "*fp64"}
    if stored == "bf16":  # of these, no argument has the type of the entries
        yield keep.keep_sets, {"SCORE_HEADS": 1, "BLOCK_N": 1024, "SAFE": True}, {}
        constants = {"WIDE_SLICES": 4, "NARROW": 3, "WORDS": 64, "BLOCK_N": 128,
                     "BLOCK_W": 32}  # fmt: skip
        yield move.move_columns, constants, {}


def tables_of(stored, key_bits, by_channel, value_bits):
    """Return attention to tables of these precisions, its constants, its arguments' types."""
    plain = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}[stored]
    group = 64 if 2 not in key_bits else 32
    constants = {
        "RHO": 4, "D": 128, "PARTS": 64, "KEY_BITS": key_bits, "KEY_OWN": (group,) * len(key_bits),
        "BY_CHANNEL": by_channel, "VALUES": tuple(range(len(value_bits))),
        "VALUE_BITS": value_bits, "VALUE_OWN": (group,) * len(value_bits), "GROUP": group,
        "BLOCK_RHO": 4, "BLOCK_GROUPS": 128 // group, "BLOCK_D": 128,
        "SOFTCAP": len(key_bits) > 1, "SCORES": len(key_bits) > 1, "TYPE": plain,
    }  # fmt: skip
    kinds = {16: f"*{stored}", 8: "*u8", 4: "*i32", 2: "*i32"}
    codes = [tuple(kinds[b] for b in bits) for bits in (key_bits, value_bits)]
    codes[0] = tuple("*u8" if c else k for c, k in zip(by_channel, codes[0], strict=True))
    scales = [
        tuple(f"*{stored}" if b == 16 else "*fp16" for b in bits) for bits in (key_bits, value_bits)
    ]
    count = len(key_bits)
    types = {
        "queries": f"*{stored}", "keys": codes[0], "key_scales": scales[0], "key_zeros": scales[0],
        "values": codes[1], "value_scales": scales[1], "value_zeros": scales[1],
        "slots": ("*i64",) * count, "partners": ("*i32",) * count, "key_rows": ("i32",) * count,
        "value_rows": ("i32",) * len(value_bits), "firsts": ("i32",) * (count + 1),
    }  # fmt: skip
    return mixed_precision.attend_to_a_part_of_tables, constants, types


def variants(kernel, constants):
    """Yield a tuned kernel's function and constants for each of its configurations."""
    if not isinstance(kernel, Autotuner):
        yield kernel, constants, {}
        return
    for tried in kernel.configs:
        options = {"num_warps": tried.num_warps, "num_stages": tried.num_stages}
        yield kernel.fn, {**constants, **tried.kwargs}, options


def shared_memory(kernel, constants, options, types) -> int:
    """Compile for sm_90, and return the bytes of shared memory that a program takes."""
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {}
    for number, (name, kind) in enumerate(signature.items()):
        several = isinstance(kind, tuple)
        for place, one in enumerate(kind if several else [kind]):
            if one.startswith("*") or name.endswith(("_head", "_row")):
                where = (number, place) if several else (number,)
                aligned[where] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options=options).metadata.shared


def main(types_of_entries: tuple[str, ...], every: bool, once: bool) -> None:
    """Compile each kernel's first configuration that fits, or every one; errors end the program.

    With ``once``, kernels are compiled with one set of constants.
    """
    for stored in types_of_entries:
        seen = set()
        for kernel, constants, types in kernels(stored):
            if once and kernel in seen:
                continue
            seen.add(kernel)
            types, fits = {**POINTERS, **NUMBERS, **types}, 0
            for function, sizes, options in variants(kernel, constants):
                shared = shared_memory(function, sizes, options, types)
                fits += shared <= MOST_SHARED
                print(f"{function.__name__} {stored} {options}: {shared} bytes shared")
                if fits and not every:
                    break
            assert fits, f"no configuration of {kernel} fits"
    sys.stdout.flush()


if __name__ == "__main__":
    wanted = ("bf16", "fp16", "fp32") if "all" in sys.argv else ("bf16",)
    main(wanted, "--every" in sys.argv, "--once" in sys.argv)
