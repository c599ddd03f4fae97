"""The checkpoint that an engine was started from, as long as it lies where it was and is what it
was: so that an update of weights which fails can be undone."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from tensorcast.engines.updating import Shapes, Weights
from tensorcast.engines.vllm.announcing import NOT_NAMED
from tensorcast.schema.errors import Unavailable

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SAFETENSORS = ".safetensors"
Stamps = Mapping[Path, tuple[int, int, int]]


class DiskWeights:
    """A checkpoint in files, as vLLM's default loader reads it."""

    def __init__(self, vllm_config: VllmConfig, model: torch.nn.Module) -> None:
        load_config = copy.copy(vllm_config.load_config)
        load_config.load_format = "auto"
        load_config.model_loader_extra_config = {}
        self._model_config = vllm_config.model_config
        self._model = model
        self._loader = DefaultModelLoader(load_config)
        self._folder = str(self._model_config.model)
        self._stamps = stamp(find_files(self._folder))

    def weights(self) -> Weights | None:
        """The weights in it; None when there are none, or others than at the start."""
        if not self._stamps or not self._is_unchanged():
            return None
        return Weights(NOT_NAMED, None, self._read, read_shapes(tuple(self._stamps)))

    def check_complete(self, model: torch.nn.Module, loaded: set[str]) -> None:
        """Raises ValueError when a parameter of the model got nothing, as vLLM does at a start."""
        self._loader.track_weights_loading(model, loaded)

    def _read(self) -> Iterator[tuple[str, torch.Tensor]]:
        if not self._is_unchanged():
            raise Unavailable(f"The checkpoint {self._folder} was changed.")
        yield from self._loader.get_all_weights(self._model_config, self._model)

    def _is_unchanged(self) -> bool:
        is_named = self._model_config.model == self._folder  # vLLM's own reload changes it
        return is_named and stamp(tuple(self._stamps)) == self._stamps


def find_files(model: str) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint folder."""
    folder = Path(model)
    return tuple(sorted(folder.glob(f"*{SAFETENSORS}"))) if folder.is_dir() else ()


def stamp(files: tuple[Path, ...]) -> Stamps:
    """What tells whether a file is still the same; files that are not there are left out."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            state = file.stat()
            found[file] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def read_shapes(files: tuple[Path, ...]) -> Shapes:
    """What the tensors of these files look like; nothing when one cannot be read."""
    shapes = {}
    try:
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # it is no mapping
                    part = opened.get_slice(name)
                    shapes[name] = (part.get_dtype(), tuple(part.get_shape()))
    except (OSError, SafetensorError):
        return {}
    return shapes
