"""Tickets: how a mover proves to another one who pulls what from it. Pure.

The source challenges each connection with a nonce that it has never used. Whoever calls signs a
ticket for exactly that with the key of its mover's life, whose public half the log has
(`NodeJoined.ticket_key`): so a ticket is good for one connection to one source, and what was
overheard opens nothing. When it ends is counted on the source's clock, which the challenge tells:
it does not matter how wrong the clocks of the two are. Signatures are Ed25519 (RFC 8032).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.ids import Epoch, NodeId

if TYPE_CHECKING:  # it takes its time, and most who read of tickets never check one
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TICKET_S: Final = 30.0
"""So long after its challenge a ticket opens a connection."""
TICKET_BYTES_MAX: Final = 1024
NONCE_BYTES: Final = 16
BLOCKS: Final = "blocks"
"""What a ticket for KV blocks is for; else it is an artifact's id."""
_DOMAIN: Final = b"tensorcast ticket 1\n"
"""What is signed begins so: no other signature of the key can be taken for a ticket."""


class Refusal(StrEnum):
    """Why a ticket opens nothing. MISSING: there is none. MALFORMED: it is no ticket. UNKNOWN: of a
    node, or a life of one, that the source has not heard of. FENCED: of a life that is over.
    FORGED: not signed by that life. FOREIGN: for another source, or not for what is asked. EXPIRED:
    it came too late. REPLAYED: made for another connection."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    FENCED = "fenced"
    FORGED = "forged"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    REPLAYED = "replayed"


PASSING: Final = frozenset({Refusal.UNKNOWN, Refusal.EXPIRED})
"""What may be otherwise a moment later."""

_SENTENCES: Final = {
    Refusal.MISSING: "shows no ticket",
    Refusal.MALFORMED: "shows what is no ticket",
    Refusal.UNKNOWN: "is not known here (yet)",
    Refusal.FENCED: "shows the ticket of a life that is over",
    Refusal.FORGED: "shows a ticket that its mover has not signed",
    Refusal.FOREIGN: "shows a ticket for something else",
    Refusal.EXPIRED: "shows a ticket that is too old",
    Refusal.REPLAYED: "shows a ticket of another connection",
}


class TicketRefused(PermissionDenied):
    """A source does not serve the caller."""

    def __init__(self, refusal: Refusal, source: NodeId, caller: str) -> None:
        super().__init__(
            f"Node {source} does not serve {caller or 'the caller'}, which {_SENTENCES[refusal]}.",
            hint="`tcctl signal tail 'security.>'` shows what movers refuse.",
            node=source,
        )
        self.refusal = refusal
        self.caller = caller


class Challenge(msgspec.Struct, frozen=True):
    """What a source asks a caller to sign: hexadecimal bytes that it draws for this connection,
    and the time on its clock, in seconds since 1970."""

    nonce: str
    at: float


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """`node` in its life `epoch` may have `what` (an artifact's id, or BLOCKS) from `source` until
    `until` on the source's clock. `user` is who the mover speaks for, empty for
    itself."""

    node: NodeId
    epoch: Epoch
    source: NodeId
    what: str
    nonce: str
    until: float
    user: str = ""


class _Signed(msgspec.Struct, frozen=True):
    ticket: bytes
    signature: bytes


class Presented(msgspec.Struct, frozen=True):
    """A ticket as it came, not checked yet."""

    ticket: Ticket
    signed: bytes
    signature: bytes


def sign_ticket(ticket: Ticket, key: Ed25519PrivateKey) -> bytes:
    """The ticket as it is shown, at most TICKET_BYTES_MAX long for names within their limits."""
    body = msgspec.json.encode(ticket)
    return msgspec.json.encode(_Signed(body, key.sign(_DOMAIN + body)))


def parse_ticket(shown: bytes, source: NodeId) -> Presented:
    """What was shown, before any of it is believed. Raises TicketRefused."""
    try:
        if len(shown) > TICKET_BYTES_MAX:
            raise msgspec.DecodeError("it is too long")
        found = msgspec.json.decode(shown, type=_Signed)
        ticket = msgspec.json.decode(found.ticket, type=Ticket)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TicketRefused(Refusal.MALFORMED, source, "") from error
    return Presented(ticket, found.ticket, found.signature)


def check_ticket(
    shown: Presented, public_key: str, source: NodeId, challenge: Challenge, at: float
) -> Ticket:
    """The ticket, if the life with this key made it for this challenge of `source` and it has not
    ended `at` this time. Raises TicketRefused."""
    ticket = shown.ticket
    if not _is_signed(shown, public_key):
        refusal = Refusal.FORGED
    elif ticket.source != source:
        refusal = Refusal.FOREIGN
    elif ticket.nonce != challenge.nonce:
        refusal = Refusal.REPLAYED
    elif not challenge.at <= at < min(ticket.until, challenge.at + TICKET_S):
        refusal = Refusal.EXPIRED
    else:
        return ticket
    raise TicketRefused(refusal, source, ticket.node)


def _is_signed(shown: Presented, public_key: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        known = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        known.verify(shown.signature, _DOMAIN + shown.signed)
    except (InvalidSignature, ValueError):
        return False
    return True
