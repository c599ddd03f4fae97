"""Files of torch (`.pt`, `.pth`, `.bin`), read without running code that they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.schema.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    import torch


def read_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a `.pt` file, read without running code that it may hold.

    Raises Corrupt when it cannot be read so, InvalidArgument when it is more than a state dict.
    """
    import pickle  # noqa: TID251 - only to name the error that torch raises

    import torch

    try:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before torch 1.6 cannot be mapped
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise Corrupt(
            f"{path} cannot be read as a file of weights only: {str(error).splitlines()[0]}",
            hint="Save a plain state dict with torch.save, or convert it to safetensors.",
        ) from error
    if not isinstance(found, Mapping):
        raise InvalidArgument(
            f"{path} holds a {type(found).__name__}, not a state dict.",
            hint="Save model.state_dict().",
        )
    return dict(found)
