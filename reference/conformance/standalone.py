"""The vectors of kvlab's conformance kit: inputs, expected outputs, tolerances.

This file is the whole of the data package ``kvlab-vectors``, besides the data; it needs NumPy and
safetensors alone. ``kvlab conformance export DIRECTORY`` writes that package.

```python
import kvlab_vectors

for case in kvlab_vectors.read("h2o.whole_cache"):
    found = my_cache(**case["inputs"], **case["parameters"])
    for name, expected in case["expected"].items():
        assert kvlab_vectors.wrong(expected, found[name]) is None
```
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent
DIRECTORIES = {
    "0.9": ("vectors",),
    "1.0": ("vectors", "caches"),
    "1.1": ("vectors", "caches", "caches_1.1"),
}
"""Specification → where its cases lie."""

LATEST = "1.1"
HUGE = 1e30
"""From here on a number counts as infinite."""


def read(target: str | None = None, spec: str = LATEST) -> Iterator[dict[str, Any]]:
    """Yield the cases of a target, or all, as the index describes them, with arrays for names.

    Args:
        target: such as ``attend`` or ``h2o.whole_cache``; None for all.
        spec: version of the specification.
    """
    for directory in DIRECTORIES[spec]:
        index = json.loads((HERE / directory / "index.json").read_text(encoding="utf-8"))
        for case in index["cases"]:
            if target in (None, case["target"]):
                yield filled(case, HERE / directory, HERE / "model")


def filled(case: dict[str, Any], directory: Path, model: Path) -> dict[str, Any]:
    """Return a case with arrays in place of their names, and the model's directory."""

    def tensor(where: str) -> np.ndarray:
        file, _, name = where.partition("/")
        return _tensors(directory / f"{file}.safetensors")[name]

    parameters = dict(case["parameters"])
    if "model" in parameters:
        parameters["model"] = str(model)
    expected = {}
    for name, each in case["expected"].items():
        arrays = {part: tensor(each[part]) for part in ("value", "where", "slack") if part in each}
        either = {key: tensor(where) for key, where in each.get("either", {}).items()}
        expected[name] = {**each, **arrays, "either": either}
    inputs = {name: tensor(where) for name, where in case["inputs"].items()}
    return {**case, "parameters": parameters, "inputs": inputs, "expected": expected}


@lru_cache(maxsize=64)
def _tensors(file: Path) -> dict[str, np.ndarray]:
    return load_file(file)


def wrong(expected: dict[str, Any], found: Any, precision: str = "float32") -> str | None:
    """Return what is wrong with an output, None if nothing is."""
    value, x = expected["value"], np.asarray(found)
    if x.shape != value.shape:
        return f"has the shape {x.shape}, expected {value.shape}"
    if expected["kind"] == "numbers":
        absolute, relative = expected["tolerance"][precision]
        with np.errstate(invalid="ignore"):
            off = np.abs(x.astype(np.float64) - value)
            bad = ~(off <= absolute + relative * np.abs(value) + expected.get("slack", 0.0))
        bad = np.where(np.isposinf(value), ~(x >= HUGE), bad)
    elif expected["kind"] == "at_most":
        bad = (x <= 0) | (x > value)
    elif expected["kind"] == "keep":
        return _wrong_set(expected, x.astype(np.int64), precision)
    else:
        bad = x != value
    bad = bad & expected.get("where", True)
    return f"is wrong in {int(bad.sum())} of {bad.size} elements" if bad.any() else None


def _wrong_set(expected: dict[str, Any], found: np.ndarray, precision: str) -> str | None:
    if (np.diff(found, axis=-1) <= 0).any():
        return "must ascend without repetition"
    either = expected["either"].get(precision)
    for g, (ours, theirs) in enumerate(zip(expected["value"], found, strict=True)):
        apart = np.setxor1d(ours, theirs)
        if either is not None and len(apart) and 0 <= apart.min() <= apart.max() < len(either[g]):
            apart = apart[~either[g][apart]]
        if len(apart):
            return f"of KV head {g} differs in the entries {apart.tolist()}"
    return None
