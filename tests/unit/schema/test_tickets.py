"""Tickets: only the one that was signed for this very challenge passes, and no altered one."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.tickets import (
    TICKET_BYTES_MAX,
    TICKET_S,
    Challenge,
    Refusal,
    Ticket,
    TicketRefused,
    check_ticket,
    parse_ticket,
    sign_ticket,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
ASKED = Challenge("aa" * 16, 1000.0)
GOOD = Ticket(
    node=N2, epoch=Epoch(3), source=N1, what="a" * 64, nonce=ASKED.nonce, until=1000.0 + TICKET_S
)


def check(shown: bytes, *, public: str = PUBLIC, at: float = 1001.0) -> Ticket:
    return check_ticket(parse_ticket(shown, N1), public, N1, ASKED, at)


def change(**fields: object) -> Ticket:
    return msgspec.structs.replace(GOOD, **fields)


def test_a_good_ticket_says_who_asks_for_what():
    assert check(sign_ticket(GOOD, KEY)) == GOOD


@pytest.mark.parametrize(
    ("shown", "options", "refusal"),
    [
        (sign_ticket(GOOD, OTHER), {}, Refusal.FORGED),
        (sign_ticket(GOOD, KEY), {"public": ""}, Refusal.FORGED),
        (sign_ticket(GOOD, KEY), {"public": "no key"}, Refusal.FORGED),
        (sign_ticket(change(source=N3), KEY), {}, Refusal.FOREIGN),
        (sign_ticket(change(nonce="bb" * 16), KEY), {}, Refusal.REPLAYED),
        (sign_ticket(GOOD, KEY), {"at": 1000.0 + TICKET_S}, Refusal.EXPIRED),
        (sign_ticket(change(until=1000.5), KEY), {}, Refusal.EXPIRED),
        (sign_ticket(change(until=9e9), KEY), {"at": 2000.0}, Refusal.EXPIRED),
        (sign_ticket(GOOD, KEY), {"at": 999.0}, Refusal.EXPIRED),
        (sign_ticket(change(until=float("nan")), KEY), {}, Refusal.MALFORMED),
        (b"", {}, Refusal.MALFORMED),
        (b"{}", {}, Refusal.MALFORMED),
        (b"[" * 1000, {}, Refusal.MALFORMED),
        (b" " * TICKET_BYTES_MAX + sign_ticket(GOOD, KEY), {}, Refusal.MALFORMED),
        (msgspec.json.encode({"ticket": b"{}", "signature": b""}), {}, Refusal.MALFORMED),
    ],
)
def test_others_are_refused_and_it_is_said_why(shown, options, refusal):
    with pytest.raises(TicketRefused, match="Node n1 does not serve") as caught:
        check(shown, **options)
    assert caught.value.refusal is refusal


@given(at=st.integers(0), bit=st.integers(0, 7))
def test_no_altered_ticket_passes(at: int, bit: int):
    """Whatever bit of what is shown is flipped: it is refused, or still says exactly the same."""
    shown = bytearray(sign_ticket(GOOD, KEY))
    shown[at % len(shown)] ^= 1 << bit
    with suppress(TicketRefused):
        assert check(bytes(shown)) == GOOD


@given(
    node=st.sampled_from([N1, N2, N3]),
    epoch=st.integers(0, 5).map(Epoch),
    source=st.sampled_from([N1, N2, N3]),
    what=st.sampled_from(["a" * 64, "b" * 64, "blocks"]),
    nonce=st.sampled_from([ASKED.nonce, "bb" * 16]),
    until=st.floats(0, 2000, allow_nan=False),
    user=st.sampled_from(["", "eve"]),
)
def test_a_signature_is_good_for_its_own_ticket_alone(**fields: object):
    """The signature of one ticket under the words of another one."""
    parts = msgspec.json.decode(sign_ticket(GOOD, KEY), type=dict[str, bytes])
    claimed = change(**fields)
    assume(claimed != GOOD)
    parts["ticket"] = msgspec.json.encode(claimed)
    with pytest.raises(TicketRefused) as caught:
        check(msgspec.json.encode(parts))
    assert caught.value.refusal is Refusal.FORGED


def test_the_longest_names_fit():
    longest = change(node=NodeId("n" * 63), source=NodeId("m" * 63), what="a" * 128, user="u" * 64)
    assert len(sign_ticket(longest, KEY)) <= TICKET_BYTES_MAX
