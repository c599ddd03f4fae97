"""TensorCast inside vLLM: turned on with flags, nothing patched.

`plugin.py` is what vLLM finds by itself (entry points `vllm.general_plugins`); it imports neither
vLLM nor torch, and loads the others by name where vLLM asks for them. `agent.py` watches an engine
from outside; `Instance` (`operations.py`) moves the KV of prompts between engines and the layer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcast.engines.vllm.operations import Instance, read_manifest

_HOMES = {
    "Instance": "tensorcast.engines.vllm.operations",
    "read_manifest": "tensorcast.engines.vllm.operations",
}

__all__ = ["Instance", "read_manifest"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
