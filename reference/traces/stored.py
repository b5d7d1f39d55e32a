"""A trace on the disk, of which one layer at a time is in memory."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array
from kvlab.reference.traces.trace import (
    BROKEN,
    VECTORS,
    check_arrays,
    check_finite,
    check_values,
    existing_file,
    read_facts,
)

LOCAL_HEADER = struct.Struct("<26xHH")
"""Lengths of name and extra field, at the end of the header before a member's bytes."""


class StoredTrace:
    """A trace that is read layer by layer; `kvlab.reference.traces.trace` has the schema.

    Members that are not compressed are mapped into memory. Compressed ones are read in the order
    of the layers; going back to an earlier layer starts from the beginning.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is no trace of this version; the message names the member.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = existing_file(path)
        try:
            with open(self.path, "rb") as file:
                archive = np.load(file, allow_pickle=False)
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("it holds a single array")
                facts = read_facts(archive)
            self.members = {name: open_member(self.path, name) for name in VECTORS}
            shapes = {name: member.like() for name, member in self.members.items()}
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
    """An array ``[L, ...]`` of a file."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def like(self) -> Array:
        """Return an array of this shape and type that takes no memory."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def layer(self, index: int) -> Array:
        """Return what belongs to one layer."""
        raise NotImplementedError


class MappedMember(Member):
    """A member that is stored as it is."""

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(shape, dtype)
        self.array = np.memmap(path, dtype, "r", offset, shape)

    def layer(self, index: int) -> Array:
        """Return what belongs to one layer, without reading it yet."""
        return self.array[index]


class CompressedMember(Member):
    """A member that is decompressed from its beginning on."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(shape, dtype)
        self.path, self.name = path, name
        self.archive: zipfile.ZipFile | None = None
        self.stream: Any | None = None
        self.next = 0

    def layer(self, index: int) -> Array:
        """Return what belongs to one layer."""
        if self.stream is None or index < self.next:
            self._rewind()
        for _ in range(index - self.next):
            self._take()
        return np.frombuffer(self._take(), self.dtype).reshape(self.shape[1:])

    def _rewind(self) -> None:
        self.close()
        self.archive = zipfile.ZipFile(self.path)
        self.stream, self.next = self.archive.open(self.name), 0
        read_header(self.stream)

    def close(self) -> None:
        """Close the file."""
        for handle in (self.stream, self.archive):
            if handle is not None:
                handle.close()
        self.archive = self.stream = None

    def __del__(self) -> None:
        self.close()

    def _take(self) -> bytes:
        assert self.stream is not None
        wanted = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        found = self.stream.read(wanted)
        if len(found) != wanted:
            raise ValueError("it ends too early")
        self.next += 1
        return found


def open_member(path: Path, name: str) -> Member:
    """Open an array of an ``npz`` file.

    Raises:
        ValueError: if it is missing, or no array whose first axis comes first in the file.
    """
    file_name = f"{name}.npy"
    with zipfile.ZipFile(path) as archive:
        if file_name not in archive.namelist():
            raise ValueError(f"{name!r} is missing")
        info = archive.getinfo(file_name)
        with archive.open(info) as stream:
            shape, dtype = read_header(stream)
            header = stream.tell()
            if info.compress_type == zipfile.ZIP_STORED:
                while stream.read(2**20):  # its end is where damage is noticed; a map notices none
                    pass
    if info.compress_type != zipfile.ZIP_STORED:
        return CompressedMember(path, file_name, shape, dtype)
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    begin = info.header_offset + LOCAL_HEADER.size + sum(lengths)
    return MappedMember(path, begin + header, shape, dtype)


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
