"""What a reader asks for, and when: a server that is played says what the real one does."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from tensorcast.client.signal_feed import Feed, _count_unmet

BATCH = 8


class Message:
    def __init__(self, headers=None, reply=""):
        self.headers = headers
        self.reply = reply


class Server:
    """Notes what is asked for; `say` gives messages to whoever has subscribed."""

    def __init__(self):
        self.is_closed = False
        self.is_connected = True
        self.said = []
        self.on_its_way = []
        self.stats = Counter()
        self.asked: list[int] = []
        self.subject = "inbox"

    def new_inbox(self):
        return self.subject

    async def subscribe(self, inbox, cb):
        self.say = cb
        return self

    async def unsubscribe(self):
        pass

    async def drain(self):
        for message in self.on_its_way:
            await self.say(message)

    async def request(self, subject, payload, timeout):
        assert subject == "$JS.API.CONSUMER.INFO.LOG.reader"
        at = {"stream_seq": 0}
        info = {"name": "reader", "created": "", "config": {}, "delivered": at, "ack_floor": at}
        return SimpleNamespace(data=json.dumps(info).encode())

    async def flush(self):
        self.said.append("flushed")

    async def publish(self, subject, payload, reply=""):
        if subject.startswith("$JS.ACK."):
            self.said.append((subject, payload))
            return
        assert (subject, reply) == ("$JS.API.CONSUMER.MSG.NEXT.LOG.reader", "inbox")
        self.asked.append(json.loads(payload)["batch"])


@pytest.fixture
async def opened():
    server = Server()

    async def connect():
        return server

    async def ensure(nats):
        return "reader"

    feed = Feed(connect, ensure, "LOG", batch=BATCH)
    await feed.open()
    return feed, server


async def test_more_is_asked_for_when_half_has_come_and_never_more_than_a_batch_is_due(opened):
    feed, server = opened
    assert server.asked == [BATCH]
    for _ in range(BATCH // 2):
        await server.say(Message())
        assert await feed.take(0.0) is not None
    assert server.asked == [BATCH]
    assert await feed.take(0.0) is None
    assert server.asked == [BATCH, BATCH // 2]


async def test_what_a_request_did_not_get_in_its_time_is_asked_for_again(opened):
    feed, server = opened
    await server.say(Message({"Status": "100"}))
    assert await feed.take(0.0) is None
    assert server.asked == [BATCH]
    await server.say(Message({"Status": "408", "Nats-Pending-Messages": "5"}))
    assert await feed.take(0.0) is None
    assert server.asked == [BATCH, 5]


@pytest.mark.parametrize(
    ("headers", "unmet"),
    [
        ({"Status": "408", "Nats-Pending-Messages": "3"}, 3),
        ({"Status": "408"}, 8),
        ({"Status": "409", "Nats-Pending-Messages": "3"}, 8),
        ({"Status": "503"}, 8),
    ],
)
def test_how_many_do_not_come(headers, unmet):
    assert _count_unmet(headers, 8) == unmet


async def test_what_was_fetched_ahead_is_given_back_in_order(opened):
    feed, server = opened
    for number in range(3):
        await server.say(Message(reply=f"$JS.ACK.{number}"))
    await server.say(Message({"Status": "100"}))
    server.on_its_way = [Message(reply="$JS.ACK.3")]
    assert (await feed.take(0.0)).reply == "$JS.ACK.0"
    await feed.aclose(give_back=True)
    given = [(f"$JS.ACK.{number}", b"-NAK") for number in (1, 2, 3)]
    assert server.said == [*given, "flushed"]
    await feed.aclose(give_back=True)
    assert feed.waiting == ()
    assert len(server.said) == 4
