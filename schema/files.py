"""Small files that travel with an artifact: the configuration and tokenizer of a model.

A file is a tensor of bytes under a reserved name, so its content is part of the artifact's
identity, and is moved, checked and stored as the weights are. Selections leave files out: whoever
reads tensors never meets one.
"""

from __future__ import annotations

from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.tensors import Index, TensorSpec, check_name

FILE_PREFIX = "__file__:"
FILE_BYTES_MAX = 128 << 20
FILES_BYTES_MAX = 512 << 20
"""Limits of one file, and of all files of an artifact."""
FILES_MAX = 256
_NOT_PLAIN = ("", ".", "..")


def tensor_name(file_name: str) -> str:
    """The name of the tensor that holds a file. Raises InvalidArgument for a name that is not the
    plain name of a file."""
    if file_name in _NOT_PLAIN or not file_name.isprintable():
        raise InvalidArgument(f"{file_name!r} cannot be the name of a file.", hint="Rename it.")
    name = f"{FILE_PREFIX}{file_name}"
    check_name(name)
    return name


def is_file(spec: TensorSpec) -> bool:
    """Whether a tensor is a file."""
    return spec.name.startswith(FILE_PREFIX)


def file_name(spec: TensorSpec) -> str:
    """The name of the file that a tensor holds, safe to use within a folder. Raises Corrupt when
    somebody else made it."""
    name = spec.name.removeprefix(FILE_PREFIX)
    try:
        tensor_name(name)
    except InvalidArgument as error:
        raise Corrupt(f"The artifact holds a file of the name {name!r}.") from error
    if spec.dtype != "U8" or len(spec.shape) != 1 or spec.strides is not None:
        raise Corrupt(f"The file {name!r} of the artifact is {spec.dtype} {list(spec.shape)}.")
    return name


def files_of(index: Index) -> dict[str, TensorSpec]:
    """The files of an artifact by name. Raises Corrupt when one cannot be a file."""
    return {file_name(spec): spec for spec in index if is_file(spec)}


def without_files(index: Index) -> Index:
    """The tensors that are no files."""
    return tuple(spec for spec in index if not is_file(spec))
