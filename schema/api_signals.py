"""What clients ask the control plane about signals, and what it answers. They read signals
themselves, from the log."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.signals import EVERYTHING, Pattern, Topic

TOPICS_SHOWN_MAX = 1000


class Emit(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `signal.emit`: append one signal. The client chooses the id of its event (a UUID), so
    that asking again, within two minutes, emits nothing more. Answer: `Emitted`."""

    topic: Topic
    data: dict[str, object]
    actor: str
    id: EventId


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a signal, and its position in the log."""

    id: EventId
    seq: Seq


class TopicsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `signal.topics`: the topics that `pattern` chooses, the last used first. With
    `with_data` each with the data of its last signal."""

    pattern: Pattern = EVERYTHING
    limit: int = TOPICS_SHOWN_MAX
    with_data: bool = True
    after: Seq = Seq(0)


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: how many signals it has had, and its last one. `data` is None when it was not asked
    for, or cannot be read now (Postgres is away or behind)."""

    topic: Topic
    emitted: int
    seq: Seq
    at: datetime
    actor: str
    first_at: datetime
    data: dict[str, object] | None = None
