"""Bytes to events and back: JSON by msgspec, validated, readable with `psql` and `nats`.

An event type or a version of a newer release survives a round trip as `UnknownEvent`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import EVENT_TYPES, TYPE_NAMES, Event, UnknownEvent
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.upcast import VERSION_FIRST, current_version, upcast

EVENT_BYTES_MAX = 7 << 20
"""Largest encoded event; the servers of a cluster accept payloads of 8 MiB."""


class Wire(msgspec.Struct, kw_only=True):
    """The envelope of an event as it is written: its position is not in it."""

    id: EventId
    type: str
    v: Annotated[int, Meta(ge=VERSION_FIRST)]
    at: Annotated[datetime, Meta(tz=True)]
    actor: str
    cause: EventId | None = None
    trace: str | None = None
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
wire_decoder = msgspec.json.Decoder(Wire)
_event_decoders = {name: msgspec.json.Decoder(cls) for name, cls in EVENT_TYPES.items()}


def encode(draft: Draft) -> bytes:
    """The bytes of one event in the log."""
    event_type = TYPE_NAMES[type(draft.event)]
    return encode_wire(draft, event_type, _encoder.encode(draft.event))


class Enveloped(Protocol):
    """What the drafts of every log say beside their event."""

    @property
    def id(self) -> EventId: ...
    @property
    def at(self) -> datetime: ...
    @property
    def actor(self) -> str: ...
    @property
    def cause(self) -> EventId | None: ...
    @property
    def trace(self) -> str | None: ...


def encode_wire(draft: Enveloped, event_type: str, data: bytes) -> bytes:
    """An envelope in the present version of its type, as JSON, around the JSON of the event."""
    return _encoder.encode(
        Wire(
            id=draft.id,
            type=event_type,
            v=current_version(event_type),
            at=draft.at,
            actor=draft.actor,
            cause=draft.cause,
            trace=draft.trace,
            data=msgspec.Raw(data),
        )
    )


def encode_data(event: Event | UnknownEvent) -> bytes:
    """The `data` part alone, as JSON."""
    if isinstance(event, UnknownEvent):
        return bytes(event.data)
    return _encoder.encode(event)


def decode(payload: bytes, seq: Seq) -> Recorded:
    """The event that stands at `seq`. Raises Corrupt when the bytes are not an event."""
    try:
        wire = wire_decoder.decode(payload)
        event = decode_event(wire.type, wire.v, wire.data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(
            f"The event at position {seq} cannot be read: {error}.",
            hint="Was it written by another program? See `tcctl audit log`.",
        ) from error
    return Recorded(
        seq=seq,
        id=wire.id,
        type=wire.type,
        v=wire.v,
        at=wire.at,
        actor=wire.actor,
        cause=wire.cause,
        trace=wire.trace,
        event=event,
    )


def decode_event(event_type: str, version: int, data: bytes | msgspec.Raw) -> Event | UnknownEvent:
    """One event from its type, version and JSON data. Raises msgspec.MsgspecError."""
    decoder = _event_decoders.get(event_type)
    current = current_version(event_type)
    if version < VERSION_FIRST:
        raise msgspec.ValidationError(f"there is no version {version} of '{event_type}'")
    if decoder is None or version > current:
        return UnknownEvent(type=event_type, v=version, data=msgspec.Raw(bytes(data)))
    if version == current:
        return decoder.decode(data)
    old: dict[str, object] = msgspec.json.decode(data, type=dict[str, object])
    return decoder.decode(_encoder.encode(upcast(event_type, version, old)))
