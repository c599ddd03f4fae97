"""Checkpoint files: which ones are meant, and what a put of them will write.

Everything is read with suspicion, and nothing here needs torch. Errors name the file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeGuard
from urllib.parse import unquote, urlsplit

import msgspec

from tensorcast.client.filling import Intake, Piece
from tensorcast.client.fusing import order_fused
from tensorcast.client.headers import (
    Place,
    SafetensorsFile,
    check_unchanged,
    choose_reads,
    is_cached,
    open_files,
)
from tensorcast.client.model_files import ModelFile
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.origins import read_origins
from tensorcast.schema.safetensors import FileTensor
from tensorcast.schema.tensors import lay_out
from tensorcast.storage.faults import told
from tensorcast.storage.objects import RANGE_BYTES, Store, is_url, open_store, parse_url
from tensorcast.storage.objects import Place as ObjectPlace

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
INDEX_BYTES_MAX = 256 << 20
FILES_MAX = 4096


class _ShardIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class Chosen(NamedTuple):
    """The files of a folder that make its checkpoint, or the index that names them."""

    names: tuple[str, ...]
    index_name: str | None = None


# ---- which files ---------------------------------------------------------------------------


def find_files(given: Sequence[object]) -> tuple[Place, ...]:
    """The files that are meant: those given, and for a folder those of its checkpoint. Paths, or
    URLs of a store.

    Raises NotFound, InvalidArgument for what is no checkpoint, PermissionDenied, Unavailable when
    a store does not answer.
    """
    if not given:
        raise InvalidArgument("No file is named.", hint="Name a file or a checkpoint folder.")
    found = tuple(place for item in given for place in _find(item))
    if len(found) > 1 and any(place.suffix in TORCH_SUFFIXES for place in found):
        raise InvalidArgument(
            "A torch file can only be put alone.", hint="Convert them to safetensors."
        )
    if len(found) > FILES_MAX:
        raise InvalidArgument(f"{len(found)} files are more than {FILES_MAX}.")
    return found


def is_torch_file(places: Sequence[Place]) -> TypeGuard[Sequence[Path]]:
    """Whether torch must read it. Raises InvalidArgument for one that is not of this machine."""
    place = places[0]
    if place.suffix in TORCH_SUFFIXES and isinstance(place, ObjectPlace):
        raise InvalidArgument(
            f"{place} is a torch file, which can only be read from a disk.",
            hint="Copy it to this machine, or convert it to safetensors.",
        )
    return place.suffix in TORCH_SUFFIXES


def _find(item: object) -> tuple[Place, ...]:
    if not isinstance(item, str | os.PathLike):
        raise InvalidArgument(
            f"A {type(item).__name__} cannot be put.",
            hint="Give a mapping of names to tensors, a path, or several paths.",
        )
    text = os.fsdecode(item)
    if not text:
        raise InvalidArgument("The path is empty.", hint="Name a file or a checkpoint folder.")
    if "\0" in text:
        raise InvalidArgument(f"{text!r} is no path.", hint="Name a file or a checkpoint folder.")
    if is_url(text) and not text.startswith("file://"):
        return _find_objects(parse_url(text))
    path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text).expanduser()
    if path.is_dir():
        with told(path):
            names = sorted(entry.name for entry in os.scandir(path) if not entry.is_dir())
        return _resolve(path, choose(names, str(path)), lambda name: (path / name).is_file())
    with told(path):
        path.stat()
    _check_suffix(path)
    return (path,)


def _find_objects(place: ObjectPlace) -> tuple[Place, ...]:
    if place.suffix in (SUFFIX, *TORCH_SUFFIXES):
        return (place,)
    store = open_store(place.root)
    names = _names_in(store, place)
    chosen = choose(names, str(place))
    return _resolve(place, chosen, lambda name: not store.can_list or name in names)


def _names_in(store: Store, place: ObjectPlace) -> tuple[str, ...]:
    """The names in a folder; of a server that lists none, those that a checkpoint may have."""
    if store.can_list:
        return store.list_names(place.path)
    for name in (WHOLE_NAME, INDEX_NAME):
        if store.exists(place.child(name).path):
            return (name,)
    return ()


def _check_suffix(path: Path) -> None:
    if path.suffix != SUFFIX and path.suffix not in TORCH_SUFFIXES:
        raise InvalidArgument(
            f"{path} is no checkpoint file by its name.",
            hint=f"Known are {SUFFIX}, {', '.join(TORCH_SUFFIXES)} and folders of them.",
        )


def choose(names: Sequence[str], folder: str) -> Chosen:
    """As HF lays them out: one whole file, or the shards that an index names; else all
    safetensors files, else one torch file. Raises InvalidArgument, NotFound."""
    if WHOLE_NAME in names:
        return Chosen((WHOLE_NAME,))
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if INDEX_NAME in indexes or len(indexes) == 1:
        return Chosen((), INDEX_NAME if INDEX_NAME in indexes else indexes[0])
    if indexes:
        raise InvalidArgument(
            f"{folder} has several index files: {', '.join(indexes)}.", hint="Name the files."
        )
    for suffixes in ((SUFFIX,), TORCH_SUFFIXES):
        files = tuple(name for name in names if Path(name).suffix in suffixes)
        if files:
            return Chosen(files)
    raise NotFound(
        f"{folder} holds no checkpoint.",
        hint=f"Expected {WHOLE_NAME}, {INDEX_NAME} or other {SUFFIX} files.",
    )


def _resolve(folder: Place, chosen: Chosen, is_there: Callable[[str], bool]) -> tuple[Place, ...]:
    if chosen.index_name is None:
        return tuple(_child(folder, name) for name in chosen.names)
    return _files_of_index(folder, _child(folder, chosen.index_name), is_there)


def _child(folder: Place, name: str) -> Place:
    return folder.child(name) if isinstance(folder, ObjectPlace) else folder / name


def _files_of_index(
    folder: Place, index: Place, is_there: Callable[[str], bool]
) -> tuple[Place, ...]:
    """The shards that an index names, once it is known to be true. Raises Corrupt."""
    weight_map = _read_index(index)
    names = sorted(set(weight_map.values()))
    for name in names:
        if not _is_plain(name):
            raise Corrupt(
                f"{index} names the file {name!r}, which is not a plain file name.",
                hint="The index is damaged or hostile; do not use it.",
            )
        if not is_there(name):
            raise Corrupt(f"{index} names {name}, which is missing.", hint="Fetch it again.")
    places = tuple(_child(folder, name) for name in names)
    with open_files(places) as files:
        held = {
            tensor.name: name
            for name, file in zip(names, files, strict=True)
            for tensor in file.header.tensors
        }
    _compare(index, weight_map, held)
    return places


def _read_index(place: Place) -> dict[str, str]:
    text = _read_whole(place)
    if len(text) > INDEX_BYTES_MAX:
        raise Corrupt(f"{place} is larger than {INDEX_BYTES_MAX} bytes.")
    try:
        weight_map = msgspec.json.decode(text, type=_ShardIndex).weight_map
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"{place} is no index of shards: {error}.", hint="Fetch it again.") from error
    if not weight_map:
        raise Corrupt(f"{place} names no tensors.", hint="Fetch it again.")
    return weight_map


def _read_whole(place: Place) -> bytes:
    """All bytes of a small file, or one byte more than an index may have."""
    if isinstance(place, ObjectPlace):
        return open_store(place.root).read_whole(place.path, INDEX_BYTES_MAX)
    with told(place), place.open("rb") as file:
        return file.read(INDEX_BYTES_MAX + 1)


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


def _compare(path: Place, weight_map: dict[str, str], held: dict[str, str]) -> None:
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
def open_safetensors(
    places: Sequence[Place], model_files: Sequence[ModelFile] = ()
) -> Iterator[Intake]:
    """What a put of these files will write; they are open until the end of the block. What is not
    in the page cache is read past it. With the files of a model, which come last, the tensors are
    laid out as engines use them.

    Raises Corrupt for a file that breaks the format or changes meanwhile, and for two tensors of
    the same name; NotFound, PermissionDenied, Unavailable.
    """
    with open_files(places) as files:
        held = [(tensor, file) for file in files for tensor in file.header.tensors]
        if model_files:
            held = order_fused(held, lambda item: item[0].name)
        index, size_bytes = lay_out(
            (
                *((t.name, t.dtype, t.shape) for t, _ in held),
                *((one.tensor, "U8", (len(one.content),)) for one in model_files),
            )
        )
        offsets = {spec.name: spec.offset for spec in index}
        readers = {file.place: _choose_reader(file, offsets) for file in files}
        pieces = tuple(
            Piece(ByteRange(spec.offset, tensor.place.size), readers[file.place](tensor))
            for spec, (tensor, file) in zip(index[: len(held)], held, strict=True)
            if tensor.place.size
        )
        extra = tuple(
            Piece(spec.extent, partial(_copy_part, memoryview(one.content)))
            for spec, one in zip(index[len(held) :], model_files, strict=True)
            if one.content
        )
        yield Intake(
            index,
            size_bytes,
            (*pieces, *extra),
            confirm=lambda: check_unchanged(files),
            reads_wanted=0 if is_cached(files) else choose_reads(files),
            group_bytes=RANGE_BYTES if any(file.reader is None for file in files) else 0,
            labels=read_origins(file.header.metadata for file in files),
        )


Read = Callable[[memoryview, int], None]
_NOTHING = (0, memoryview(b""))


def _choose_reader(
    file: SafetensorsFile, offsets: Mapping[str, int]
) -> Callable[[FileTensor], Read]:
    """How the bytes of each of its tensors are read: `offsets` are those in the artifact."""
    if file.reader is None:
        ahead = _Ahead(file, offsets)
        return lambda tensor: partial(ahead.read, tensor)
    return lambda tensor: partial(_read_file, file, tensor)


def _copy_part(content: memoryview, target: memoryview, start: int) -> None:
    target[:] = content[start : start + len(target)]


def _read_file(file: SafetensorsFile, tensor: FileTensor, target: memoryview, start: int) -> None:
    file.read_exactly(target, tensor.place.offset + start)


class _Ahead:
    """Reads of an object, where each request costs: one request brings all that the object has up
    to the next multiple of RANGE_BYTES in the artifact. Each thread keeps the bytes of its last
    one; a thread that reads group by group (`Intake.group_bytes`) so needs each byte once."""

    def __init__(self, file: SafetensorsFile, offsets: Mapping[str, int]) -> None:
        self._file = file
        self._offsets = offsets
        self._runs = {t.name: run for run in _cut_runs(file, offsets) for t in run}
        self._of_thread = threading.local()

    def read(self, tensor: FileTensor, target: memoryview, start: int) -> None:
        """Fills `target` with the bytes of a tensor from `start` on."""
        position = tensor.place.offset + start
        first, held = getattr(self._of_thread, "held", _NOTHING)
        if not first <= position <= position + len(target) <= first + len(held):
            held = memoryview(b"")
            self._of_thread.held = _NOTHING  # its memory goes before the next comes
            end = self._end(tensor, self._offsets[tensor.name] + start)
            if end - position <= len(target):
                self._file.read_exactly(target, position)
                return
            first, held = position, memoryview(bytearray(end - position))
            self._file.read_exactly(held, position)
            self._of_thread.held = (first, held)
        target[:] = held[position - first : position - first + len(target)]

    def _end(self, tensor: FileTensor, offset: int) -> int:
        """Where in the file that ends which lies before the next multiple of RANGE_BYTES, and
        follows in file and artifact alike."""
        limit = (offset // RANGE_BYTES + 1) * RANGE_BYTES
        run = self._runs[tensor.name]
        number = bisect_left(run, limit, key=lambda one: self._offsets[one.name]) - 1
        place = run[number].place
        return place.offset + min(place.size, limit - self._offsets[run[number].name])


def _cut_runs(file: SafetensorsFile, offsets: Mapping[str, int]) -> list[list[FileTensor]]:
    """The tensors of a file that have bytes, cut where the artifact has another one next."""
    ranks = {name: rank for rank, name in enumerate(sorted(offsets, key=offsets.__getitem__))}
    empty = {ranks[t.name] for t in file.header.tensors if not t.place.size}
    runs: list[list[FileTensor]] = []
    expected = -1
    for tensor in file.header.tensors:
        if not tensor.place.size:
            continue
        if ranks[tensor.name] != expected:
            runs.append([])
        runs[-1].append(tensor)
        expected = ranks[tensor.name] + 1
        while expected in empty:
            expected += 1
    return runs
