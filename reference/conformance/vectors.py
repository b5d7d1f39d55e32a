"""Test vectors as files: safetensors, one index in JSON, and their SHA-256.

``index.json`` (described by ``schema.json``) names the tensors of every case as ``file/tensor``. A
tensor that occurs twice is stored once.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from kvlab.reference.conformance.block_cases import block_cases
from kvlab.reference.conformance.building import method_cases
from kvlab.reference.conformance.case import PRECISIONS, Case, Expected, Tolerance
from kvlab.reference.conformance.operation import Field, Kind
from kvlab.reference.conformance.targets import OPERATIONS, composition
from kvlab.reference.notation import Array

FORMAT = 1
"""Version of the files' layout; a reader refuses others."""

DIRECTORY = Path(__file__).with_name("vectors")
INDEX, SCHEMA, SUMS = "index.json", "schema.json", "SHA256SUMS"

STORED: Mapping[Kind, type] = {
    "float": np.float32,
    "int": np.int32,
    "bool": np.bool_,
    "code": np.uint8,
}
"""Number formats of the files."""

LOADED: Mapping[Kind, type] = {
    "float": np.float64,
    "int": np.int64,
    "bool": np.bool_,
    "code": np.uint8,
}
"""Number formats that the reference computes with."""


def all_cases() -> list[Case]:
    """Build every case from the reference."""
    return [*block_cases(), *method_cases()]


# --- writing -------------------------------------------------------------------------------------


class Writer:
    """Collects tensors by file; equal ones are the same."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Array]] = {}
        self._known: dict[tuple[str, str], str] = {}

    def add(self, file: str, x: Array, kind: Kind) -> str:
        """Store an array and return its name, ``file/tensor``."""
        stored = np.ascontiguousarray(x, dtype=STORED[kind])
        content = hashlib.sha256(f"{stored.dtype} {stored.shape} ".encode() + stored.tobytes())
        key = file, content.hexdigest()
        if key not in self._known:
            tensors = self.files.setdefault(file, {})
            name = f"t{len(tensors):04d}"
            tensors[name] = stored
            self._known[key] = f"{file}/{name}"
        return self._known[key]


def write(cases: Iterable[Case], directory: Path) -> None:
    """Write the files of all cases.

    Raises:
        OSError: if the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    writer = Writer()
    entries = [case_to_json(case, writer) for case in cases]
    contents = {
        f"{file}.safetensors": save(dict(tensors)) for file, tensors in writer.files.items()
    }
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    contents[INDEX] = f'{{"format":{FORMAT},"cases":[\n{lines}\n]}}\n'.encode()
    contents[SCHEMA] = (json.dumps(schema(), indent=1) + "\n").encode()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    sums = [f"{sha256(contents[name])}  {name}\n" for name in sorted(contents)]
    (directory / SUMS).write_text("".join(sums), encoding="utf-8")


def case_to_json(case: Case, writer: Writer) -> dict[str, Any]:
    """Return a case's entry of the index, and hand its tensors to the writer."""
    operation = OPERATIONS[case.operation]
    own = "blocks" if case.method is None else composition(case.method).replace(":", "-")
    shared = "streams" if case.operation == "run" else own
    return {
        "name": case.name,
        "target": case.target,
        "group": case.group,
        "method": case.method,
        "parameters": dict(case.parameters),
        "inputs": {
            name: writer.add(shared, x, operation.inputs[name].kind)
            for name, x in case.inputs.items()
        },
        "expected": {
            name: expected_to_json(each, operation.outputs[name], own, writer)
            for name, each in case.expected.items()
        },
    }


def expected_to_json(each: Expected, described: Field, file: str, writer: Writer) -> dict[str, Any]:
    """Return an output's entry of the index."""
    entry: dict[str, Any] = {
        "kind": each.kind,
        "value": writer.add(file, each.value, described.kind),
    }
    if each.kind == "numbers":
        entry["tolerance"] = {
            precision: [plain(tolerance.absolute), plain(tolerance.relative)]
            for precision, tolerance in each.tolerance.items()
        }
    if each.where is not None:
        entry["where"] = writer.add(file, each.where, "bool")
    if each.slack is not None:
        entry["slack"] = writer.add(file, each.slack, "float")
    if either := {name: x for name, x in each.either.items() if x.any()}:
        entry["either"] = {name: writer.add(file, x, "bool") for name, x in either.items()}
    return entry


def plain(tolerance: float) -> float:
    """Two digits: more would depend on the machine."""
    return float(f"{tolerance:.1e}")


def sha256(content: bytes) -> str:
    """Return the hexadecimal digest."""
    return hashlib.sha256(content).hexdigest()


# --- reading -------------------------------------------------------------------------------------


def read(directory: Path = DIRECTORY) -> list[Case]:
    """Return all cases.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is not what SHA256SUMS says, or of another format.
    """
    check_sums(directory)
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    if index["format"] != FORMAT:
        raise ValueError(f"format = {index['format']} of {directory} must be {FORMAT}")
    return [case_from_json(entry, directory) for entry in index["cases"]]


def check_sums(directory: Path) -> None:
    """Raise ValueError unless every file has the content that SHA256SUMS names."""
    for line in (directory / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        found = sha256((directory / name).read_bytes())
        if found != digest:
            raise ValueError(f"{directory / name} has SHA-256 {found}, {SUMS} says {digest}")


def case_from_json(entry: Mapping[str, Any], directory: Path) -> Case:
    """Return one case of an index."""
    operation = OPERATIONS[entry["target"].rpartition(".")[2]]
    return Case(
        entry["name"],
        entry["target"],
        entry["group"],
        entry["method"],
        entry["parameters"],
        {
            name: tensor(directory, where, operation.inputs[name].kind)
            for name, where in entry["inputs"].items()
        },
        {
            name: expected_from_json(each, operation.outputs[name], directory)
            for name, each in entry["expected"].items()
        },
    )


def expected_from_json(entry: Mapping[str, Any], described: Field, directory: Path) -> Expected:
    """Return one output of an index."""
    value = tensor(directory, entry["value"], described.kind)
    tolerance = {name: Tolerance(*each) for name, each in entry.get("tolerance", {}).items()}
    where, slack = entry.get("where"), entry.get("slack")
    either = {}
    if entry["kind"] == "keep":
        found = entry.get("either", {})
        either = {name: tensor(directory, found[name], "bool") for name in found}
    return Expected(
        entry["kind"],
        value,
        tolerance,
        None if where is None else tensor(directory, where, "bool"),
        None if slack is None else tensor(directory, slack, "float"),
        either,
    )


def tensor(directory: Path, where: str, kind: Kind) -> Array:
    """Return the array called ``file/tensor``."""
    file, _, name = where.partition("/")
    return load(directory / f"{file}.safetensors")[name].astype(LOADED[kind])


@lru_cache(maxsize=64)
def load(file: Path) -> dict[str, Array]:
    """Read one safetensors file."""
    return load_file(file)


# --- schema --------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """Return the JSON schema of the index."""
    reference = {"type": "string", "pattern": "^[a-z0-9_-]+/t[0-9]{4}$"}
    tensors = {"type": "object", "additionalProperties": reference}
    tolerance = {
        "type": "array",
        "items": {"type": "number", "minimum": 0},
        "minItems": 2,
        "maxItems": 2,
        "description": "absolute, relative: a number x may be off the expected e by "
        "absolute + relative * |e|, plus slack where there is one",
    }
    by_precision = {
        "type": "object",
        "properties": dict.fromkeys(PRECISIONS, tolerance),
        "required": list(PRECISIONS),
        "additionalProperties": False,
        "description": "by the number format in which the implementation works",
    }
    expected = {
        "type": "object",
        "properties": {
            "kind": {
                "enum": ["numbers", "exact", "keep"],
                "description": "numbers: within the tolerance, infinite where the expected is, or "
                "above 1e30; exact: bit by bit; keep: indices that ascend, as many as expected, "
                "the expected ones but for entries marked in either",
            },
            "value": reference,
            "tolerance": by_precision,
            "where": {**reference, "description": "elements that count; missing: all"},
            "slack": {**reference, "description": "further absolute tolerance per element"},
            "either": {
                "type": "object",
                "properties": dict.fromkeys(PRECISIONS, reference),
                "additionalProperties": False,
                "description": "near ties: marks [G, n] of entries that may stay or go, by "
                "precision; missing: none",
            },
        },
        "required": ["kind", "value"],
        "additionalProperties": False,
    }
    case = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "target": {
                "type": "string",
                "description": "a building block such as attend, or a step of a method such as "
                "caote:h2o.score",
            },
            "group": {"type": "string", "description": "what the case stresses"},
            "method": {
                "type": ["string", "null"],
                "description": "name@option=value,... with all options that differ from defaults",
            },
            "parameters": {
                "type": "object",
                "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
                "description": "of the operation, and all options of the method",
            },
            "inputs": tensors,
            "expected": {"type": "object", "additionalProperties": expected, "minProperties": 1},
        },
        "required": ["name", "target", "group", "method", "parameters", "inputs", "expected"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvlab conformance vectors",
        "description": "A tensor is named file/tensor: tensor of file.safetensors. Floats are F32, "
        "whole numbers I32, marks BOOL, codes U8.",
        "type": "object",
        "properties": {"format": {"const": FORMAT}, "cases": {"type": "array", "items": case}},
        "required": ["format", "cases"],
        "additionalProperties": False,
    }
