"""A fault in the words of the API."""

from __future__ import annotations

import msgspec


class FaultInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence on what went wrong, its kind, and whether trying again can help."""

    kind: str
    detail: str
    retryable: bool
