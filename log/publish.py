"""Messages into a JetStream object: one alone, several as one atomic batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from tensorcast.log.batch import Entry
from tensorcast.log.connection import Connection, parse_answer
from tensorcast.schema.ids import Seq


class _Ack(msgspec.Struct, frozen=True):
    seq: int


async def publish(connection: Connection, entries: Sequence[Entry]) -> Seq:
    """Publishes all entries or none; returns the position of the last one, the others are right
    before it. Raises Refused, Unavailable, InvalidArgument for what the server cannot carry."""
    if len(entries) > 1:
        return await _commit(connection, entries)
    (entry,) = entries
    answer = await connection.ask(entry.subject, entry.payload, headers=_headers(entry))
    return Seq(parse_answer(answer, _Ack).seq)


async def _commit(connection: Connection, entries: Sequence[Entry]) -> Seq:
    """One atomic batch. Only its last message asks for an answer."""
    batch = secrets.token_hex(16)
    for number, entry in enumerate(entries[:-1], 1):
        await connection.send(entry.subject, entry.payload, _batch_headers(entry, batch, number))
    last = entries[-1]
    headers = _batch_headers(last, batch, len(entries)) | {"Nats-Batch-Commit": "1"}
    answer = await connection.ask(last.subject, last.payload, headers=headers)
    return Seq(parse_answer(answer, _Ack).seq)


def _headers(entry: Entry) -> dict[str, str]:
    headers: dict[str, str] = {"Nats-Msg-Id": entry.id}
    if entry.expected is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(entry.expected)
    return headers


def _batch_headers(entry: Entry, batch: str, number: int) -> dict[str, str]:
    return {**_headers(entry), "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
