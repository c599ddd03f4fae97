"""The signed heads beside the log, on a JetStream object of their own: nobody can take one back."""

from __future__ import annotations

import msgspec

from tensorcast.log.connection import Connection, Refused, explain, parse_answer
from tensorcast.log.creation import create, log_config, read_info
from tensorcast.log.lookup import read_message
from tensorcast.schema.subjects import heads_name, heads_subject


class _Ack(msgspec.Struct, frozen=True):
    seq: int


class JetStreamHeads:
    """Heads as texts, in the order in which they were signed. Raises Unavailable."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self._name = heads_name(cluster)
        self._subject = heads_subject(cluster)
        self._is_made = False

    async def append(self, head: bytes) -> None:
        """Keeps one more, durably."""
        try:
            if not self._is_made:
                await create(self._connection, log_config(self._name, self._subject))
                self._is_made = True
            parse_answer(await self._connection.ask(self._subject, head), _Ack)
        except Refused as refusal:
            raise explain(refusal.error) from refusal

    async def read(self, after: int, limit: int) -> list[str]:
        """Those after the first `after` ones, at most `limit`."""
        try:
            info = await read_info(self._connection, self._name)
        except Refused as refusal:
            raise explain(refusal.error) from refusal
        last = min(after + limit, info.state.last_seq) if info else 0
        found = []
        for seq in range(after + 1, last + 1):
            message = await read_message(self._connection, self._name, {"seq": seq})
            found.append(message.payload.decode(errors="replace") if message else "")
        return found
