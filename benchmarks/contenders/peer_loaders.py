"""The loaders of others, on the CPU, as their own examples call them."""

from __future__ import annotations

from importlib.metadata import version

import torch
from safetensors import safe_open
from safetensors.torch import load_file

KEPT: list[object] = []
"""What owns the memory of tensors and must stay as long as they do."""


def safetensors_mapped(path: str) -> dict[str, torch.Tensor]:
    """`load_file`, which maps the file."""
    return load_file(path)


def safetensors_copied(path: str) -> dict[str, torch.Tensor]:
    """`safe_open`, and a copy of each tensor: private memory."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def fastsafetensors(path: str) -> dict[str, torch.Tensor]:
    """Its loader of one file into host memory, without GPUDirect."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
    loader.add_filenames({0: [path]})
    buffers = loader.copy_files_to_device()
    KEPT.extend((loader, buffers))
    return {name: buffers.get_tensor(name) for name in list(buffers.key_to_rank_lidx)}


def runai(path: str) -> dict[str, torch.Tensor]:
    """runai-model-streamer."""
    from runai_model_streamer import SafetensorsStreamer

    streamer = SafetensorsStreamer()
    streamer.__enter__()
    streamer.stream_file(path)
    KEPT.append(streamer)
    return dict(streamer.get_tensors())


safetensors_mapped.version = safetensors_copied.version = version("safetensors")
for function, package in ((fastsafetensors, "fastsafetensors"), (runai, "runai-model-streamer")):
    try:
        function.version = version(package)
        __import__(package.replace("-", "_"))
    except ImportError:
        function.version = ""
