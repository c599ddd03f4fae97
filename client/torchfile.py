"""Files of torch (`.pt`, `.pth`, `.bin`), read without running code that they may hold."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.client.model_files import ModelFile
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.storage.faults import told

if TYPE_CHECKING:
    import torch

_HINT = "Save a plain state dict with torch.save, or convert it to safetensors."
_UNREADABLE = (
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
)
"""What torch raises for files that are broken in one way or another."""


def read_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a `.pt` file, read without running code that it may hold.

    Raises Corrupt when it cannot be read so, InvalidArgument when it is no state dict, NotFound,
    PermissionDenied.
    """
    import pickle  # noqa: TID251 - only for the name of the error that torch raises
    import struct

    with told(path), path.open("rb"):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what it then refuses
            found = _load(path)
    except pickle.UnpicklingError as error:
        # torch's own words advise to load it with code; never pass that on.
        raise Corrupt(
            f"{path} holds more than tensors: reading it would mean to run code from it.",
            hint=_HINT,
        ) from error
    except struct.error as error:
        raise Corrupt(f"{path} cannot be read as a torch file.", hint=_HINT) from error
    except _UNREADABLE as error:
        raise Corrupt(
            f"{path} cannot be read as a torch file{_reason_of(error)}.", hint=_HINT
        ) from error
    if not isinstance(found, Mapping):
        raise InvalidArgument(
            f"{path} holds a {type(found).__name__}, not a state dict.",
            hint="Save model.state_dict().",
        )
    return dict(found)


def as_tensors(files: Sequence[ModelFile]) -> dict[str, torch.Tensor]:
    """The files of a model as the tensors that they become."""
    import torch

    return {
        one.tensor: torch.frombuffer(bytearray(one.content), dtype=torch.uint8)
        if one.content
        else torch.empty(0, dtype=torch.uint8)
        for one in files
    }


def _reason_of(error: Exception) -> str:
    """What torch says, if it says it in words (of a pickle that is none it gives a number)."""
    line = (str(error).splitlines() or [""])[0].strip().rstrip(".")
    return f": {line}" if " " in line else ""


def _load(path: Path) -> object:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # the format before torch 1.6 cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True)
