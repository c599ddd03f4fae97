"""Quantised checkpoints of the tiny model, as those who make them lay them out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GROUP = 128
LINEAR = "_proj.weight"
FP8_MAX = 448.0
Tensors = dict[str, torch.Tensor]


def compressed(kind: str, weights: dict[str, object], activations: bool) -> dict[str, object]:
    """The settings of compressed-tensors."""
    dynamic = {**weights, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": {**weights, "symmetric": True, "dynamic": False}}
    if activations:
        group["input_activations"] = {**dynamic, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def make_gptq(source: Path, target: Path) -> Path:
    """4-bit weights in groups of 128, symmetric (GPTQ)."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
    return write(source, target, {**settings, "desc_act": False}, pack_gptq)


def make_int4(source: Path, target: Path) -> Path:
    """The same as compressed-tensors packs it."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    return write(source, target, compressed("pack-quantized", weights, False), pack_int4)


def make_int8(source: Path, target: Path) -> Path:
    """8-bit weights and activations, by channel (compressed-tensors)."""
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    return write(source, target, compressed("int-quantized", weights, True), pack_int8)


def make_fp8(source: Path, target: Path) -> Path:
    """fp8 weights with one scale for each tensor."""
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return write(source, target, settings, pack_fp8)


def make_fp8_channels(source: Path, target: Path) -> Path:
    """fp8 weights with a scale for each channel (compressed-tensors)."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    return write(source, target, compressed("float-quantized", weights, True), pack_fp8_channels)


def write(
    source: Path,
    target: Path,
    settings: dict[str, object],
    pack: Callable[[str, torch.Tensor], Tensors],
) -> Path:
    """The model of `source` with its linear layers packed; the others in bfloat16."""
    shutil.copytree(source, target)
    tensors: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith(LINEAR):
            tensors.update(pack(name.removesuffix(".weight"), tensor))
        else:
            tensors[name] = tensor.bfloat16()
    (target / "model.safetensors").unlink()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["dtype"] = "bfloat16"
    config["quantization_config"] = settings
    (target / "config.json").write_text(json.dumps(config))
    return target


def pack_fp8(name: str, weight: torch.Tensor) -> Tensors:
    scale = weight.abs().max() / FP8_MAX
    return {
        f"{name}.weight": (weight / scale).to(torch.float8_e4m3fn),
        f"{name}.weight_scale": scale.float(),
    }


def pack_fp8_channels(name: str, weight: torch.Tensor) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True) / FP8_MAX
    return {
        f"{name}.weight": (weight / scales).to(torch.float8_e4m3fn),
        f"{name}.weight_scale": scales.bfloat16(),
    }


def pack_int8(name: str, weight: torch.Tensor) -> Tensors:
    scales = weight.abs().amax(1, keepdim=True) / 127
    return {
        f"{name}.weight": (weight / scales).round().clamp(-128, 127).to(torch.int8),
        f"{name}.weight_scale": scales.bfloat16(),
    }


def pack_int4(name: str, weight: torch.Tensor) -> Tensors:
    rows, columns = weight.shape
    whole, scales = in_groups(weight)
    nibbles = whole.view(rows, columns // 8, 8).to(torch.int64)
    packed = (nibbles << torch.arange(0, 32, 4)).sum(dim=2)
    return {
        f"{name}.weight_packed": as_signed(packed),
        f"{name}.weight_scale": scales.bfloat16(),
        f"{name}.weight_shape": torch.tensor([rows, columns]),
    }


def in_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as numbers from 0 to 15, of which 8 is 0, and the scale of each group."""
    rows, columns = weight.shape
    groups = weight.view(rows, columns // GROUP, GROUP)
    scales = groups.abs().amax(dim=2) / 7
    return (groups / scales[:, :, None]).round().clamp(-8, 7).to(torch.int32) + 8, scales


def pack_gptq(name: str, weight: torch.Tensor) -> Tensors:
    rows, columns = weight.shape
    whole, scales = in_groups(weight)
    nibbles = whole.view(rows, columns).t().reshape(columns // 8, 8, rows)
    shifts = torch.arange(0, 32, 4, dtype=torch.int64)[None, :, None]
    packed = (nibbles.to(torch.int64) << shifts).sum(dim=1)
    zeros = torch.full((columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32)
    return {
        f"{name}.qweight": as_signed(packed).contiguous(),
        f"{name}.scales": scales.t().to(torch.bfloat16).contiguous(),
        f"{name}.qzeros": zeros,
        f"{name}.g_idx": (torch.arange(columns) // GROUP).to(torch.int32),
    }


def as_signed(values: torch.Tensor) -> torch.Tensor:
    """The same 32 bits as int32."""
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)
