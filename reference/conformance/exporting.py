"""Writes a target for harnesses of others: gpu-mode's runner, and flashinfer-bench.

A folder for gpu-mode needs NumPy and PyTorch alone: its runner takes flat files of text and has no
kvlab, so the reference's files are in it as text. A definition of flashinfer-bench imports kvlab.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from safetensors.numpy import save

from kvlab.reference.conformance.operation import Field
from kvlab.reference.conformance.planned import sized_cases
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.conformance.vectors import Case, Expected
from kvlab.reference.files import read_data
from kvlab.reference.notation import Array

TEXTS = read_data("conformance/harnesses.toml")
"""Templates of the files, by format."""

ROOT = Path(__file__).parent.parent
BUNDLED = ("*.py", "methods/*.py", "precisions/*.py", "conformance/*.py", "conformance/*.toml")
LEFT_OUT = tuple(f"conformance/{x}" for x in ("__init__.py", "exporting.py", "harnesses.toml"))
"""Files that a problem for gpu-mode brings along, and those of them that it does not."""

NAMES = {"float": "float32", "int": "int64", "bool": "bool", "code": "int32"}
"""flashinfer-bench's number formats, by kind of array and type of scalar; it has no uint8."""

SMALL, BENCHMARKS = 24, 3
"""Tests that are small cases, and benchmarks: the last tests."""

Files = Mapping[str, str | bytes]


def files_of(target: str, format: str) -> Files:
    """Return the files of a target in one of `FORMATS`, by their paths.

    Raises:
        ValueError: if the target is unknown, or has no cases of the sizes of kernels.
    """
    operation_of(target)
    if not (cases := [*sized_cases("kernel", 0, target.__eq__)]):
        raise ValueError(f"target = {target!r} must have cases of the sizes of kernels")
    return FORMATS[format](cases)


def _tensors(fields: Mapping[str, Field]) -> dict[str, Any]:
    return {
        name: {"shape": [*x.axes], "dtype": NAMES[x.kind], "description": x.meaning}
        for name, x in fields.items()
    }


def gpu_mode(cases: Sequence[Case]) -> Files:
    """Return a problem of gpu-mode's reference-kernels."""
    target, operation = cases[0].target, operation_of(cases[0].target)
    counts = {"small": SMALL, "kernel": len(cases)}
    rows = [(size, number) for size in counts for number in range(counts[size])]
    tests = [f"  - {json.dumps({'sizes': x, 'case': n, 'seed': 100 + n})}\n" for x, n in rows]
    lines = [
        f"  {kind} {name} [{', '.join(x.axes)}], {x.kind}: {x.meaning}\n"
        for kind, fields in (("data", operation.inputs), ("output", operation.outputs))
        for name, x in fields.items()
        if name in cases[0].inputs or name in cases[0].expected
    ]
    files = sorted(file for pattern in BUNDLED for file in ROOT.glob(pattern))
    texts = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}
    filled = {
        "target": target,
        "name": re.sub(r"\W+", "_", f"kvlab_{target}"),
        "summary": operation.summary,
        "arrays": "".join(lines),
        "tests": "".join(tests),
        "benchmarks": "".join(tests[-BENCHMARKS:]),
        "files": "".join(f"    {x!r}: r'''{texts[x]}''',\n" for x in texts if x not in LEFT_OUT),
    }
    return {name: Template(text).substitute(filled) for name, text in TEXTS["gpu-mode"].items()}


def flashinfer_bench(cases: Sequence[Case]) -> Files:
    """Return a dataset of definitions and workloads.

    What scalars and axes cannot say is fixed by a definition: words, the method with its options, a
    softcap that is none, and sizes of outputs that no input has. Left out are cases with infinities
    or a choice between equal scores, in which a right kernel would fail, and outputs of which a
    bound is tested.
    """
    files: dict[str, str | bytes] = {}
    lines, allowed = defaultdict[str, list[str]](list), defaultdict[str, list[Any]](list)
    for case in (case for case in cases if all(map(_has_one_answer, case.expected.values()))):
        definition = _definition(case)
        name, inputs = definition["name"], definition["inputs"]
        blob = f"blob/workloads/kvlab/{name}/{len(lines[name])}.safetensors"
        files[blob] = save({key: x.astype(inputs[key]["dtype"]) for key, x in case.inputs.items()})
        given = {key: {"type": "scalar", "value": case.parameters.get(key)} for key in inputs}
        for key in case.inputs:
            given[key] = {"type": "safetensors", "path": blob, "tensor_key": key}
        workload = {"uuid": case.name, "axes": _sizes(inputs, case.inputs), "inputs": given}
        lines[name].append(json.dumps({"definition": name, "workload": workload}))
        allowed[name] += [_allowed(each) for each in case.expected.values()]
        absolute, relative = np.max(allowed[name], axis=0)
        definition["tags"] = [f"atol:{absolute:.2g}", f"rtol:{relative:.2g}"]
        files[f"definitions/kvlab/{name}.json"] = json.dumps(definition, indent=1)
        files[f"workloads/kvlab/{name}.jsonl"] = "\n".join(lines[name])
    return files


def _has_one_answer(each: Expected) -> bool:
    counted = each.value if each.where is None else each.value[each.where]
    return bool(np.isfinite(counted).all()) and not any(x.any() for x in each.either.values())


def _allowed(each: Expected) -> list[float]:
    """Return two tolerances of which one has to hold: twice those that the kit adds up."""
    absolute, relative = each.tolerance.get("float32", (5e-10, 5e-10))
    slack = 0.0 if each.slack is None else float(each.slack.max())
    return [2 * (absolute + slack), 2 * relative]


def _sizes(tensors: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, int]:
    pairs = [zip(tensors[name]["shape"], x.shape, strict=True) for name, x in arrays.items()]
    return {axis: size for each in pairs for axis, size in each}


def _definition(case: Case) -> dict[str, Any]:
    texts, operation = TEXTS["flashinfer-bench"], operation_of(case.target)
    values = {name: x.value for name, x in case.expected.items() if x.kind != "at_most"}
    inputs = _tensors({name: operation.input(name, x) for name, x in case.inputs.items()})
    outputs = _tensors({name: operation.outputs[name] for name in values})
    known = _sizes(inputs, case.inputs)
    others = {axis: n for axis, n in _sizes(outputs, values).items() if axis not in known}
    scalars = {name: x for name, x in case.parameters.items() if isinstance(x, int | float)}
    for name, x in scalars.items():
        inputs[name] = {"shape": None, "dtype": NAMES[type(x).__name__]}
    fixed = {name: x for name, x in case.parameters.items() if name not in scalars}
    words = ["kvlab", case.target]
    if case.method:  # whose text has its options
        words += [case.method, *(["without softcap"] if fixed.get("softcap", "") is None else [])]
    else:
        words += [x or f"without {name}" for name, x in fixed.items()]
        words += [f"without {name}" for name in operation.inputs if name not in case.inputs]
    words += [f"{axis}{n}" for axis, n in others.items()]
    filled = {
        "target": case.target,
        "arguments": ", ".join(inputs),
        "outputs": {name: each["dtype"] for name, each in outputs.items()},
        "fixed": {**fixed, "method": case.method},
    }
    return {
        "name": re.sub(r"\W+", "_", "_".join(words)),
        "op_type": "kvlab",
        "description": f"{operation.summary} {texts['rules']}",
        "axes": {axis: {"type": "var"} for axis in known}
        | {axis: {"type": "const", "value": n} for axis, n in others.items()},
        "inputs": inputs,
        "outputs": {f"{x}_after" if x in inputs else x: each for x, each in outputs.items()},
        "reference": Template(texts["reference"]).substitute(filled),
    }


FORMATS = {"gpu-mode": gpu_mode, "flashinfer-bench": flashinfer_bench}
