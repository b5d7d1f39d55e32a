"""Writes test vectors as files, and compares the published ones with today's reference.

``index.json`` (described by ``schema.json``) names the tensors of every case as ``file/tensor``. A
tensor that occurs twice is stored once. ``kvlab conformance generate`` draws all cases anew and
writes the same bytes; `check_answers` lets today's reference answer the stored inputs anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save

from kvlab.reference.conformance.operation import DTYPES, Field, Kind
from kvlab.reference.conformance.targets import answer, composition, operation_of
from kvlab.reference.conformance.vectors import (
    FORMAT,
    INDEX,
    MODEL,
    SCHEMA,
    SPECIFICATION,
    SUMS,
    VECTORS,
    Case,
    Expected,
    read,
)
from kvlab.reference.notation import Array

SHARED = {"run": "streams", "whole_cache": "caches"}
"""Files of the operations whose cases share their inputs, whatever the method."""

STORED: Mapping[Kind, type] = {**DTYPES, "int": np.int32}
"""Number formats of the files."""

Add = Callable[[str, Array, Kind], str]

NOTHING = 1e-13
"""If terms cancel to less than this share of the largest number, the result is stored as 0."""

GRID = 2.0**16
"""Logits of whole caches are rounded to multiples of 1/GRID: every machine stores the same."""


def check_answers(directory: Path = VECTORS) -> tuple[list[str], list[str]]:
    """Let today's reference answer the published cases, and write them anew.

    Returns the lines of SHA256SUMS that are the same, and those that differ, stored and new.
    """
    with TemporaryDirectory() as folder:
        cases = (replace(case, expected=answer(case)) for case in read(directory=directory))
        write(cases, Path(folder))
        old, new = (
            (each / SUMS).read_text(encoding="utf-8").splitlines()
            for each in (directory, Path(folder))
        )
    return sorted({*old} & {*new}), sorted({*old} ^ {*new})


def _rounded(name: str, each: Expected) -> Expected:
    """Round expected numbers as they are stored; exact values are stored as they are."""
    if each.kind != "numbers":
        return each
    if name == "logits":
        return replace(each, value=np.rint(each.value * GRID) / GRID)
    value = each.value if each.where is None else np.where(each.where, each.value, 0.0)
    finite = value[np.isfinite(value)]
    if (finite < 0).any() and (finite > 0).any():
        value = np.where(np.abs(value) <= NOTHING * np.abs(finite).max(), 0.0, value)
    return replace(each, value=value)


def write(cases: Iterable[Case], directory: Path) -> None:
    """Write the files of all cases."""
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Array]] = {}
    names: dict[Any, str] = {}

    def add(file: str, x: Array, kind: Kind) -> str:
        """Store an array, if there is no equal one, and return its name, ``file/tensor``."""
        stored, tensors = np.ascontiguousarray(x, dtype=STORED[kind]), files.setdefault(file, {})
        key = file, kind, stored.shape, stored.tobytes()
        name = names.setdefault(key, f"t{len(tensors):04d}")
        tensors[name] = stored
        return f"{file}/{name}"

    entries = [_entry(case, add) for case in cases]
    contents = {f"{file}.safetensors": save(tensors) for file, tensors in files.items()}
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    head = f'"format":{FORMAT},"specification":"{SPECIFICATION}"'
    contents[INDEX] = f'{{{head},"cases":[\n{lines}\n]}}\n'.encode()
    contents[SCHEMA] = (VECTORS / SCHEMA).read_bytes()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    digests = {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents)}
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    (directory / SUMS).write_text(sums, encoding="utf-8")


def _entry(case: Case, add: Add) -> dict[str, Any]:
    operation = operation_of(case.target)
    own = "blocks" if case.method is None else composition(case.method).replace(":", "-")
    shared = SHARED.get(case.operation, own)
    answers = shared if case.operation == "whole_cache" else own
    model = {"model": MODEL.name} if "model" in case.parameters else {}
    return {
        "name": case.name,
        "target": case.target,
        "group": case.group,
        "method": case.method,
        "parameters": {**case.parameters, **model},
        "inputs": {
            name: add(shared, x, operation.input(name, x).kind) for name, x in case.inputs.items()
        },
        "expected": {
            name: _expected_entry(_rounded(name, each), operation.outputs[name], answers, add)
            for name, each in case.expected.items()
        },
    }


def _expected_entry(each: Expected, field: Field, file: str, add: Add) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": each.kind, "value": add(file, each.value, field.kind)}
    if each.kind == "numbers":  # two digits: more would depend on the machine
        entry["tolerance"] = {
            precision: [float(f"{x:.1e}") for x in pair]
            for precision, pair in each.tolerance.items()
        }
    if each.where is not None:
        entry["where"] = add(file, each.where, "bool")
    if each.slack is not None:
        entry["slack"] = add(file, each.slack, "float")
    if either := {name: x for name, x in each.either.items() if x.any()}:
        entry["either"] = {name: add(file, x, "bool") for name, x in either.items()}
    return entry
