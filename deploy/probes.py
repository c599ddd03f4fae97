"""Is a server ready? A short conversation in its own protocol; no driver, nothing changed."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import msgspec

PROBE_TIMEOUT_S: Final = 2.0
_PROTOCOL_3 = 196608


class NatsProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when it greets with INFO."""

    host: str
    port: int


class PostgresProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when it asks for a password instead of saying that it is still starting up."""

    host: str
    port: int
    user: str
    database: str


class AnyProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Ready when one of them is: any server of a cluster will do."""

    probes: tuple[NatsProbe | PostgresProbe, ...]


Probe = NatsProbe | PostgresProbe | AnyProbe


def startup_message(user: str, database: str) -> bytes:
    """What a Postgres client says first."""
    body = struct.pack("!I", _PROTOCOL_3)
    body += b"".join(text.encode() + b"\0" for text in ("user", user, "database", database))
    body += b"\0"
    return struct.pack("!I", len(body) + 4) + body


async def is_ready(probe: Probe) -> bool:
    """Whether the server answers as a ready one; False as well when nobody listens."""
    if isinstance(probe, AnyProbe):
        return any(await asyncio.gather(*(is_ready(one) for one in probe.probes)))
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await _converse(probe)
    except (OSError, TimeoutError):
        return False


async def _converse(probe: NatsProbe | PostgresProbe) -> bool:
    reader, writer = await asyncio.open_connection(probe.host, probe.port)
    try:
        if isinstance(probe, PostgresProbe):
            writer.write(startup_message(probe.user, probe.database))
            # 'R' asks to authenticate; 'E' is an error such as "is starting up".
            return await reader.read(1) == b"R"
        return await reader.read(5) == b"INFO "
    finally:
        writer.close()
        await writer.wait_closed()
