"""Tiny random models in which layers see a window of the tokens before them only."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    MistralConfig,
    PreTrainedConfig,
)

from models import TINY, write_tokenizer

WINDOW = 256
LOUD = 30.0
"""How much the layers count beside the embedding of the last token, which would else be repeated
for ever, whatever came before it."""

SHAPE = {
    "vocab_size": TINY.vocabulary,
    "hidden_size": TINY.hidden,
    "intermediate_size": TINY.intermediate,
    "num_hidden_layers": TINY.layers,
    "num_attention_heads": TINY.heads,
    "num_key_value_heads": TINY.kv_heads,
    "head_dim": TINY.head,
    "max_position_embeddings": TINY.positions_max,
    "sliding_window": WINDOW,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def describe(kind: str) -> PreTrainedConfig:
    """`mistral`: windows in all layers; `gemma2` and `gemma3`: in every other one."""
    match kind:
        case "mistral":
            return MistralConfig(**SHAPE, tie_word_embeddings=False)
        case "gemma2":
            return Gemma2Config(**SHAPE, query_pre_attn_scalar=TINY.head)
        case "gemma3":
            return Gemma3TextConfig(
                **SHAPE, query_pre_attn_scalar=TINY.head, sliding_window_pattern=2
            )
    raise ValueError(kind)


def make_windowed(kind: str, folder: Path) -> Path:
    """The folder of a model of this kind."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(describe(kind))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            elif "post_" in name and kind != "mistral":
                parameter.fill_(LOUD)
    model.save_pretrained(folder)
    write_tokenizer(folder, TINY.vocabulary)
    return folder
