"""The program that tells a cluster that an engine has ended.

Its standard input says which engine and where (`Note`). It is started by the engine's first process
(`ending.py`), and says nothing when it is not heard: then the engine is lost after its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping

import msgspec

from tensorcast.client.api import ControlPlane
from tensorcast.client.calls import reader_of
from tensorcast.client.context import Context
from tensorcast.client.position import Position
from tensorcast.client.signals import forget_reader
from tensorcast.engines.ending import write_note
from tensorcast.schema.commands import LeaveEngine
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import EngineId

LEAVE_S = 2.0


class Note(msgspec.Struct, frozen=True):
    """A life of an engine, and the cluster that knows it."""

    engine: str
    life: str
    context: Context


def note_engine(context: Context, engine: str, life: str, environ: Mapping[str, str]) -> bool:
    """Has the first process of this engine tell its end to this cluster."""
    return write_note(msgspec.json.encode(Note(engine, life, context)), environ)


def make_api(context: Context, engine: str) -> ControlPlane:
    """The control plane, asked in the name of an engine."""
    return ControlPlane(
        context.nats_url, context.cluster, f"engine:{engine}", Position(), access=context.access
    )


async def leave(api: ControlPlane, engine: EngineId, life: str) -> None:
    """Says that this life of the engine is over, if that is heard within moments. Calls to it are
    kept no longer: their steps fail. (Another life that has begun meanwhile makes its reader anew
    where it was.)"""
    with contextlib.suppress(TensorCastError, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await api.execute(LeaveEngine(engine=engine, life=life))
            await forget_reader(await api.connect(), api.cluster, reader_of(engine))


async def _leave_by(note: Note) -> None:
    api = make_api(note.context, note.engine)
    try:
        await leave(api, EngineId(note.engine), note.life)
    finally:
        await api.aclose()


def main(content: bytes) -> None:
    """Tells what a note says."""
    try:
        note = msgspec.json.decode(content, type=Note)
    except msgspec.MsgspecError:
        sys.exit("This program is started by engines: it reads which one has ended.")
    asyncio.run(_leave_by(note))


if __name__ == "__main__":
    os.setsid()  # whoever ends the engine's processes leaves it its two seconds
    main(sys.stdin.buffer.read())
