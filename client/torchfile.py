"""Files of torch (`.pt`, `.pth`, `.bin`), read without running code that they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.client.files import tell_errors
from tensorcast.schema.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    import torch


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

    import torch

    with tell_errors(path), path.open("rb"):
        pass
    try:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before torch 1.6 cannot be mapped
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (*_UNREADABLE, struct.error, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Corrupt(
            f"{path} cannot be read as a file of weights only: {reason}",
            hint="Save a plain state dict with torch.save, or convert it to safetensors.",
        ) from error
    if not isinstance(found, Mapping):
        raise InvalidArgument(
            f"{path} holds a {type(found).__name__}, not a state dict.",
            hint="Save model.state_dict().",
        )
    return dict(found)
