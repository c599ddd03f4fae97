"""The small files of a model beside its weights: found in a checkpoint folder, put as part of the
artifact, and written back. Names from an artifact are never trusted (`schema/files.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from tensorcast.client.memory import Mapping as MemoryMapping
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.files import (
    FILE_BYTES_MAX,
    FILES_BYTES_MAX,
    FILES_MAX,
    files_of,
    tensor_name,
)
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index
from tensorcast.schema.wording import tell_count
from tensorcast.storage.faults import told
from tensorcast.storage.objects import Place as ObjectPlace
from tensorcast.storage.objects import is_url, open_store, parse_url

CONFIG_NAME = "config.json"
"""A folder with this file holds a model."""
MARK_NAME = "tensorcast.json"
MARK_BYTES_MAX = 1 << 16
_WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".npz",
)


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What `tensorcast.json` in a model's folder says: whose files these are, so that an engine
    finds the weights that belong to them; and by which name it was asked for then."""

    artifact: ArtifactId
    name: str = ""


class ModelFolder(NamedTuple):
    """A folder with all of a model but its weights."""

    artifact: ArtifactId
    folder: str
    paths: tuple[str, ...]


class ModelFile(NamedTuple):
    """A file of a model: the name of its tensor, and its bytes."""

    tensor: str
    content: bytes


# ---- in ----------------------------------------------------------------------------------------


def find_model_files(given: Sequence[object]) -> tuple[ModelFile, ...]:
    """What travels along with a put of these: of a folder (or a URL of one) with a config.json,
    all its files that are no weights, but for hidden ones and those in subfolders. Of anything
    else nothing.

    Raises InvalidArgument for files that are too large or too many, PermissionDenied, Unavailable.
    """
    if len(given) != 1 or not isinstance(given[0], str | os.PathLike):
        return ()
    text = os.fsdecode(given[0])
    if is_url(text) and not text.startswith("file://"):
        return _find_objects(parse_url(text))
    path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text).expanduser()
    if not path.is_dir():
        return ()
    with told(path):
        names = [entry.name for entry in os.scandir(path) if entry.is_file()]
    return _read_all(choose_model_files(names), lambda name: _read_file(path / name), str(path))


def choose_model_files(names: Sequence[str]) -> tuple[str, ...]:
    """Those names in a folder that are files of a model, sorted; none without a config.json."""
    if CONFIG_NAME not in names:
        return ()
    return tuple(
        name
        for name in sorted(names)
        if not name.startswith(".")
        and name != MARK_NAME
        and not name.endswith(_WEIGHTS)
        and name.isprintable()
    )


def _find_objects(place: ObjectPlace) -> tuple[ModelFile, ...]:
    store = open_store(place.root)
    if place.name.endswith(_WEIGHTS) or not store.can_list:
        return ()
    names = choose_model_files(store.list_names(place.path))

    def read(name: str) -> bytes:
        return store.read_whole(place.child(name).path, FILE_BYTES_MAX)

    return _read_all(names, read, str(place))


def _read_file(path: Path) -> bytes:
    with told(path), path.open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def _read_all(
    names: Sequence[str], read: Callable[[str], bytes], folder: str
) -> tuple[ModelFile, ...]:
    if len(names) > FILES_MAX:
        raise InvalidArgument(
            f"{folder} holds {len(names)} files beside the weights; {FILES_MAX} is the limit.",
            hint="Name the weight files, or remove what does not belong to the model.",
        )
    found: list[ModelFile] = []
    left_bytes = FILES_BYTES_MAX
    for name in names:
        content = read(name)
        left_bytes -= len(content)
        if len(content) > FILE_BYTES_MAX or left_bytes < 0:
            raise InvalidArgument(
                f"{name} in {folder} is too large to travel with the weights.",
                hint="Name the weight files to leave it out.",
            )
        found.append(ModelFile(tensor_name(name), content))
    return tuple(found)


# ---- out ---------------------------------------------------------------------------------------


def read_files(memory: MemoryMapping | None, index: Index) -> dict[str, bytes]:
    """The files of an artifact by name. Raises Corrupt when one cannot be a file."""
    found = {}
    for name, spec in files_of(index).items():
        if spec.size_bytes > FILE_BYTES_MAX:
            size = tell_count(spec.size_bytes, "byte")
            raise Corrupt(f"The file {name!r} of the artifact has {size}.")
        extent = spec.extent
        found[name] = bytes(memory[extent.offset : extent.end]) if memory else b""
    return found


def find_folder(path: str | os.PathLike[str]) -> Path | None:
    """The folder of this machine that is meant by the target of an export; None for a file or a
    URL."""
    text = os.fspath(path)
    if is_url(text):
        return None
    target = Path(text).expanduser()
    return target if text.endswith("/") or target.is_dir() else None


def check_files(files: Mapping[str, bytes], folder: Path, *, force: bool) -> None:
    """Raises InvalidArgument when another file of one of these names is there (unless `force`);
    one with the same content is welcome."""
    for name, content in files.items():
        path = folder / name
        if not force and path.exists() and not _holds(path, content):
            raise InvalidArgument(f"{path} exists.", hint="Say force (--force) to replace it.")


def write_files(files: Mapping[str, bytes], folder: Path, *, force: bool) -> tuple[str, ...]:
    """Writes files into a folder, which is made; returns their paths.

    Raises as `check_files` before anything is written; PermissionDenied, OutOfCapacity.
    """
    check_files(files, folder, force=force)
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not _holds(folder / name, content):
            _write(folder / name, content)
    return tuple(str(folder / name) for name in files)


def write_model_folder(
    files: Mapping[str, bytes], mark: Mark, folder: str | os.PathLike[str], *, force: bool
) -> ModelFolder:
    """Writes the files of an artifact, and last the mark that names it. Raises as `write_files`,
    and NotFound without files."""
    if not files:
        raise NotFound(
            f"No files travel with artifact {mark.artifact}.",
            hint="Put the folder of the model, with its config.json.",
            artifact=mark.artifact,
        )
    target = Path(folder).expanduser()
    paths = write_files(files, target, force=force)
    marked = target / MARK_NAME
    _write(marked, msgspec.json.encode(mark) + b"\n")
    return ModelFolder(mark.artifact, str(target), (*paths, str(marked)))


def read_mark(folder: Path) -> Mark | None:
    """What a model's folder says of its weights; None when it says nothing. Raises InvalidArgument
    for a mark that cannot be read."""
    try:
        with (folder / MARK_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MARK_BYTES_MAX), type=Mark)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidArgument(
            f"{folder / MARK_NAME} cannot be read: {error}.",
            hint="Write it again: tcctl get KEY FOLDER/ --without-weights.",
        ) from error


def _holds(path: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size == len(content) and path.read_bytes() == content
    return False


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with told(path):
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
