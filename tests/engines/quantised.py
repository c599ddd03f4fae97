"""A quantised checkpoint of the tiny model, as GPTQ lays it out: 4 bits for a weight."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GROUP = 128
LINEAR = "_proj.weight"


def make_gptq(source: Path, target: Path) -> Path:
    """4-bit weights in groups of 128, symmetric (GPTQ)."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
    shutil.copytree(source, target)
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith(LINEAR):
            tensors.update(pack_gptq(name.removesuffix(".weight"), tensor))
        else:
            tensors[name] = tensor.bfloat16()
    (target / "model.safetensors").unlink()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["dtype"] = "bfloat16"
    config["quantization_config"] = {**settings, "desc_act": False}
    (target / "config.json").write_text(json.dumps(config))
    return target


def pack_gptq(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    rows, columns = weight.shape
    groups = weight.view(rows, columns // GROUP, GROUP)
    scales = groups.abs().amax(dim=2) / 7
    whole = (groups / scales[:, :, None]).round().clamp(-8, 7).to(torch.int32) + 8
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
