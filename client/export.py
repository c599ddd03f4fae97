"""An artifact as a safetensors file: whole or not at all, and torch only for strided tensors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorcast.client.filling import Progress
from tensorcast.client.memory import Mapping
from tensorcast.schema.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
)
from tensorcast.schema.safetensors import write_header
from tensorcast.schema.tensors import DTYPE_BITS, tensor_bytes
from tensorcast.schema.views import Selected, byte_ranges

PathLike = str | os.PathLike[str]

FILE_NAME = "model.safetensors"
METADATA = {"format": "pt"}
WRITE_BYTES_MAX = 8 << 20
_DESCRIPTORS = Path("/proc/self/fd")
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_safetensors(
    memory: Mapping | None,
    selected: Sequence[Selected],
    path: PathLike,
    *,
    force: bool,
    stop: threading.Event,
    progress: Progress | None = None,
) -> str:
    """Writes the selected tensors; returns the path of the file.

    Raises InvalidArgument when it exists and not `force`, NotFound without the folder,
    OutOfCapacity when the disk is full, PermissionDenied, Cancelled once `stop` is set. After an
    error nothing is left behind.
    """
    target = choose_file(path)
    with _told(target):
        _check_free(target, force)
    # The format's own writer puts wide dtypes first, which keeps all tensors aligned.
    ordered = sorted(selected, key=lambda item: (-DTYPE_BITS[item.spec.dtype], item.spec.name))
    header = write_header(
        ((item.spec.name, item.spec.dtype, item.shape) for item in ordered), METADATA
    )
    total = len(header) + sum(tensor_bytes(i.spec.dtype, i.shape) for i in ordered)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with _told(target), _temporary(temporary) as descriptor:
        os.posix_fallocate(descriptor, 0, total)  # a full disk is known before the work
        done = _write(descriptor, memoryview(header), 0)
        for piece in _pieces(memory, ordered):
            if stop.is_set():
                raise Cancelled(f"Writing {target} was cancelled.")
            done = _write(descriptor, piece, done)
            if progress is not None:
                progress(done, total)
        os.fsync(descriptor)
        _check_free(target, force)
        _give_name(descriptor, temporary)
        os.replace(temporary, target)
        _sync_folder(target.parent)
    return str(target)


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


def _check_free(target: Path, force: bool) -> None:
    if not force and target.exists():
        raise InvalidArgument(f"{target} exists.", hint="Say force (--force) to replace it.")


def _pieces(memory: Mapping | None, ordered: Sequence[Selected]) -> Iterator[memoryview]:
    for item in ordered:
        if item.spec.strides is not None and item.spec.size_bytes:
            yield from _cut(_gather(memory, item))
        elif memory is not None:
            with memoryview(memory) as whole:
                for place in byte_ranges(item):
                    yield from _cut(whole[place.offset : place.end])


def _cut(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), WRITE_BYTES_MAX):
        yield data[start : start + WRITE_BYTES_MAX]


def _gather(memory: Mapping | None, item: Selected) -> memoryview:
    """The elements of a strided tensor in order."""
    from tensorcast.client.tensors import build_tensors

    tensor = build_tensors(memory, [item])[item.spec.name].contiguous()
    size_bytes = tensor.numel() * tensor.element_size()
    data = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    data.owner = tensor  # type: ignore[attr-defined]  # ctypes arrays have a __dict__
    return memoryview(data).cast("B")


def _write(descriptor: int, data: memoryview, offset: int) -> int:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data = data[count:]
        offset += count
    return offset


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
