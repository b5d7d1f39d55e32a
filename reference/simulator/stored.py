"""A trace on the disk, of which one layer at a time is in memory."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array
from kvlab.reference.simulator.trace import (
    BROKEN,
    VECTORS,
    check_arrays,
    check_finite,
    check_values,
    existing_file,
    open_archive,
    read_facts,
)


class StoredTrace:
    """A trace that is read layer by layer; `kvlab.reference.simulator.trace` has the schema.

    Compressed members are best read in the order of the layers: going back to an earlier layer
    starts from the beginning.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is no trace of this version; the message names the member.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = existing_file(path)
        try:
            with open(self.path, "rb") as file:
                facts = read_facts(open_archive(file))
            self.members = {name: Member(self.path, name) for name in VECTORS}
            shapes = {name: member.outline() for name, member in self.members.items()}
            self.positions, self.confidence = facts["positions"], facts["confidence"]
            self.prompt, self.metadata = facts["prompt"], facts["metadata"]
            self.shape = shapes["queries"].shape
            check_arrays({**facts, **shapes})
            check_values(self, facts["tokens"])
        except BROKEN as error:
            raise ValueError(f"{self.path} is no trace: {error}") from None

    def vectors(
        self, index: int
    ) -> tuple[Float[Array, "G rho t d"], Float[Array, "G t d"], Float[Array, "G t d"]]:
        """Return queries, keys and values of one recorded layer.

        Raises:
            ValueError: if they are damaged, or not finite.
        """
        queries, keys, values = (self._read(name, index) for name in VECTORS)
        return queries, keys, values

    def _read(self, name: str, index: int) -> Array:
        layer = self.metadata.layers[index]
        try:
            vectors = self.members[name].layer(index)
        except BROKEN as error:
            raise ValueError(f"{self.path}: {name!r} cannot be read: {error}") from None
        check_finite(name, layer, vectors)
        return vectors


class Member:
    """An array ``[L, ...]`` of an ``npz`` file, whose layers lie one after the other.

    Raises:
        ValueError: if it is missing, damaged, or no array whose first axis comes first in the file.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.archive = zipfile.ZipFile(path)
        try:
            self.stream = self.archive.open(f"{name}.npy")
        except KeyError:
            self.archive.close()
            raise ValueError(f"{name!r} is missing") from None
        self.shape, self.dtype = read_header(self.stream)
        self.begin = self.stream.tell()
        if self.archive.getinfo(f"{name}.npy").compress_type == zipfile.ZIP_STORED:
            while self.stream.read(2**20):  # damage is noticed at the end, and seeking skips it
                pass

    def outline(self) -> Array:
        """Return an array of this shape and type that takes no memory."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def layer(self, index: int) -> Array:
        """Return what belongs to one layer."""
        size = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        self.stream.seek(self.begin + index * size)
        found = self.stream.read(size)
        if len(found) != size:
            raise ValueError("it ends too early")
        return np.frombuffer(found, self.dtype).reshape(self.shape[1:])

    def __del__(self) -> None:
        for opened in ("stream", "archive"):  # what could not be opened is not there
            if hasattr(self, opened):
                getattr(self, opened).close()


def read_header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of an array, and leave the stream at its first element.

    Raises:
        ValueError: if it is no such array, holds objects, or lies in Fortran order.
    """
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"arrays of format {version} cannot be read")
    shape, fortran, dtype = read(stream)
    if fortran or dtype.hasobject:
        raise ValueError("arrays must hold numbers in C order")
    return shape, dtype
