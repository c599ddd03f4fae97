"""Prints, as JSON, a digest of every parameter of a model after vLLM's loading and before anything
is made of it: so quantised checkpoints can be compared for which this CPU has no kernels.

    parameters.py MODEL LOAD_FORMAT [OPTIONS OF THE LOADER]
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model

from engine import free_port


def load(config: VllmConfig) -> torch.nn.Module:
    """The model with its weights."""
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{free_port()}", 0, "gloo")
        initialize_model_parallel(1, 1)
        loader = get_model_loader(config.load_config)
        default = torch.get_default_dtype()
        torch.set_default_dtype(config.model_config.dtype)
        model = initialize_model(vllm_config=config, model_config=config.model_config)
        torch.set_default_dtype(default)
        loader.load_weights(model, config.model_config)
    return model


def digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(flat).hexdigest()}"


def main(model: str, load_format: str, options: str = "{}") -> None:
    config = EngineArgs(
        model=model,
        dtype="bfloat16",
        load_format=load_format,
        model_loader_extra_config=json.loads(options),
        enforce_eager=True,
    ).create_engine_config()
    found = {name: digest(one) for name, one in load(config).named_parameters()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
