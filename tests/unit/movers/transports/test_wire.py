import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.transports.tcp import wire
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt

HELLO = wire.Hello(cluster="c", node="n2", peer="n1")


def split(packed, head):
    return packed[: head.size], packed[head.size :]


def test_greetings_survive():
    for message, parse in (
        (HELLO, wire.parse_hello),
        (wire.Welcome(node="n1", refusal="No."), wire.parse_welcome),
    ):
        head, body = split(wire.pack_opening(message), wire.OPENING)
        assert wire.parse_opening_head(head) == len(body)
        assert parse(body) == message


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GET / HTTP/1", "does not speak"),
        (wire.OPENING.pack(wire.MAGIC, 1, 10), "version 1"),
        (wire.OPENING.pack(wire.MAGIC, 2, 1025), "1025 bytes"),
        (wire.OPENING.pack(wire.MAGIC, 2, 0xFFFFFFFF), "4294967295 bytes"),
    ],
)
def test_other_openings_are_refused(head, reason):
    with pytest.raises(Corrupt, match=reason):
        wire.parse_opening_head(head)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"cluster":1}', b"\xff\xfe"])
def test_broken_greetings_are_refused(body):
    for parse in (wire.parse_hello, wire.parse_welcome):
        with pytest.raises(Corrupt, match="greeting"):
            parse(body)


ranges = st.builds(ByteRange, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(st.text("0123456789abcdef", max_size=128), st.lists(ranges, max_size=64))
def test_requests_survive(artifact, wanted):
    request = wire.Request(artifact=artifact, ranges=tuple(wanted), wait_s=1.5)
    packed, rest = split(wire.pack_request(request), wire.REQUEST)
    head = wire.parse_request_head(packed)
    assert head.rest_bytes == len(rest)
    assert wire.parse_request(head, rest) == request


def test_letting_go_is_a_request_without_ranges():
    head = wire.parse_request_head(wire.RELEASE)
    assert (head.rest_bytes, head.ranges) == (0, 0)


@pytest.mark.parametrize(
    "head", [(129, 1, 0), (40, 4097, 0), (40, 1, 10_001), (65535, 65535, 2**32 - 1)]
)
def test_requests_beyond_the_limits_are_refused(head):
    with pytest.raises(Corrupt, match="beyond the limits"):
        wire.parse_request_head(wire.REQUEST.pack(*head))


def test_a_name_that_is_no_text_is_refused():
    head = wire.RequestHead(artifact_bytes=2, ranges=0, wait_s=0)
    with pytest.raises(Corrupt, match="no text"):
        wire.parse_request(head, b"\xff\xff")


def part(status, size, holds=None, left=250):
    packed, rest = split(wire.pack_part(status, size, holds), wire.PART)
    return wire.parse_part(packed, left, 100), rest


def test_parts_survive():
    full, rest = part(wire.Status.OK, 250)
    assert (full.status, full.size_bytes, full.tells, rest) == (wire.Status.OK, 250, False, b"")
    holds = ChunkSet.of([1, 2, 9])
    more, rest = part(wire.Status.MORE, 200, holds)
    assert (more.tells, more.holds_count) == (True, 2)
    assert wire.parse_holds(rest) == holds
    nothing, rest = part(wire.Status.MISSING, 0, ChunkSet())
    assert (nothing.tells, wire.parse_holds(rest)) == (True, ChunkSet())


def test_a_ragged_set_of_chunks_is_told_in_part():
    ragged = ChunkSet.of(range(0, 4000, 2))
    told, rest = part(wire.Status.OK, 250, ragged)
    assert told.holds_count == wire.HOLDS_MAX
    assert len(wire.parse_holds(rest) - ragged) == 0


@pytest.mark.parametrize(
    "head",
    [
        (0, 0, 0, 0, 100),
        (0, 0, 0, 0, 2**64 - 1),
        (1, 0, 0, 0, 250),
        (1, 0, 0, 0, 100),
        (2, 0, 0, 0, 100),
        (3, 0, 0, 0, 250),
        (4, 0, 0, 0, 0),
        (4, 0, 0, 0, 50),
        (4, 0, 0, 0, 250),
        (4, 0, 0, 0, 300),
        (9, 0, 0, 0, 0),
        (0, 1, 0, 513, 250),
        (0, 2, 0, 1, 250),
        (0, 0, 0, 1, 250),
        (0, 0, 7, 0, 250),
    ],
)
def test_parts_that_were_not_asked_for_are_refused(head):
    with pytest.raises(Corrupt):
        wire.parse_part(wire.PART.pack(*head), 250, 100)


@pytest.mark.parametrize("run", [(1, 1), (5, 2), (0, 16385)])
def test_impossible_chunks_are_refused(run):
    with pytest.raises(Corrupt, match="cannot be"):
        wire.parse_holds(wire.HELD.pack(*run))


@given(
    st.binary(min_size=wire.PART.size, max_size=wire.PART.size),
    st.integers(1, 2**40),
    st.integers(1 << 20, 1 << 32),
)
def test_no_part_brings_more_than_is_left(head, left, chunk):
    """Whatever a peer sends, the sizes that follow from it are within bounds."""
    try:
        found = wire.parse_part(head, left, chunk)
    except Corrupt:
        return
    assert 0 <= found.size_bytes <= left
    assert 0 <= found.holds_count <= wire.HOLDS_MAX
    assert found.size_bytes == left or found.size_bytes % chunk == 0


@given(st.sampled_from(wire.Status), st.integers(0, 9), st.integers(0, 9))
def test_sizes_that_fit_are_taken(status, size, left):
    """The interesting numbers, which random bytes hardly ever hit."""
    head = wire.PART.pack(status, 0, 0, 0, size)
    fits = {
        wire.Status.OK: size == left,
        wire.Status.MORE: 0 < size < left and size % 3 == 0,
    }.get(status, size == 0)
    try:
        assert wire.parse_part(head, left, 3).size_bytes == size
    except Corrupt:
        assert not fits
    else:
        assert fits


@given(st.binary(max_size=wire.HELD.size * 20).filter(lambda b: len(b) % wire.HELD.size == 0))
def test_whatever_a_peer_claims_to_hold_can_be(packed):
    try:
        held = wire.parse_holds(packed)
    except Corrupt:
        return
    assert all(0 <= first < stop <= 16384 for first, stop in held.ranges)


@given(st.binary(min_size=wire.REQUEST.size, max_size=wire.REQUEST.size), st.binary(max_size=200))
def test_whatever_is_asked_is_bounded(head, rest):
    try:
        found = wire.parse_request_head(head)
        assert found.rest_bytes <= wire.ARTIFACT_BYTES_MAX + wire.RANGES_MAX * wire.RANGE.size
        wire.parse_request(found, rest[: found.rest_bytes].ljust(found.rest_bytes, b"\0"))
    except Corrupt:
        pass
