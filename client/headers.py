"""Opened checkpoint files: their bytes, wherever they lie, and their headers, which are read with
suspicion."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.safetensors import PREFIX_BYTES, Header, header_bytes, parse_header
from tensorcast.storage import crew
from tensorcast.storage.crew import spread
from tensorcast.storage.faults import told
from tensorcast.storage.objects import REQUESTS_MAX, ObjectReader, open_store
from tensorcast.storage.objects import Place as ObjectPlace
from tensorcast.storage.reader import FileReader, Source, open_reader

Place = Path | ObjectPlace
"""Where a file is: a path of this machine, or an object of a store."""

Stamp = tuple[int, int, int]


class SafetensorsFile(NamedTuple):
    """An open file, its header, and what told its state when it was opened (None for an object,
    of which only one version is read)."""

    place: Place
    source: Source
    header: Header
    stamp: Stamp | None

    @property
    def reader(self) -> FileReader | None:
        """The source, when it is a file of this machine."""
        return self.source if isinstance(self.source, FileReader) else None

    def read_exactly(self, target: memoryview, position: int) -> None:
        """Fills `target` from a position of the file on. Raises Corrupt when the file ends before
        that, and what its source raises."""
        with told(str(self.place)):
            count = self.source.read([target], position)
        if count != target.nbytes:
            raise changed(self)


@contextlib.contextmanager
def open_file(place: Place) -> Iterator[SafetensorsFile]:
    """One file with its parsed header.

    Raises Corrupt for a file that breaks the format, NotFound, PermissionDenied, InvalidArgument
    for what is no file, Unavailable when the disk or the store does not answer.
    """
    if isinstance(place, ObjectPlace):
        yield _open_object(place)
        return
    with contextlib.ExitStack() as opened:
        with told(place):
            reader = opened.enter_context(open_reader(place))
        if not stat.S_ISREG(os.fstat(reader.descriptor).st_mode):
            raise InvalidArgument(f"{place} is no regular file.")
        stamp = _stamp(reader.descriptor)
        yield SafetensorsFile(place, reader, _read_header(reader), stamp)


@contextlib.contextmanager
def open_files(places: Sequence[Place]) -> Iterator[tuple[SafetensorsFile, ...]]:
    """Several files, open until the end of the block; objects are asked for at once. Errors as
    `open_file`, and Corrupt for two tensors of the same name."""
    objects = [place for place in places if isinstance(place, ObjectPlace)]
    found = dict(spread(lambda place: (place, _open_object(place)), objects, REQUESTS_MAX))
    with contextlib.ExitStack() as opened:
        files = tuple(
            found[place]
            if isinstance(place, ObjectPlace)
            else opened.enter_context(open_file(place))
            for place in places
        )
        _check_once(files)
        yield files


def is_cached(files: Sequence[SafetensorsFile]) -> bool:
    """Whether reading them is mostly copying: they lie in the page cache."""
    return all(file.reader is not None and file.reader.is_cached() for file in files)


def choose_reads(files: Sequence[SafetensorsFile]) -> int:
    """How many reads of them should be under way at once when they are not cached."""
    is_local = all(file.reader is not None for file in files)
    return crew.choose_reads() if is_local else REQUESTS_MAX


def check_unchanged(files: Sequence[SafetensorsFile]) -> None:
    """Raises Corrupt when a file was written to since it was opened."""
    for file in files:
        if file.reader is not None and _stamp(file.reader.descriptor) != file.stamp:
            raise changed(file)


def changed(file: SafetensorsFile) -> Corrupt:
    """The error of a file that is not what it was when it was opened."""
    return Corrupt(
        f"{file.place} changed while it was read.", hint="Read it again once it is complete."
    )


def _open_object(place: ObjectPlace) -> SafetensorsFile:
    reader = ObjectReader(open_store(place.root), place.path)
    return SafetensorsFile(place, reader, _read_header(reader), None)


def _read_header(source: Source) -> Header:
    name, size_bytes = source.name, source.size_bytes
    length = header_bytes(_read(source, 0, PREFIX_BYTES), size_bytes, name)
    return parse_header(_read(source, PREFIX_BYTES, length), size_bytes, name)


def _read(source: Source, position: int, size: int) -> bytes:
    """Up to `size` bytes: fewer where the source ends."""
    size = min(size, max(0, source.size_bytes - position))
    content = bytearray(size)
    if not size:
        return b""
    with told(source.name):
        count = source.read([memoryview(content)], position)
    return bytes(content[:count])


def _check_once(files: Sequence[SafetensorsFile]) -> None:
    held: dict[str, Place] = {}
    for file in files:
        for tensor in file.header.tensors:
            if tensor.name in held:
                raise twice(tensor.name, held[tensor.name], file.place)
            held[tensor.name] = file.place


def twice(name: str, first: Place, second: Place) -> Corrupt:
    """The error of a tensor that is in two files."""
    return Corrupt(
        f"Tensor {name!r} is in {first} and in {second}.",
        hint="Put them as artifacts of their own, or name the right file.",
    )


def _stamp(descriptor: int) -> Stamp:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns, found.st_ino
