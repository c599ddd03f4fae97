"""The raw loop: nats-py in atomic batches on one side, nats-py and COPY on the other, and nothing
in between. No domain logic: bytes and subjects as they come.

`python -m events.raw NATS_URL POSTGRES_URL` is its persister.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import deque
from collections.abc import Sequence

import asyncpg
from nats.aio.client import Client
from nats.aio.msg import Msg

NAME, SUBJECTS = "RAW", "raw.>"
BATCH_MAX = 1000
LINGER_S = 0.001
TABLE = "CREATE TABLE raw_events (seq bigint PRIMARY KEY, subject text, payload bytea)"

Message = tuple[str, str, bytes]
"""Id, subject, payload."""


async def create(nats: Client, postgres: asyncpg.Connection) -> None:
    """Makes the stream and the table."""
    config = {
        "name": NAME,
        "subjects": [SUBJECTS],
        "storage": "file",
        "retention": "limits",
        "num_replicas": 1,
        "allow_atomic": True,
    }
    reply = await nats.request(f"$JS.API.STREAM.CREATE.{NAME}", json.dumps(config).encode())
    assert "error" not in json.loads(reply.data), reply.data
    await postgres.execute(TABLE)


async def publish(nats: Client, messages: Sequence[Message]) -> int:
    """One atomic batch; returns the position of its last message."""
    batch = secrets.token_hex(8)
    for number, (name, subject, payload) in enumerate(messages[:-1], 1):
        headers = {
            "Nats-Msg-Id": name,
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(number),
        }
        await nats.publish(subject, payload, headers=headers)
    name, subject, payload = messages[-1]
    headers = {"Nats-Msg-Id": name}
    if len(messages) > 1:
        headers |= {
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(messages)),
            "Nats-Batch-Commit": "1",
        }
    answer = json.loads((await nats.request(subject, payload, headers=headers, timeout=30)).data)
    assert "error" not in answer, answer
    return int(answer["seq"])


class Publisher:
    """Messages of many callers in shared batches, one batch under way at a time."""

    def __init__(self, nats: Client) -> None:
        self._nats = nats
        self._waiting: deque[tuple[Message, asyncio.Future[int]]] = deque()
        self._filled = asyncio.Event()

    async def append(self, message: Message) -> int:
        """The position of the message, once it is acknowledged."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, answer))
        self._filled.set()
        return await answer

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            await asyncio.sleep(LINGER_S)
            taken = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            if not self._waiting:
                self._filled.clear()
            last = await publish(self._nats, [message for message, _ in taken])
            for offset, (_, answer) in enumerate(reversed(taken)):
                answer.set_result(last - offset)


async def persist(nats_url: str, postgres_url: str) -> None:
    """Copies for ever, from the beginning."""
    nats, postgres = Client(), await asyncpg.connect(postgres_url)
    await nats.connect(nats_url)
    arrived: deque[tuple[int, str, bytes]] = deque()
    news = asyncio.Event()

    async def take(message: Msg) -> None:
        arrived.append((int(message.reply.split(".")[5]), message.subject, message.data))
        news.set()

    await nats.jetstream().subscribe(
        SUBJECTS, stream=NAME, cb=take, ordered_consumer=True, pending_msgs_limit=-1
    )
    while True:
        await news.wait()
        rows = [arrived.popleft() for _ in range(min(BATCH_MAX, len(arrived)))]
        if not arrived:
            news.clear()
        async with postgres.transaction():
            await postgres.copy_records_to_table("raw_events", records=rows)
            await postgres.execute(f"SELECT pg_notify('raw_committed', '{rows[-1][0]}')")


if __name__ == "__main__":
    asyncio.run(persist(*sys.argv[1:]))
