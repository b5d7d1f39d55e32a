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

from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance.block_cases import block_cases
from kvlab.reference.conformance.building import cases_on_the_spot, method_cases
from kvlab.reference.conformance.cache_cases import cache_cases
from kvlab.reference.conformance.case import Case, Expected, Tolerance
from kvlab.reference.conformance.engine_cases import engine_cases
from kvlab.reference.conformance.groups import composition
from kvlab.reference.conformance.operation import Field, Kind
from kvlab.reference.conformance.targets import described
from kvlab.reference.conformance.whole_cache import MODEL
from kvlab.reference.notation import Array

FORMAT = 1
"""Version of the files' layout; a reader refuses others."""

DIRECTORY = Path(__file__).with_name("vectors")

SPECIFICATIONS: Mapping[str, Path] = {
    "0.9": DIRECTORY,
    "1.0": Path(__file__).with_name("caches"),
    "1.1": Path(__file__).with_name("caches_1.1"),
}
"""Versions of the specification, oldest first, and where the cases lie that each of them added."""

LATEST = [*SPECIFICATIONS][-1]

INDEX, SCHEMA, SUMS = "index.json", "schema.json", "SHA256SUMS"

SHARED = {"run": "streams", "whole_cache": "caches"}
"""Files of the operations whose cases share their inputs, whatever the method."""

STORED: Mapping[Kind, type] = {
    "float": np.float32,
    "int": np.int32,
    "bool": np.bool_,
    "code": np.uint8,
}
"""Number formats of the files."""

LOADED = {np.dtype(np.float32): np.float64, np.dtype(np.int32): np.int64}
"""Number formats that the reference computes with in place of those of the files."""


@lru_cache(maxsize=1)
def published_methods() -> tuple[str, ...]:
    """Return the names of the methods that have published vectors, in the order of the index.

    Vectors are made in this order, not the registry's, so that a new method renames no tensor.
    """
    index = json.loads((DIRECTORY / INDEX).read_text(encoding="utf-8"))
    specs = (entry["method"] for entry in index["cases"])
    return tuple(dict.fromkeys(methods.base_name(spec) for spec in specs if spec is not None))


def published_cases() -> list[Case]:
    """Build every published case anew from the reference."""
    return [*block_cases("0.9"), *method_cases(published_methods())]


def added_cases(specification: str) -> list[Case]:
    """Build the cases anew that a version of the specification added."""
    if specification == "0.9":
        return published_cases()
    found = [*cache_cases(specification)]
    if specification == "1.1":
        found += [*block_cases(specification), *engine_cases()]
    return found


def directories(specification: str) -> list[Path]:
    """Return where the cases of a specification lie: its own, and those of all before it.

    Raises:
        ValueError: if there is no such specification.
    """
    check_choice(SPECIFICATIONS, spec=specification)
    versions = [*SPECIFICATIONS]
    return [SPECIFICATIONS[each] for each in versions[: versions.index(specification) + 1]]


def all_cases() -> list[Case]:
    """Build every case of the first specification anew, and cases for methods that have none."""
    others = (name for name in methods.names() if name not in published_methods())
    return [*published_cases(), *(case for name in others for case in cases_on_the_spot(name))]


def cases_of(method: str) -> list[Case]:
    """Build the cases of one method anew."""
    published = method in published_methods()
    return list(method_cases((method,)) if published else cases_on_the_spot(method))


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


def write(cases: Iterable[Case], directory: Path, specification: str = "0.9") -> None:
    """Write the files of all cases.

    Args:
        cases: to be written.
        directory: where.
        specification: specification that the cases belong to; the index carries it, from 1.0 on.

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
    carried = "" if specification == "0.9" else f'"specification":"{specification}",'
    contents[INDEX] = f'{{"format":{FORMAT},{carried}"cases":[\n{lines}\n]}}\n'.encode()
    contents[SCHEMA] = (SPECIFICATIONS[specification] / SCHEMA).read_bytes()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    sums = [f"{sha256(contents[name])}  {name}\n" for name in sorted(contents)]
    (directory / SUMS).write_text("".join(sums), encoding="utf-8")


def case_to_json(case: Case, writer: Writer) -> dict[str, Any]:
    """Return a case's entry of the index, and hand its tensors to the writer."""
    operation = described(case)
    own = "blocks" if case.method is None else composition(case.method).replace(":", "-")
    shared = SHARED.get(case.operation, own)
    answers = shared if case.operation == "whole_cache" else own
    return {
        "name": case.name,
        "target": case.target,
        "group": case.group,
        "method": case.method,
        "parameters": {**case.parameters, **model_named(case.parameters, MODEL.name)},
        "inputs": {
            name: writer.add(shared, x, operation.input(name, x).kind)
            for name, x in case.inputs.items()
        },
        "expected": {
            name: expected_to_json(each, operation.outputs[name], answers, writer)
            for name, each in case.expected.items()
        },
    }


def model_named(parameters: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the parameter that says which model a case is about, if it is about one."""
    return {"model": name} if "model" in parameters else {}


def expected_to_json(each: Expected, field: Field, file: str, writer: Writer) -> dict[str, Any]:
    """Return an output's entry of the index."""
    entry: dict[str, Any] = {
        "kind": each.kind,
        "value": writer.add(file, each.value, field.kind),
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
    return Case(
        entry["name"],
        entry["target"],
        entry["group"],
        entry["method"],
        {**entry["parameters"], **model_named(entry["parameters"], str(MODEL))},
        {name: tensor(directory, where) for name, where in entry["inputs"].items()},
        {name: expected_from_json(each, directory) for name, each in entry["expected"].items()},
    )


def expected_from_json(entry: Mapping[str, Any], directory: Path) -> Expected:
    """Return one output of an index."""
    value = tensor(directory, entry["value"])
    tolerance = {name: Tolerance(*each) for name, each in entry.get("tolerance", {}).items()}
    where, slack = entry.get("where"), entry.get("slack")
    either = {}
    if entry["kind"] == "keep":
        found = entry.get("either", {})
        either = {name: tensor(directory, found[name]) for name in found}
    return Expected(
        entry["kind"],
        value,
        tolerance,
        None if where is None else tensor(directory, where),
        None if slack is None else tensor(directory, slack),
        either,
    )


def tensor(directory: Path, where: str) -> Array:
    """Return the array called ``file/tensor``."""
    file, _, name = where.partition("/")
    found = load(directory / f"{file}.safetensors")[name]
    return found.astype(LOADED.get(found.dtype, found.dtype))


@lru_cache(maxsize=64)
def load(file: Path) -> dict[str, Array]:
    """Read one safetensors file."""
    return load_file(file)
