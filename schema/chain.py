"""The hash chain over the log: each event's hash covers its bytes, its place and the hash before.

So whoever knows one hash knows whether everything up to it is as it was: an event that is altered,
removed, added or moved changes all hashes from there on. This is the linked time-stamping of Haber
and Stornetta, "How to Time-Stamp a Digital Document" (1991), with SHA-256 (FIPS 180-4).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

HASH_BYTES: Final = 32
GENESIS: Final = bytes(HASH_BYTES)
"""The hash before the first event."""
_PLACE: Final = struct.Struct(">IQI")


def chain_event(previous: bytes, log_epoch: int, seq: int, subject: bytes, payload: bytes) -> bytes:
    """The hash of one event: SHA-256 over `previous` (32 bytes), `log_epoch` (4 bytes, the most
    significant first, as all that follow), `seq` (8), the length of `subject` (4), `subject`
    (UTF-8, as its row has it) and `payload`, the exact bytes in the log."""
    place = _PLACE.pack(log_epoch, seq, len(subject))
    return hashlib.sha256(b"".join((previous, place, subject, payload))).digest()


def chain_events(
    previous: bytes, log_epoch: int, events: Iterable[tuple[int, bytes, bytes]]
) -> bytes:
    """The hashes of events (seq, subject, payload) that follow each other, end to end."""
    hashes = []
    for seq, subject, payload in events:
        previous = chain_event(previous, log_epoch, seq, subject, payload)
        hashes.append(previous)
    return b"".join(hashes)
