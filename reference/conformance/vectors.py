"""Test vectors: cases of inputs and outputs, how they are read, and what counts as equal.

This file needs NumPy and safetensors alone. With the vectors and the model beside it, it is the
package ``kvlab-vectors``, which ``kvlab conformance export --out DIRECTORY`` writes:

```python
import kvlab_vectors

for case in kvlab_vectors.read("h2o.whole_cache"):
    found = my_cache(**case.inputs, **case.parameters)
    for name, expected in case.expected.items():
        assert kvlab_vectors.difference(expected, found[name]) is None
```
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).parent

SPECIFICATION = "1.0"
"""The specification whose cases are read here; files of another one are refused."""

VECTORS = HERE / "vectors"
"""Folder of the cases."""

MODEL = next(
    (each for each in (HERE / "model", HERE.parent / "models" / "reasoner") if each.exists()), HERE
)
"""The model of whole caches: ``config.json`` and ``model.safetensors``."""

FORMAT = 1
"""Version of the files' layout; others are refused."""

INDEX, SCHEMA, SUMS = "index.json", "schema.json", "SHA256SUMS"

PRECISIONS = ("float32", "float16", "bfloat16")
"""Number formats in which an implementation works."""

HUGE = 1e30
"""Numbers from here on count as infinite: kernels may return the largest number instead."""

SUBNORMAL = {"float16": 2.0**-24}
"""Two roundings of numbers below 2⁻¹⁴, which the format holds at equal distances."""

SHOWN = 40
"""Indices of a wrong set that a report shows."""

ONE_OF = {
    **{"calls": "call", "N": "row", "layers": "layer", "G": "KV head", "blocks": "block"},
    **{"events": "event", "R": "request"},
}
"""What one place along an axis is called."""


@dataclass(frozen=True)
class Expected:
    """One output of a case.

    ``numbers`` are compared within a tolerance, ``exact`` ones bit by bit; ``at_most`` is a bound
    of numbers above 0. A ``keep`` set is compared as a set: indices that ascend, as many as
    expected, equal to the expected ones but for the entries whose scores are too close to the
    threshold to say which entry is worth more.
    """

    kind: Literal["numbers", "exact", "keep", "at_most"]
    value: np.ndarray
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By the implementation's precision: how far a number x may be from the expected e, as two
    numbers, absolute + relative·\\|e\\|."""
    where: np.ndarray | None = None
    """Elements that count; None: all."""
    slack: np.ndarray | None = None
    """Further absolute tolerance of each element, for example if two roundings are right."""
    either: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By precision, marks ``[G, n]`` of entries that a ``keep`` set may hold or not."""


@dataclass(frozen=True)
class Case:
    """One test vector."""

    name: str
    """Unique: target, group and number."""
    target: str
    """What is tested: a building block, ``attend``, or one step of a method, ``h2o.score``."""
    group: str
    """What the case stresses."""
    method: str | None
    """The method in registry syntax, with all options that differ from its defaults."""
    parameters: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, Expected]

    @property
    def operation(self) -> str:
        """The target without its method."""
        return self.target.rpartition(".")[2]


# --- reading -------------------------------------------------------------------------------------


def read(target: str | None = None, directory: Path = VECTORS) -> Iterator[Case]:
    """Yield the cases of a target, such as ``attend`` or ``h2o.whole_cache``, or of all.

    Raises:
        ValueError: if a file is not what its SHA-256 says, or of another format or specification.
    """
    check_sums(directory)
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    for name, known in (("format", FORMAT), ("specification", SPECIFICATION)):
        if (found := index.get(name)) != known:
            raise ValueError(f"{name} = {found!r} of {directory / INDEX} must be {known!r}")
    for entry in index["cases"]:
        if target in (None, entry["target"]):
            yield _case(entry, directory)


def check_sums(directory: Path) -> None:
    """Raise ValueError unless every file has the content that SHA256SUMS names."""
    for line in (directory / SUMS).read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        found = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        if found != digest:
            raise ValueError(f"{directory / name} has SHA-256 {found}, {SUMS} says {digest}")


def _case(entry: Mapping[str, Any], directory: Path) -> Case:
    def tensor(where: str) -> np.ndarray:
        file, _, name = where.partition("/")
        return _tensors(directory, file)[name]

    model = {"model": str(MODEL)} if "model" in entry["parameters"] else {}
    expected = {
        name: Expected(
            each["kind"],
            tensor(each["value"]),
            {key: (pair[0], pair[1]) for key, pair in each.get("tolerance", {}).items()},
            tensor(each["where"]) if "where" in each else None,
            tensor(each["slack"]) if "slack" in each else None,
            {key: tensor(where) for key, where in each.get("either", {}).items()},
        )
        for name, each in entry["expected"].items()
    }
    return Case(
        entry["name"],
        entry["target"],
        entry["group"],
        entry["method"],
        {**entry["parameters"], **model},
        {name: tensor(where) for name, where in entry["inputs"].items()},
        expected,
    )


@lru_cache(maxsize=64)
def _tensors(directory: Path, file: str) -> dict[str, np.ndarray]:
    return load_file(directory / f"{file}.safetensors")


# --- comparing -----------------------------------------------------------------------------------


def difference(
    expected: Expected, found: Any, precision: str = "float32", axes: Sequence[str] = ()
) -> str | None:
    """Return what is wrong with an output, None if nothing is.

    ``axes`` are names of the output's axes, for messages about marks of positions.
    """
    return compared(expected, found, precision, axes)[0]


def compared(
    expected: Expected, found: Any, precision: str = "float32", axes: Sequence[str] = ()
) -> tuple[str | None, float | None]:
    """Return what is wrong with an output as `difference` does, and a right output's margin.

    That is the part of the tolerance that is left where it comes closest to its limit: 1 is exact;
    None if nothing is compared within a tolerance.
    """
    value, x = expected.value, np.asarray(found)
    allowed = left = None
    if x.shape != value.shape:
        return f"has the shape {x.shape}, expected {value.shape}", None
    if expected.kind == "keep":
        return _keep_difference(expected, x, precision), None
    if expected.kind == "numbers":
        x, value = x.astype(np.float64), value.astype(np.float64)
        allowed = _allowed(expected, value, precision)
        with np.errstate(invalid="ignore"):
            off = np.abs(x - value)
            wrong = ~(off <= allowed)
        left = _least_left(off, allowed, expected.where)
        wrong = np.where(np.isposinf(value), ~(x >= HUGE), wrong)
        wrong = np.where(np.isneginf(value), ~(x <= -HUGE), wrong)
    elif expected.kind == "at_most":
        wrong = ~((x > 0) & (x <= value))
    else:
        wrong = x != value
    if expected.where is not None:
        wrong = wrong & expected.where
    if not wrong.any():
        return None, left
    if expected.kind == "at_most":
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        said = f"is {x[first]:,.0f} at {[*first]}; allowed are 1 to {value[first]:,.0f}"
    elif expected.kind == "exact" and [*axes][-1:] == ["t"]:
        said = _wrong_positions(wrong, x, value, axes)
    else:
        said = _located(wrong, x, value, allowed)
    return said, None


def _least_left(off: np.ndarray, allowed: np.ndarray, where: np.ndarray | None) -> float | None:
    """Return the least part that is left of tolerances above 0; infinities have none."""
    counted = np.isfinite(off) & np.isfinite(allowed) & (allowed > 0)
    if where is not None:
        counted &= where
    return float(1 - (off[counted] / allowed[counted]).max()) if counted.any() else None


def _allowed(expected: Expected, value: np.ndarray, precision: str) -> np.ndarray:
    """Return how far each number may be off."""
    absolute, relative = expected.tolerance[precision]
    slack = SUBNORMAL.get(precision, 0.0) + (0.0 if expected.slack is None else expected.slack)
    return np.broadcast_to(absolute + relative * np.abs(value) + slack, value.shape)


def _wrong_positions(
    wrong: np.ndarray, found: np.ndarray, expected: np.ndarray, axes: Sequence[str]
) -> str:
    """Say where marks of positions first differ, and which positions are kept or missing there."""
    heads = wrong.any(axis=-1)
    first = tuple(int(i) for i in np.argwhere(heads)[0])
    place = ", ".join(f"{ONE_OF[axis]} {i}" for axis, i in zip(axes, first, strict=False))
    extra, missing = (
        np.flatnonzero(wrong[first] & marks[first].astype(bool)) for marks in (found, expected)
    )
    told = [f"holds {_listed(extra)} wrongly"] if len(extra) else []
    told += [f"lacks {_listed(missing)}"] if len(missing) else []
    return (
        f"differs first in {place} (counted from 0), which {', and '.join(told)};"
        f" {int(heads.sum())} of {heads.size} such sets are wrong"
    )


def _listed(indices: np.ndarray) -> str:
    """Return some indices, and how many more there are: of 131,072 nobody reads all."""
    more = f" and {len(indices) - SHOWN} more" if len(indices) > SHOWN else ""
    return f"{indices[:SHOWN].tolist()}{more}"


def _keep_difference(expected: Expected, found: np.ndarray, precision: str) -> str | None:
    """Compare sets; entries that are marked ``either`` may be exchanged for each other."""
    if found.dtype.kind not in "iuf" or not (np.isfinite(found) & (found == np.rint(found))).all():
        return "holds indices that are no whole numbers"
    found = found.astype(np.int64)  # differences of unsigned numbers would wrap around
    if (np.diff(found, axis=-1) <= 0).any():
        return f"must ascend without repetition, got {found.tolist()}"
    either = expected.either.get(precision)
    for g, (ours, theirs) in enumerate(zip(expected.value, found, strict=True)):
        apart = np.setxor1d(ours, theirs)
        if either is not None and len(apart) and apart.min() >= 0 and apart.max() < either.shape[1]:
            apart = apart[~either[g, apart]]
        if len(apart):
            sets = np.setdiff1d(theirs, ours), np.setdiff1d(ours, theirs), ours
            wrong, missing, whole = map(_listed, sets)
            return f"of KV head {g} keeps {wrong} instead of {missing} (expected {whole})"
    return None


def _located(
    wrong: np.ndarray, found: np.ndarray, expected: np.ndarray, allowed: np.ndarray | None
) -> str:
    """Say how many elements are wrong, and which is furthest off; or which is the first."""
    first, limit = tuple(int(i) for i in np.argwhere(wrong)[0]), ""
    if allowed is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.nan_to_num(np.abs(found - expected) / allowed, nan=np.inf, posinf=np.inf)
        worst = int(np.argmax(np.where(wrong, size, -1.0)))
        first = tuple(int(i) for i in np.unravel_index(worst, size.shape))
        limit = f" ± {allowed[first]:.1e}" if np.isfinite(allowed[first]) else ""
    numbers = (f"{x[first]:.7g}" if x.dtype.kind == "f" else x[first] for x in (found, expected))
    return (
        f"is wrong in {int(wrong.sum())} of {wrong.size} elements, most at {[*first]}: "
        f"{' instead of '.join(map(str, numbers))}{limit}"
    )
