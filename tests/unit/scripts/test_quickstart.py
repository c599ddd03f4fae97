"""The names that the tour gives to checkpoints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "quickstart.py"


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/gpt2/model.safetensors", "gpt2"),
        ("/models/my model/pytorch_model.bin", "my-model"),
        ("/models/llama-3.1-8b", "llama-3.1-8b"),
        ("/models/llama-3.1-8b.safetensors", "llama-3.1-8b"),
        ("/model.safetensors", "checkpoint"),
    ],
)
def test_a_checkpoint_is_named_after_what_tells_it_from_others(
    quickstart: ModuleType, path: str, name: str
) -> None:
    assert quickstart.name_of(Path(path)) == name
