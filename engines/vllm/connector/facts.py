"""What must be equal where KV is shared, read from vLLM's configuration."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorcast.engines.vllm.connector.messages import WorkerFacts
from tensorcast.engines.vllm.connector.space import Fact, describe_configuration, digest_of
from tensorcast.engines.vllm.plugin import engine_version

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

LONG_ROPE = "longrope"
"""A kind of positions whose values depend on the longest request that the engine takes."""


def engine_facts(
    config: VllmConfig, cache: KVCacheConfig, workers: Sequence[WorkerFacts], root: bytes
) -> dict[str, Fact]:
    """All but the weights. `root`: the hash that all chains of blocks begin with, which tells the
    algorithm and its seed."""
    model, parallel, kv = config.model_config, config.parallel_config, config.cache_config
    configuration = describe_configuration(model.hf_config.to_dict())
    algorithm = str(kv.prefix_caching_hash_algo)
    return {
        "engine": f"vllm {engine_version()}",
        "configuration": digest_of(configuration),
        "longest": model.max_model_len if LONG_ROPE in configuration else None,
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(kv.cache_dtype),
        "block_size": kv.block_size,
        "arrangement": str(getattr(cache, "kv_cache_layout", None)),
        "layouts": json.dumps([w.layout for w in sorted(workers, key=lambda w: w.rank)]),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "hash": algorithm,
        "hash_root": root.hex(),
        "pickle": None if "cbor" in algorithm else f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def describe_layout(
    caches: Mapping[str, torch.Tensor], instruction_sets: Mapping[str, str | None]
) -> str:
    """How the bytes of a worker's blocks lie; `instruction_sets`: what the attention of each layer
    packs them for."""
    import torch

    layers = [
        (
            name,
            str(cache.dtype),
            list(cache.shape[1:]),
            list(cache.stride()[1:]),
            instruction_sets.get(name),
        )
        for name, cache in caches.items()
    ]
    capability = torch.backends.cpu.get_cpu_capability()
    return digest_of(json.dumps([platform.machine(), capability, layers]))


def refusal(config: VllmConfig, cache: KVCacheConfig) -> str | None:
    """Why blocks of this engine cannot be shared; None when they can."""
    groups = cache.kv_cache_groups
    if len(groups) != 1:
        return (
            f"The model has {len(groups)} groups of KV caches (sliding windows, Mamba, or several "
            "kinds of attention together), and TensorCastConnector shares models with one group "
            "of full attention only: start the engine without --kv-transfer-config."
        )
    kind = type(groups[0].kv_cache_spec).__name__
    if "FullAttention" not in kind and "MLA" not in kind:
        return (
            f"The KV cache of the model is of kind {kind}, and TensorCastConnector shares full "
            "attention only: start the engine without --kv-transfer-config."
        )
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"TensorCastConnector does not share KV with {name} above 1: leave it at 1."
    return None
