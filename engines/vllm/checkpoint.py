"""Which weights an engine is to load: what its flags and its model folder say. Knows no vLLM.

--model-loader-extra-config '{"key": "llama-8b@3"}'     a key, or
--model-loader-extra-config '{"artifact": "f9a22a..."}' an id; else
<model folder>/tensorcast.json                          written by `tcctl engine model`; else
--model llama-8b                                        the name of the model is the key
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.client.model_files import read_mark
from tensorcast.schema.errors import InvalidArgument

TIMEOUT_S = 600.0
WEIGHT_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth"})


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of `model_loader_extra_config`. `fallback`: the checkpoint on disk may be used
    when the layer is away. `progressive`: loading begins with the tensors that are there.
    `partial`: a node that has nothing of the weights brings only what its ranks need (None: where
    the ranks of the engine are on several machines).
    `context` and `node` choose the cluster and the node as everywhere else."""

    key: str | None = None
    artifact: str | None = None
    context: str | None = None
    node: str | None = None
    timeout_s: float = TIMEOUT_S
    fallback: bool = True
    progressive: bool = True
    in_place: bool = True
    partial: bool | None = None


def read_options(given: object) -> Options:
    """The options of a loader. Raises InvalidArgument for what is not known or does not fit."""
    try:
        options = msgspec.convert(given if isinstance(given, Mapping) else {}, Options)
    except msgspec.ValidationError as error:
        known = ", ".join(Options.__struct_fields__)
        raise InvalidArgument(
            f"--model-loader-extra-config cannot be used: {error}.", hint=f"Known are {known}."
        ) from error
    if options.key and options.artifact:
        raise InvalidArgument(
            "--model-loader-extra-config names a key and an artifact.", hint="Name one of them."
        )
    return options


def name_weights(options: Options, model: str) -> str:
    """The key or id of the weights of a model, `model` being what vLLM calls it: a folder or a
    name. Raises InvalidArgument when nothing says it."""
    named = options.key or options.artifact
    if named:
        return named
    mark = read_mark(Path(model))
    if mark is not None:
        return mark.artifact
    if Path(model).exists():
        raise InvalidArgument(
            f"Nothing says which weights {model} is to have.",
            hint='Name their key: --model-loader-extra-config \'{"key": "..."}\'.',
        )
    return model


def may_have_weights(model: str) -> bool:
    """Whether vLLM can find weights for a model by itself: in its folder, or, for the name of one,
    perhaps in a cache of its own."""
    folder = Path(model)
    if not folder.is_dir():
        return not folder.exists()
    return any(entry.suffix in WEIGHT_SUFFIXES for entry in folder.iterdir())
