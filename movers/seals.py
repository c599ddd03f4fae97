"""Records of puts that are accepted and not yet sealed, and of what became of them."""

from __future__ import annotations

import msgspec

from tensorcast.schema.errors import ErrorBody
from tensorcast.schema.socket import PutSealed, SealPut

OUTCOMES_MAX = 256
"""So many of the newest outcomes are remembered, for those who ask late."""


class AcceptedSeal(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised to `actor`: to seal the bytes in a kept segment as `request` says."""

    ticket: str
    segment: str
    actor: str
    request: SealPut


class SealOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: `sealed`, or the error that it failed with."""

    sealed: PutSealed | None = None
    error: ErrorBody | None = None
