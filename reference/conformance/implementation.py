"""Implementations under test: Python functions by target, which take arrays of any library."""

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from kvlab.reference import methods
from kvlab.reference.checks import check_choice
from kvlab.reference.conformance.operation import DTYPES, Field, Kind, Operation
from kvlab.reference.conformance.targets import operation_of
from kvlab.reference.conformance.vectors import PRECISIONS, Case
from kvlab.reference.files import import_file
from kvlab.reference.notation import Array

MOST_ARRAYS = 200
"""Arrays of earlier calls that are held at most, to be used again."""

ALIGNED = 16
"""Elements between the rows of a slice."""

WIDE = "wide_memory"
"""Group in which the pages of a small memory lie far apart."""

MOST_PAGES = 64
"""Pages of such a memory."""

FAR = 2**31
"""Elements after which its last page begins."""

OUTSIDE: Mapping[Kind, Any] = {"float": np.nan, "int": -(2**20), "bool": True, "code": 255}
"""What lies around a slice."""


class NotTestedError(Exception):
    """The implementation does not offer what a case asks for."""


class FailedError(Exception):
    """The implementation gave no answer; the text says why."""


class LostError(FailedError):
    """It crashed or hung in the middle of a case, and its process is gone."""


@runtime_checkable
class Implementation(Protocol):
    """Anything that answers cases."""

    precision: str
    """Number format in which it works."""

    def offers(self, target: str) -> bool:
        """Whether the implementation offers a target."""
        ...

    def answer(self, case: Case) -> dict[str, Array]:
        """Return the outputs of a case.

        NotTestedError says that it does not do what the case asks for, LostError that its process
        is gone; the next case starts another. Whatever else is raised is a failure.
        """
        ...


@dataclass
class Functions:
    """Python functions that take the inputs and parameters that they name.

    Inputs lie in the same memory in every call, and must not be changed; an input with the name of
    an output may be updated in place. Half of them are slices of larger arrays: see `is_slice`.
    """

    functions: Mapping[str, Any]
    """Functions by target; ``*.score`` stands for that step of every method."""
    arrays: str = "numpy"
    """Module whose arrays they take: numpy, torch, cupy, jax.numpy."""
    device: str | None = None
    precision: str = "float32"
    """Number format of the vectors that the functions get."""
    slices: bool = True
    """Whether some inputs are slices."""
    convert: Callable[[Array], Any] = field(init=False, repr=False)
    _memory: dict[Any, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Check everything that can be checked before a case runs."""
        check_choice(PRECISIONS, precision=self.precision)
        if self.precision == "bfloat16" and self.arrays == "numpy":
            raise ValueError("precision = 'bfloat16' needs arrays that have it, as torch has")
        for target, function in self.functions.items():
            _check_function(target, function)
        self.convert = _converter(self.arrays, self.device)

    def offers(self, target: str) -> bool:
        """Whether there is a function for a target."""
        return offered(target, self.functions) is not None

    def answer(self, case: Case) -> dict[str, Array]:
        """Call the function with the inputs that it names; return its outputs as NumPy arrays."""
        pattern = offered(case.target, self.functions)
        if pattern is None:
            raise NotTestedError("no function")
        function, operation = self.functions[pattern], operation_of(case.target)
        wide = case.group == WIDE
        inputs = {name: self.given(name, x, operation, wide) for name, x in case.inputs.items()}
        told = dict.fromkeys((*operation.inputs, *operation.parameters))
        available = {**told, **case.parameters, **inputs, "method": case.method}
        try:
            with redirect_stdout(sys.stderr):  # stdout is for the report alone
                returned = function(**_named(case.target, function, available))
        except NotImplementedError as reason:
            raise NotTestedError(str(reason) or "not implemented") from None
        found = {name: np.array(x) for name, x in outputs_of(returned, case, operation).items()}
        for name in inputs.keys() - operation.outputs.keys():
            after = to_numpy(inputs[name])
            before = case.inputs[name].astype(after.dtype)
            if not np.array_equal(before, after, equal_nan=after.dtype.kind == "f"):
                raise FailedError(f"the input {name} was changed by the call")
        return found

    def given(self, name: str, x: Array, operation: Operation, wide: bool = False) -> Any:
        """Return an input in the array that earlier calls were given, if it has their shape.

        The pages of a ``wide`` memory lie far apart.
        """
        described = operation.input(name, x)
        made = self._converted(x, described)
        if wide and described.axes[:1] == ("pages",) and len(x) <= MOST_PAGES:
            return self._far_apart(name, made)
        if len(self._memory) > MOST_ARRAYS:
            self._memory.clear()
        sliced = self.slices and is_slice(x)
        key = name, described.kind, x.shape, sliced
        if key not in self._memory:
            self._memory[key] = self._sliced(x.shape, described) if sliced else made
        place = self._memory[key]
        try:
            place[...] = made
        except TypeError:  # arrays that cannot be changed, as those of JAX
            return made
        return place

    def _far_apart(self, name: str, made: Any) -> Any:
        """Return pages in an array so large that the last begins after `FAR` elements.

        Nothing else of it is touched, so that main memory holds little more than the pages.
        """
        empty = importlib.import_module(self.arrays).empty
        where = {"device": self.device} if self.device else {}
        shape = len(made), -(-FAR // (len(made) - 1))
        try:
            whole = empty(shape, dtype=made.dtype, **where)
        except (MemoryError, RuntimeError):
            raise NotTestedError(f"{name} beyond 2³¹ elements does not fit into memory") from None
        pages = whole[:, : prod(made.shape[1:])].reshape(made.shape)
        pages[...] = made
        return pages

    def _sliced(self, shape: tuple[int, ...], described: Field) -> Any:
        """Return a slice of a larger array, with the first two axes the other way round in memory.

        It begins behind the first place of each. The last axis is contiguous, and rows begin where
        16 elements end, as in an engine.
        """
        *outer, last = shape
        first = [*(1 for _ in outer[:2]), *(0 for _ in outer[2:]), ALIGNED]
        around = [*(size + 2 for size in reversed(outer[:2])), *outer[2:], last + 2 * ALIGNED]
        whole = np.full(around, OUTSIDE[described.kind])
        whole = self._converted(whole, described)
        if len(outer) > 1:
            whole = whole.swapaxes(0, 1)
        return whole[tuple(slice(at, at + size) for at, size in zip(first, shape, strict=True))]

    def _converted(self, x: Array, described: Field) -> Any:
        stored = x.astype(DTYPES[described.kind])
        if not is_vector(described) or self.precision == "float32":
            return self.convert(stored)
        if not exact_in_16_bits(x):
            raise NotTestedError(f"inputs are not exact in {self.precision}")
        if self.arrays == "numpy":
            return stored.astype(np.float16)
        dtype = getattr(importlib.import_module(self.arrays), self.precision)
        made = self.convert(stored)
        return made.to(dtype) if hasattr(made, "to") else made.astype(dtype)


def offered(target: str, patterns: Collection[str]) -> str | None:
    """Return the pattern that stands for a target, itself first; None if there is none."""
    fitting = (pattern for pattern in patterns if fnmatchcase(target, pattern))
    return target if target in patterns else next(fitting, None)


def is_vector(described: Field) -> bool:
    """Whether an input holds queries, keys, values or the like, in the number format in use."""
    return described.kind == "float" and not {"d", "length"}.isdisjoint(described.axes)


def is_slice(x: Array) -> bool:
    """Whether an input is handed over as a slice of a larger array: its content decides."""
    return x.ndim > 0 and x.size > 0 and crc32(np.ascontiguousarray(x).tobytes()) % 2 == 1


def exact_in_16_bits(x: Array) -> bool:
    """Whether float16 and bfloat16 both hold an array without rounding."""
    finite = x[np.isfinite(x)].astype(np.float32)
    short = (finite.view(np.uint32) & np.uint32(0xFFFF)) == 0
    return bool(short.all()) and np.array_equal(finite.astype(np.float16), finite)


def _check_function(target: str, function: Any) -> None:
    """Refuse what is wrong whatever a case asks; what a method offers depends on its options."""
    if not callable(function):
        raise TypeError(f"implementation of {target!r} must be a function, got {function!r}")
    if "*" in target or "?" in target:
        return
    operation = operation_of(target)
    if not operation.of_method:
        known = dict.fromkeys((*operation.inputs, *operation.parameters, "method"))
        _named(target, function, known)


@cache
def options() -> Collection[str]:
    """Return the names of the options of all methods: what one of them lacks is None."""
    own = (each["options"] for each in methods.describe().values())
    return {*methods.OF_EVERY_METHOD, *chain.from_iterable(own)}


def _named(target: str, function: Any, available: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function names; all where it takes any."""
    parameters = inspect.signature(function).parameters
    rest = [x for x in parameters.values() if x.kind is x.VAR_KEYWORD]
    needed = (x for x in parameters.values() if x.default is x.empty and x not in rest)
    lacks = dict.fromkeys(each.name for each in needed if each.name not in available)
    for name in lacks.keys() - (options() if "." in target else ()):
        close = get_close_matches(name, available, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise TypeError(
            f"implementation of {target!r} asks for {name!r}{meant}; {target} offers "
            f"{', '.join(sorted(available))}"
        )
    return {name: x for name, x in {**lacks, **available}.items() if rest or name in parameters}


def outputs_of(returned: Any, case: Case, operation: Operation) -> dict[str, Array]:
    """Return outputs by name: of a dictionary, of a tuple in order, or of one array."""
    names = [*case.expected]
    if isinstance(returned, Mapping):
        unknown = set(returned) - {*operation.outputs}
        if unknown:
            raise TypeError(f"{min(unknown)!r} is no output of {case.target}; they are {names}")
        return {name: to_numpy(x) for name, x in returned.items() if name in case.expected}
    if not isinstance(returned, tuple):
        returned = (returned,)
    if len(returned) > len(names):
        raise TypeError(f"{len(returned)} outputs for {case.target}; they are {names}")
    return {name: to_numpy(x) for name, x in zip(names, returned, strict=False)}


def load(
    file: Path, arrays: str | None = None, device: str | None = None, precision: str | None = None
) -> Functions:
    """Run a Python file that defines ``IMPLEMENTATIONS``, and return what it implements.

    It may define ``ARRAYS``, ``DEVICE`` and ``PRECISION``, which the arguments override.
    """
    module = import_file(file, f"conformance_{file.stem}")
    table = getattr(module, "IMPLEMENTATIONS", None)
    if not isinstance(table, Mapping) or not table:
        needed = "IMPLEMENTATIONS, a dictionary from targets to functions"
        raise ValueError(f"{file} must define {needed}")
    return Functions(
        table,
        arrays or getattr(module, "ARRAYS", "numpy"),
        device or getattr(module, "DEVICE", None),
        precision or getattr(module, "PRECISION", "float32"),
    )


# --- arrays of any library -----------------------------------------------------------------------


def _converter(library: str, device: str | None) -> Callable[[Array], Any]:
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise ValueError(f"arrays = {library!r} cannot be imported: {error}") from None
    if not hasattr(module, "asarray"):
        raise ValueError(f"arrays = {library!r} must be a module with asarray, as torch or cupy")
    where = {} if device is None else {"device": device}
    return lambda x: module.asarray(x.copy(), **where)


def to_numpy(x: Any) -> Array:
    """Return an array of any library in main memory, 16-bit formats as float32."""
    host = x
    if hasattr(x, "detach"):  # PyTorch
        host = x.detach().cpu()
    elif hasattr(x, "get") and hasattr(x, "device"):  # CuPy
        host = x.get()
    if any(kind in str(getattr(host, "dtype", "")) for kind in ("bfloat16", "float8")):
        host = host.float() if hasattr(host, "float") else host.astype("float32")
    if isinstance(host, list | tuple | int | float) or hasattr(host, "__array__"):
        found = np.asarray(host)
    elif hasattr(host, "__dlpack__"):
        found = np.from_dlpack(host)
    else:
        raise TypeError(f"an array was expected, got {type(x).__name__}")
    if found.dtype == object:
        raise TypeError("an array was expected, got nested objects of unequal length")
    return found
