"""Checkpoint files: which ones are meant, what they hold, and their bytes into a segment.

Everything is read with suspicion, and nothing here needs torch. Errors name the file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tensorcast.client.filling import Intake, Piece
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, PermissionDenied
from tensorcast.schema.safetensors import (
    PREFIX_BYTES,
    FileTensor,
    Header,
    header_bytes,
    parse_header,
)
from tensorcast.schema.tensors import lay_out

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
INDEX_BYTES_MAX = 256 << 20
FILES_MAX = 4096


class _ShardIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class SafetensorsFile(NamedTuple):
    """An open file, its header, and what told its state when it was opened."""

    path: Path
    descriptor: int
    header: Header
    stamp: tuple[int, int, int]


# ---- which files ---------------------------------------------------------------------------


def find_files(given: Sequence[object]) -> tuple[Path, ...]:
    """The files that are meant: those given, and for a folder those of its checkpoint.

    Raises NotFound, InvalidArgument for what is no checkpoint, PermissionDenied.
    """
    if not given:
        raise InvalidArgument("No file is named.", hint="Name a file or a checkpoint folder.")
    found: list[Path] = []
    for item in given:
        if not isinstance(item, str | os.PathLike):
            raise InvalidArgument(
                f"A {type(item).__name__} cannot be put.",
                hint="Give a mapping of names to tensors, a path, or several paths.",
            )
        path = Path(os.fsdecode(item)).expanduser()
        found.extend(_files_of_folder(path) if path.is_dir() else (path,))
    for path in found:
        with tell_errors(path):
            path.stat()
        _check_suffix(path)
    if len(found) > 1 and any(path.suffix in TORCH_SUFFIXES for path in found):
        raise InvalidArgument(
            "A torch file can only be put alone.", hint="Convert them to safetensors."
        )
    if len(found) > FILES_MAX:
        raise InvalidArgument(f"{len(found)} files are more than {FILES_MAX}.")
    return tuple(found)


def is_torch_file(paths: Sequence[Path]) -> bool:
    """Whether torch must read it."""
    return paths[0].suffix in TORCH_SUFFIXES


def _check_suffix(path: Path) -> None:
    if path.suffix != SUFFIX and path.suffix not in TORCH_SUFFIXES:
        raise InvalidArgument(
            f"{path} is no checkpoint file by its name.",
            hint=f"Known are {SUFFIX}, {', '.join(TORCH_SUFFIXES)} and folders of them.",
        )


def _files_of_folder(folder: Path) -> tuple[Path, ...]:
    """As HF lays them out: one whole file, or the shards that an index names; else all
    safetensors files, else one torch file."""
    with tell_errors(folder):
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    if WHOLE_NAME in names:
        return (folder / WHOLE_NAME,)
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if INDEX_NAME in indexes or len(indexes) == 1:
        return _files_of_index(folder / (INDEX_NAME if INDEX_NAME in indexes else indexes[0]))
    if indexes:
        raise InvalidArgument(
            f"{folder} has several index files: {', '.join(indexes)}.", hint="Name the files."
        )
    for suffixes in ((SUFFIX,), TORCH_SUFFIXES):
        files = tuple(folder / name for name in names if Path(name).suffix in suffixes)
        if files:
            return files
    raise NotFound(
        f"{folder} holds no checkpoint.",
        hint=f"Expected {WHOLE_NAME}, {INDEX_NAME} or other {SUFFIX} files.",
    )


def _files_of_index(path: Path) -> tuple[Path, ...]:
    """The shards that an index names, once it is known to be true. Raises Corrupt."""
    weight_map = _read_index(path)
    shards = {name: path.parent / name for name in sorted(set(weight_map.values()))}
    for name, shard in shards.items():
        if not _is_plain(name):
            raise Corrupt(
                f"{path} names the file {name!r}, which is not a plain file name.",
                hint="The index is damaged or hostile; do not use it.",
            )
        if not shard.is_file():
            raise Corrupt(f"{path} names {name}, which is missing.", hint="Fetch it again.")
    held: dict[str, str] = {}
    for name, shard in shards.items():
        with open_file(shard) as file:
            for tensor in file.header.tensors:
                if tensor.name in held:
                    raise _twice(tensor.name, path.parent / held[tensor.name], shard)
                held[tensor.name] = name
    _compare(path, weight_map, held)
    return tuple(shards.values())


def _read_index(path: Path) -> dict[str, str]:
    with tell_errors(path), path.open("rb") as file:
        text = file.read(INDEX_BYTES_MAX + 1)
    if len(text) > INDEX_BYTES_MAX:
        raise Corrupt(f"{path} is larger than {INDEX_BYTES_MAX} bytes.")
    try:
        weight_map = msgspec.json.decode(text, type=_ShardIndex).weight_map
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"{path} is no index of shards: {error}.", hint="Fetch it again.") from error
    if not weight_map:
        raise Corrupt(f"{path} names no tensors.", hint="Fetch it again.")
    return weight_map


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


def _compare(path: Path, weight_map: dict[str, str], held: dict[str, str]) -> None:
    for name, shard in weight_map.items():
        if held.get(name) != shard:
            where = f"it is in {held[name]}" if name in held else "it is in none"
            raise Corrupt(
                f"{path} says that {name!r} is in {shard}, but {where}.",
                hint="The checkpoint is not complete or mixed up: fetch it again.",
            )
    for name, shard in held.items():
        if name not in weight_map:
            raise Corrupt(
                f"{shard} holds {name!r}, which {path} does not name.",
                hint="The checkpoint is mixed up: fetch it again.",
            )


# ---- what they hold ------------------------------------------------------------------------


@contextlib.contextmanager
def open_safetensors(paths: Sequence[Path]) -> Iterator[Intake]:
    """What a put of these files will write; they are open until the end of the block.

    Raises Corrupt for a file that breaks the format or changes meanwhile, and for two tensors of
    the same name; NotFound, PermissionDenied.
    """
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open_file(path)) for path in paths]
        places = [(tensor, file) for file in files for tensor in file.header.tensors]
        _check_once(places)
        index, size_bytes = lay_out((t.name, t.dtype, t.shape) for t, _ in places)
        pieces = tuple(
            Piece(ByteRange(spec.offset, tensor.place.size), _reader(file, tensor.place.offset))
            for spec, (tensor, file) in zip(index, places, strict=True)
            if tensor.place.size
        )
        yield Intake(index, size_bytes, pieces, confirm=lambda: _check_unchanged(files))


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[SafetensorsFile]:
    """One file with its parsed header. Errors as `open_safetensors`."""
    with tell_errors(path):
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidArgument(f"{path} is no regular file.")
        stamp = _stamp(descriptor)
        size_bytes = stamp[0]
        prefix = os.pread(descriptor, PREFIX_BYTES, 0)
        length = header_bytes(prefix, size_bytes, str(path))
        text = os.pread(descriptor, length, PREFIX_BYTES)
        yield SafetensorsFile(path, descriptor, parse_header(text, size_bytes, str(path)), stamp)
    finally:
        os.close(descriptor)


def _check_once(places: Sequence[tuple[FileTensor, SafetensorsFile]]) -> None:
    held: dict[str, Path] = {}
    for tensor, file in places:
        if tensor.name in held:
            raise _twice(tensor.name, held[tensor.name], file.path)
        held[tensor.name] = file.path


def _twice(name: str, first: Path, second: Path) -> Corrupt:
    return Corrupt(
        f"Tensor {name!r} is in {first} and in {second}.",
        hint="Put them as artifacts of their own, or name the right file.",
    )


def _reader(file: SafetensorsFile, offset: int) -> Callable[[memoryview, int], None]:
    def read(target: memoryview, start: int) -> None:
        filled = 0
        while filled < len(target):
            with target[filled:] as rest:
                count = os.preadv(file.descriptor, [rest], offset + start + filled)
            if count == 0:
                raise _changed(file)
            filled += count

    return read


def _check_unchanged(files: Sequence[SafetensorsFile]) -> None:
    for file in files:
        if _stamp(file.descriptor) != file.stamp:
            raise _changed(file)


def _stamp(descriptor: int) -> tuple[int, int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _changed(file: SafetensorsFile) -> Corrupt:
    return Corrupt(
        f"{file.path} changed while it was read.", hint="Put it again once it is complete."
    )


@contextlib.contextmanager
def tell_errors(path: Path) -> Iterator[None]:
    """Errors of the operating system as ours, with the path."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"There is no file {path}.") from error
    except PermissionError as error:
        raise PermissionDenied(f"{path} cannot be read.", hint="Check its permissions.") from error
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.") from error
