"""Where readers stand, in a key-value bucket of JetStream. A cursor only moves forward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast.log.connection import Refused, explain, parse_answer
from tensorcast.log.creation import replicas
from tensorcast.log.lookup import read_message
from tensorcast.schema.errors import Conflict
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import cursor_bucket

if TYPE_CHECKING:
    from tensorcast.log.jetstream import JetStreamLog

_ATTEMPTS_MAX: Final = 10
_ROOM: Final = "room"  # no reader has this name
_IN_USE: Final = 10058
_STALE: Final = 10071
_UNSAFE: Final = re.compile(r"[^-/_a-zA-Z0-9]")


class _Ack(msgspec.Struct, frozen=True):
    seq: int


class JetStreamCursors:
    """Keeps the contract of `Cursors` beside a log."""

    def __init__(self, log: JetStreamLog) -> None:
        self._connection = log.connection
        self._bucket = cursor_bucket(log.cluster)
        self._is_made = False

    async def load(self, reader: str) -> Seq:
        """Where `reader` stands; 0 when it is new. Raises Unavailable."""
        return (await self._load(reader))[0]

    async def store(self, reader: str, seq: Seq) -> None:
        """Moves `reader` forward to `seq`; never back. Raises Unavailable."""
        for _ in range(_ATTEMPTS_MAX):
            current, revision = await self._load(reader)
            if seq <= current or await self._replace(reader, seq, revision):
                return
        raise Conflict(f"The cursor of {reader!r} is moved by too many at once.")

    async def check_room(self) -> None:
        """As `Cursors.check_room`: writes one byte over the last one."""
        await self._ensure_bucket()
        try:
            parse_answer(await self._connection.ask(self._subject(_ROOM), b"."), _Ack)
        except Refused as refusal:
            raise explain(refusal.error) from refusal

    async def _load(self, reader: str) -> tuple[Seq, int]:
        await self._ensure_bucket()
        subject = self._subject(reader)
        stored = await read_message(
            self._connection, f"KV_{self._bucket}", {"last_by_subj": subject}
        )
        return (Seq(int(stored.payload)), stored.seq) if stored else (Seq(0), 0)

    async def _replace(self, reader: str, seq: Seq, revision: int) -> bool:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        answer = await self._connection.ask(
            self._subject(reader), str(seq).encode(), headers=headers
        )
        try:
            parse_answer(answer, _Ack)
        except Refused as refusal:
            if refusal.error.err_code == _STALE:
                return False
            raise explain(refusal.error) from refusal
        return True

    def _subject(self, reader: str) -> str:
        token = _UNSAFE.sub(lambda found: f"={ord(found.group()):02X}", reader)
        return f"$KV.{self._bucket}.{token}"

    async def _ensure_bucket(self) -> None:
        if self._is_made:
            return
        config = {
            "name": f"KV_{self._bucket}",
            "subjects": [f"$KV.{self._bucket}.>"],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "num_replicas": replicas(),
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        }
        try:
            await self._connection.api(f"STREAM.CREATE.KV_{self._bucket}", config, msgspec.Raw)
        except Refused as refusal:
            if refusal.error.err_code != _IN_USE:
                raise explain(refusal.error) from refusal
        self._is_made = True
