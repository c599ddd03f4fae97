"""An artifact as a safetensors file, on a disk or in a store: whole or not at all. Torch only for
strided tensors. A file is written past the page cache, where only the artifact itself belongs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tensorcast.client.filling import Progress
from tensorcast.client.memory import Mapping as MemoryMapping
from tensorcast.schema.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
)
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.safetensors import write_header
from tensorcast.schema.tensors import DTYPE_BITS, tensor_bytes
from tensorcast.schema.views import Selected, byte_ranges
from tensorcast.storage.crew import choose_reads, spread
from tensorcast.storage.objects import Place, is_url, open_store, parse_url
from tensorcast.storage.spans import Block, Span, cut_blocks
from tensorcast.storage.writer import FileWriter

PathLike = str | os.PathLike[str]

FILE_NAME = "model.safetensors"
METADATA = {"format": "pt"}
_NOTHING: Mapping[str, str] = MappingProxyType({})
WRITE_BYTES_MAX = 8 << 20
_DESCRIPTORS = Path("/proc/self/fd")
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class Written(NamedTuple):
    """A file, and the artifact whose bytes it has."""

    artifact: ArtifactId
    path: str


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_safetensors(
    memory: MemoryMapping | None,
    selected: Sequence[Selected],
    path: PathLike,
    *,
    force: bool,
    stop: threading.Event,
    progress: Progress | None = None,
    notes: Mapping[str, str] = _NOTHING,
) -> str:
    """Writes the selected tensors, with `notes` in the metadata of the file; returns the path of
    the file, or the URL of the object.

    Raises InvalidArgument when it exists and not `force`, NotFound without the folder,
    OutOfCapacity when the disk is full, PermissionDenied, Cancelled once `stop` is set. After an
    error nothing is left behind.
    """
    target = choose_target(path)
    _check_free(target, force)
    # The format's own writer puts wide dtypes first, which keeps all tensors aligned.
    ordered = sorted(selected, key=lambda item: (-DTYPE_BITS[item.spec.dtype], item.spec.name))
    header = write_header(
        ((item.spec.name, item.spec.dtype, item.shape) for item in ordered), {**METADATA, **notes}
    )
    starts = [len(header)]
    for item in ordered:
        starts.append(starts[-1] + tensor_bytes(item.spec.dtype, item.shape))
    work = _Writing(memory, tuple(zip(ordered, starts, strict=False)), header, starts[-1], progress)
    try:
        if isinstance(target, Place):
            _write_object(work, target, stop)
        else:
            _write_file(work, target, force, stop)
    except Cancelled as error:
        raise Cancelled(f"Writing {target} was cancelled.") from error
    return str(target)


@dataclass(frozen=True)
class _Writing:
    """What is written: each tensor with its position in a file of `total_bytes`."""

    memory: MemoryMapping | None
    places: tuple[tuple[Selected, int], ...]
    header: bytes
    total_bytes: int
    progress: Progress | None

    def report(self, done_bytes: int) -> None:
        """Tells how far it is. Not from several threads at once."""
        if self.progress is not None:
            self.progress(done_bytes, self.total_bytes)


def measure(path: str) -> int:
    """The size of a file or an object in bytes."""
    if is_url(path):
        place = parse_url(path)
        return open_store(place.root).read_head(place.path)[0].size_bytes
    return os.stat(path).st_size


# ---- where -------------------------------------------------------------------------------------


def choose_target(path: PathLike) -> Path | Place:
    """The file or object that is meant by a path or URL: one that ends with '/' is a folder, for
    `model.safetensors`."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidArgument(
            f"A {type(path).__name__} is no path.", hint="Name a file, a folder or a URL."
        )
    if not isinstance(path, str) or not is_url(path):
        return choose_file(path)
    place = parse_url(path)
    target = place.child(FILE_NAME) if path.endswith("/") else place
    if not target.path:
        raise InvalidArgument(f"{path} names no object.", hint="Write it as s3://bucket/path.")
    return target


def choose_file(path: PathLike) -> Path:
    """The file that is meant by a path: `model.safetensors` in a folder that exists or is written
    with '/' at its end, which is then made; else the path itself."""
    text = os.fspath(path)
    target = Path(text).expanduser()
    if not text:
        raise InvalidArgument("No path is named.", hint="Name a file or a folder.")
    if text.endswith("/"):
        with _told(target):
            target.mkdir(parents=True, exist_ok=True)
    with _told(target):
        return target / FILE_NAME if target.is_dir() else target


def _check_free(target: Path | Place, force: bool) -> None:
    if isinstance(target, Place):
        is_there = not force and open_store(target.root).exists(target.path)
    else:
        with _told(target):
            is_there = not force and target.exists()
    if is_there:
        raise InvalidArgument(f"{target} exists.", hint="Say force (--force) to replace it.")


# ---- a file ------------------------------------------------------------------------------------


def _write_file(work: _Writing, target: Path, force: bool, stop: threading.Event) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with _told(target), _temporary(temporary) as descriptor:
        os.posix_fallocate(descriptor, 0, work.total_bytes)  # a full disk is known before the work
        with contextlib.closing(FileWriter(descriptor)) as writer:
            _write_all(work, writer, stop)
            writer.finish()
        _check_free(target, force)
        _give_name(descriptor, temporary)
        os.replace(temporary, target)
        _sync_folder(target.parent)


def _write_all(work: _Writing, writer: FileWriter, stop: threading.Event) -> None:
    lock = threading.Lock()
    done_bytes = len(work.header)

    def write(position: int, parts: Sequence[memoryview]) -> None:
        nonlocal done_bytes
        writer.write(parts, position)
        with lock:
            done_bytes += sum(part.nbytes for part in parts)
            work.report(done_bytes)

    def write_block(block: Block) -> None:
        with memoryview(work.memory or b"") as whole:
            parts = [whole[span.target : span.target + span.size] for span in block]
            write(block[0].position, parts)

    writer.write([memoryview(work.header)], 0)
    spread(write_block, cut_blocks(_spans(work), gap_bytes_max=0), choose_reads(), stop)
    for item, position in work.places:
        if _is_strided(item):
            write(position, [_gather(work.memory, item)])


def _spans(work: _Writing) -> Iterator[Span]:
    for item, start in work.places:
        position = start
        for place in () if _is_strided(item) else byte_ranges(item):
            yield Span(position, place.size, place.offset)
            position += place.size


def _is_strided(item: Selected) -> bool:
    return item.spec.strides is not None and item.spec.size_bytes > 0


# ---- an object ---------------------------------------------------------------------------------


def _write_object(work: _Writing, target: Place, stop: threading.Event) -> None:
    """In parts, as they are read; the store shows the object when all of them are there."""

    def pieces() -> Iterator[memoryview]:
        done_bytes = len(work.header)
        yield memoryview(work.header)
        for piece in _pieces(work):
            if stop.is_set():
                raise Cancelled(f"Writing {target} was cancelled.")
            yield piece
            done_bytes += piece.nbytes
            work.report(done_bytes)

    open_store(target.root).write(target.path, pieces(), work.total_bytes)


def _pieces(work: _Writing) -> Iterator[memoryview]:
    for item, _ in work.places:
        if _is_strided(item):
            yield from _cut(_gather(work.memory, item))
        elif work.memory is not None:
            with memoryview(work.memory) as whole:
                for place in byte_ranges(item):
                    yield from _cut(whole[place.offset : place.end])


def _cut(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), WRITE_BYTES_MAX):
        yield data[start : start + WRITE_BYTES_MAX]


def _gather(memory: MemoryMapping | None, item: Selected) -> memoryview:
    """The elements of a strided tensor in order."""
    from tensorcast.client.tensors import build_tensors

    tensor = build_tensors(memory, [item])[item.spec.name].contiguous()
    size_bytes = tensor.numel() * tensor.element_size()
    data = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    data.owner = tensor  # type: ignore[attr-defined]  # ctypes arrays have a __dict__
    return memoryview(data).cast("B")


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[int]:
    """A new file without a name, so that a kill leaves nothing behind; where the file system has no
    such files, one named `path`."""
    descriptor = _open_unnamed(path.parent)
    if descriptor is None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _open_unnamed(folder: Path) -> int | None:
    if not _DESCRIPTORS.is_dir():
        return None
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise


def _give_name(descriptor: int, path: Path) -> None:
    """Links an unnamed file to `path`; one that has a name keeps it."""
    if os.fstat(descriptor).st_nlink:
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with a folder of its own does `os.link` follow the link in /proc to the file.
        source = _DESCRIPTORS / str(descriptor)
        os.link(source, path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    """Errors of the operating system as ours, with the path."""
    try:
        yield
    except OSError as error:
        raise _translate(error, target) from error


def _translate(error: OSError, target: Path) -> TensorCastError:
    if error.errno in _FULL:
        return OutOfCapacity(
            f"There is no room for {target}.", hint="Free space on that disk, or choose another."
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError) and not target.parent.is_dir():
        return NotFound(f"There is no folder {target.parent}.", hint="Make it first.")
    if isinstance(error, PermissionError | FileNotFoundError) or error.errno == errno.EROFS:
        return PermissionDenied(f"{target} cannot be written.", hint="Check its folder.")
    return InvalidArgument(f"{target} cannot be written: {error.strerror}.")
