import msgspec
import pytest

from tensorcast.movers.transports.rdma import wire
from tensorcast.schema.chunks import CHUNKS_MAX, ChunkSet
from tensorcast.schema.errors import Corrupt

CARD = wire.Card(
    number=17,
    packet=5,
    link="Ethernet",
    lid=0,
    gid="fe80::1",
    gid_kind="RoCE v2",
    mtu=5,
    reads_answered=16,
    reads_started=16,
)
MESSAGES = [
    wire.Ask(1, "a" * 40, 0, 5, True),
    wire.Grant(1, 2**63, 2**32 - 1, ((0, 2), (5, 9))),
    wire.Grant(1, 2, 3, None),
    wire.Later(4),
    wire.Refuse(4, True, ""),
    wire.Holds(4, ()),
    wire.Release(4),
    wire.Credits(),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back(message):
    assert wire.parse(wire.pack(7, message)) == (7, message)


def test_greetings_come_back():
    hello = wire.Hello(cluster="c", node="n1", peer="n2", device=1, card=CARD)
    packed = wire.pack_greeting(hello)
    size = wire.parse_opening(packed[: wire.OPENING.size])
    assert wire.parse_hello(packed[wire.OPENING.size :][:size]) == hello
    welcome = wire.Welcome(node="n2", life="x", devices=2, card=CARD)
    packed = wire.pack_greeting(welcome)
    assert wire.parse_welcome(packed[wire.OPENING.size :]) == welcome
    assert len(packed) < wire.GREETING_BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\0\0", b"\0\0\xff", b"\xff\xff\x91\xa1c", b"\0\0" + msgspec.msgpack.encode([1])],
)
def test_nonsense_is_refused(content):
    with pytest.raises(Corrupt):
        wire.parse(content)


@pytest.mark.parametrize(
    "head",
    [
        wire.OPENING.pack(b"HELLO!", 1, 5),
        wire.OPENING.pack(wire.MAGIC, 99, 5),
        wire.OPENING.pack(wire.MAGIC, wire.VERSION, 1 << 30),
    ],
)
def test_a_strange_opening_is_refused(head):
    with pytest.raises(Corrupt):
        wire.parse_opening(head)


@pytest.mark.parametrize(
    "card",
    [
        {"gid": "10.0.0.1.2"},
        {"others": (wire.Address(gid="nowhere", kind="RoCE v2"),)},
        {"number": 1 << 24},
        {"packet": -1},
        {"mtu": 1 << 40},
        {"lid": 1 << 16},
        {"gid": "fe80::1%eth0"},
    ],
)
def test_addresses_and_numbers_that_cannot_be_are_refused(card):
    changed = msgspec.structs.replace(CARD, **card)
    hello = wire.Hello(cluster="c", node="n1", peer="n2", device=1, card=changed)
    with pytest.raises(Corrupt, match="cannot be"):
        wire.parse_hello(msgspec.json.encode(hello))
    with pytest.raises(Corrupt, match="cannot be"):
        wire.parse_welcome(msgspec.json.encode(wire.Welcome(node="n2", card=changed)))


@pytest.mark.parametrize(
    "message",
    [
        wire.Grant(1, 5, 1 << 40, None),
        wire.Grant(1, 5, -1, None),
        wire.Grant(1, -5, 5, None),
        wire.Grant(-1, 5, 5, None),
        wire.Ask(1, "a" * 40, 0, 5, True, (-1, 5)),
        wire.Ask(1, "a" * 40, 0, 5, True, (5, 1 << 40)),
        wire.Ask(1, "a" * 40, -1, 5, True),
        wire.Ask(1, "a" * 40, 0, 1 << 63, True),
        wire.Ask(1 << 63, "a" * 40, 0, 5, True),
        wire.Release(-1),
    ],
)
def test_a_message_with_numbers_that_cannot_be_is_refused(message):
    with pytest.raises(Corrupt, match="cannot be"):
        wire.parse(wire.pack(0, message))


@pytest.mark.parametrize("devices", [-1, 40_000_000])
def test_a_peer_has_no_more_devices_than_can_be(devices):
    body = msgspec.json.encode(wire.Welcome(node="n2", devices=devices, card=CARD))
    with pytest.raises(Corrupt, match="devices"):
        wire.parse_welcome(body)
    hello = wire.Hello(cluster="c", node="n1", peer="n2", device=devices, card=CARD)
    with pytest.raises(Corrupt, match="device"):
        wire.parse_hello(msgspec.json.encode(hello))


def test_a_card_of_an_older_release_has_one_address():
    old = msgspec.json.encode(wire.Hello(cluster="c", node="n1", peer="n2", device=0, card=CARD))
    assert b"others" in old
    assert wire.parse_hello(old.replace(b',"others":[]', b"")).card.addresses == (
        wire.Address(gid="fe80::1", kind="RoCE v2"),
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
def test_a_strange_greeting_is_refused(body):
    with pytest.raises(Corrupt):
        wire.parse_hello(body)
    with pytest.raises(Corrupt):
        wire.parse_welcome(body)


def test_what_is_held_fits_into_a_message():
    every_other = ChunkSet.of(range(0, 4000, 2))
    runs = wire.runs_of(every_other, 4000)
    assert runs is not None
    assert len(wire.pack(1, wire.Holds(1, runs))) <= wire.MESSAGE_BYTES_MAX
    assert wire.chunks_of(runs) == ChunkSet.of(range(0, 2 * wire.RUNS_MAX, 2))
    assert wire.runs_of(ChunkSet.full(3), 3) is None
    assert wire.chunks_of(None) is None


@pytest.mark.parametrize("runs", [((3, 3),), ((-1, 2),), ((0, CHUNKS_MAX + 1),), ((0, 1),) * 999])
def test_impossible_chunks_are_refused(runs):
    with pytest.raises(Corrupt):
        wire.chunks_of(runs)
