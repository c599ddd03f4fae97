"""Which weights this process computes with. The loader and the weight transfer say it, the KV
connector reads it at each step: blocks of other weights must never be used.

Imports nothing of an engine. Called from the engine's own thread, between two steps.
"""

from __future__ import annotations

_weights: list[str] = []


def set_weights(version: str | None) -> None:
    """From now on the model computes with these weights: an artifact id, or another name that is
    never given to two different contents. None: nobody knows which they are."""
    _weights[:] = [version] if version else []


def current_weights() -> str | None:
    """The weights of this process' model; None when neither loader nor transfer has said."""
    return _weights[0] if _weights else None
