"""Messages into a JetStream object: one alone, several as one atomic batch."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

from tensorcast.log.batch import Entry
from tensorcast.log.connection import Connection, parse_answer
from tensorcast.schema.ids import Seq


class _Ack(msgspec.Struct, frozen=True):
    seq: int


async def publish(
    connection: Connection, entries: Sequence[Entry], *, after: Seq | None = None
) -> Seq:
    """Publishes all entries or none; returns the position of the last one, the others are right
    before it. With `after` only if the object ends there. Raises Refused, Unavailable,
    InvalidArgument for what the server cannot carry."""
    place = {} if after is None else {"Nats-Expected-Last-Sequence": str(after)}
    if len(entries) > 1:
        return await _commit(connection, entries, place)
    (entry,) = entries
    answer = await connection.ask(entry.subject, entry.payload, headers=_headers(entry) | place)
    return Seq(parse_answer(answer, _Ack).seq)


async def _commit(
    connection: Connection, entries: Sequence[Entry], place: Mapping[str, str]
) -> Seq:
    """One atomic batch. Only its first message may say where the object ends, and only its last one
    asks for an answer."""
    batch = secrets.token_hex(16)
    for number, entry in enumerate(entries[:-1], 1):
        headers = _batch_headers(entry, batch, number)
        if number == 1:
            headers |= place
        await connection.send(entry.subject, entry.payload, headers)
    last = entries[-1]
    headers = _batch_headers(last, batch, len(entries)) | {"Nats-Batch-Commit": "1"}
    answer = await connection.ask(last.subject, last.payload, headers=headers)
    return Seq(parse_answer(answer, _Ack).seq)


def _headers(entry: Entry) -> dict[str, str]:
    headers: dict[str, str] = {"Nats-Msg-Id": entry.id} if entry.id else {}
    if entry.expected is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(entry.expected)
    return headers


def _batch_headers(entry: Entry, batch: str, number: int) -> dict[str, str]:
    return {**_headers(entry), "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
