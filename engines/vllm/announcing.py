"""Tells the cluster that this vLLM runs, and which weights it began with. One rank does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tensorcast.client import TensorCastError, connect
from tensorcast.client.context import resolve_context
from tensorcast.engines.identity import identify
from tensorcast.engines.presence import Presence, share_presence
from tensorcast.engines.vllm import serving
from tensorcast.engines.vllm.checkpoint import Options, name_weights, read_options
from tensorcast.engines.vllm.plugin import KIND, LOAD_FORMAT, LOGGER
from tensorcast.engines.vllm.updates import SEPARATOR
from tensorcast.schema.ids import is_artifact_id

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from tensorcast.client import Client

ASK_S = 2.0
NOT_NAMED = "default"
"""What vLLM calls weights to which nobody gave a version."""


def announce(vllm_config: VllmConfig) -> Presence | None:
    """The presence of this engine, which says from now on which weights it serves; None on all
    ranks but one, and where no cluster is known. Never waits for long."""
    parallel = vllm_config.parallel_config
    if parallel.rank != 0 or parallel.data_parallel_rank != 0:
        return None
    options = find_start(vllm_config)
    try:
        context = resolve_context(options.context, options.node, os.environ)
        presence = share_presence(
            context,
            identify(KIND, os.environ),
            kind=KIND,
            model=str(vllm_config.model_config.model),
            node=context.default_node,
        )
        if presence.served is None:
            with connect(context, timeout=ASK_S) as client:
                version, artifact = find_version(client, vllm_config, options)
            presence.serve(version, artifact)
    except TensorCastError as error:
        LOGGER.warning("TensorCast does not know of this engine: %s", error)
        return None
    return presence


def find_start(vllm_config: VllmConfig) -> Options:
    """What the flags say of the weights that the engine began with; nothing, when they were not to
    come from the cluster."""
    load = vllm_config.load_config
    if load.load_format != LOAD_FORMAT:
        return Options()
    return read_options(load.model_loader_extra_config)


def find_version(
    client: Client, vllm_config: VllmConfig, options: Options
) -> tuple[str, str | None]:
    """What the weights of the start are called, and their artifact."""
    artifact = serving.current_weights()
    if artifact is None or not is_artifact_id(artifact):
        return NOT_NAMED, None
    return name_version(client, name_weights(options, vllm_config.model_config.model), artifact)


def name_version(client: Client, name: str, artifact: str) -> tuple[str, str]:
    """The version of the weights that somebody calls `name`: a key with a version is one; of a key
    without, its moves are counted; else it is the id."""
    if is_artifact_id(name):
        return artifact, artifact
    if SEPARATOR in name:
        return name, artifact
    try:
        key = client.api.key(name)
    except TensorCastError:
        return artifact, artifact
    if key.artifact != artifact:
        return artifact, artifact
    return f"{name}{SEPARATOR}{key.version}", artifact
