"""The lineage of an artifact, read out of its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorcast.schema.api import EventInfo
from tensorcast.schema.api_past import MadeInfo, NamedSpan
from tensorcast.schema.codec import decode_event
from tensorcast.schema.events import KeyMoved, KeyRemoved, OperationIssued
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.origins import MADE_FROM, split_sources
from tensorcast.schema.work import Work, kind_of


def key_spans(artifact: ArtifactId, events: Iterable[EventInfo]) -> tuple[NamedSpan, ...]:
    """Which keys pointed to the artifact from when to when, out of the events that name it, in the
    order of the log."""
    spans: list[NamedSpan] = []
    open_spans: dict[Key, int] = {}
    for info in events:
        match decode_event(info.type, info.v, info.data):
            case KeyMoved(key=key, artifact=to) if to == artifact:
                if key in open_spans:  # it was moved to where it pointed
                    continue
                open_spans[key] = len(spans)
                spans.append(
                    NamedSpan(
                        key=key,
                        since=info.at,
                        until=None,
                        since_seq=info.seq,
                        until_seq=None,
                        actor=info.actor,
                    )
                )
            case KeyMoved(key=key) | KeyRemoved(key=key) if key in open_spans:
                place = open_spans.pop(key)
                began = spans[place]
                spans[place] = NamedSpan(
                    key=key,
                    since=began.since,
                    until=info.at,
                    since_seq=began.since_seq,
                    until_seq=info.seq,
                    actor=began.actor,
                    until_actor=info.actor,
                )
            case _:
                pass
    return tuple(spans)


def named_sources(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The artifacts that whoever put it says it was made from: ids, or keys as they pointed."""
    return split_sources(labels.get(MADE_FROM, ""))


def work_of(info: EventInfo) -> Work | None:
    """The work that an event gave to a node; None for any other event."""
    event = decode_event(info.type, info.v, info.data)
    return event.work if isinstance(event, OperationIssued) else None


def made_by(info: EventInfo) -> MadeInfo | None:
    """What the work that an event gave to a node is about, and which it is."""
    work = work_of(info)
    if work is None:
        return None
    return MadeInfo(artifact=work.artifact, by=kind_of(work), seq=info.seq)
