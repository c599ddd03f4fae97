"""The hash of an event covers all that makes it this event."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.chain import GENESIS, HASH_BYTES, chain_event, chain_events

EVENTS = st.tuples(st.integers(0, 3), st.integers(0, 9), st.binary(max_size=4), st.binary())


def test_a_hash_is_that_of_the_documented_bytes():
    """Anybody can compute it from docs/audit.md."""
    expected = hashlib.sha256(
        bytes(32) + b"\0\0\0\1" + b"\0\0\0\0\0\0\0\7" + b"\0\0\0\3" + b"tc." + b"{}"
    ).digest()
    assert chain_event(GENESIS, 1, 7, b"tc.", b"{}") == expected


@given(EVENTS, EVENTS)
def test_different_events_have_different_hashes(one, other):
    assert (chain_event(GENESIS, *one) == chain_event(GENESIS, *other)) is (one == other)


def test_what_moves_from_subject_to_payload_changes_the_hash():
    assert chain_event(GENESIS, 1, 1, b"ab", b"c") != chain_event(GENESIS, 1, 1, b"a", b"bc")


def test_events_follow_each_other():
    events = [(1, b"s", b"one"), (2, b"s", b"two"), (3, b"t", b"three")]
    hashes = chain_events(GENESIS, 1, events)
    head = GENESIS
    for number, event in enumerate(events):
        head = chain_event(head, 1, *event)
        assert hashes[HASH_BYTES * number :][:HASH_BYTES] == head
    assert chain_events(head, 1, []) == b""
