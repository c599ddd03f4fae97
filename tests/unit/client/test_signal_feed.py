"""What a reader asks for, and when: a server that is played says what the real one does."""

import json
from collections import Counter

import pytest

from tensorcast.client.signal_feed import Feed, _count_unmet

BATCH = 8


class Message:
    def __init__(self, headers=None):
        self.headers = headers


class Server:
    """Notes what is asked for; `say` gives messages to whoever has subscribed."""

    def __init__(self):
        self.is_closed = False
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

    async def publish(self, subject, payload, reply):
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
