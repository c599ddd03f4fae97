"""What clients ask about the past: moments, differences, reasons and lineage.

As `api.py`: a request for each verb, and field names that stay.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.api import EventInfo, ServedInfo
from tensorcast.schema.ids import ArtifactId, Key, NodeId, Seq, Tier

CHANGES_MAX = 1000
EFFECTS_MAX = 500


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class MomentQuery(_Message, frozen=True, kw_only=True):
    """Verb `moment`: which event a position or a time stands for, as `MomentInfo`. Both None: the
    last event."""

    seq: Seq | None = None
    time: datetime | None = None


class MomentInfo(_Message, frozen=True, kw_only=True):
    """A moment of the history: after event `seq`, which happened at `at` (None: before the first
    one). `last_seq` is the last event that there is."""

    seq: Seq
    at: datetime | None
    last_seq: Seq


class DiffQuery(_Message, frozen=True, kw_only=True):
    """Verb `diff`: what is different after event (or time) `to` from what it was after `since`.
    `what` with `kind` (artifact, key, node, operation, engine) keeps what concerns that one."""

    since_seq: Seq | None = None
    since_time: datetime | None = None
    to_seq: Seq | None = None
    to_time: datetime | None = None
    kind: str | None = None
    what: str | None = None
    limit: int = CHANGES_MAX


class FieldChange(_Message, frozen=True, kw_only=True):
    """A field that is different; None where the thing was not there, or the field said nothing."""

    name: str
    before: object
    after: object


class Change(_Message, frozen=True, kw_only=True):
    """One thing that is different: `change` is added, removed or changed; `seq` is its last event
    at the later moment."""

    kind: str
    id: str
    change: str
    fields: tuple[FieldChange, ...]
    seq: Seq


class DiffInfo(_Message, frozen=True, kw_only=True):
    """What changed between two moments, kind by kind in the order of the log. `total` counts all;
    `changes` are `limit` of them at most, the last ones."""

    from_seq: Seq
    to_seq: Seq
    total: int
    changes: tuple[Change, ...]


class WhyQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.why`: what led to an event and what came of it. `event` is a position or an id;
    otherwise the last event that made the replica of `artifact` on `node` (in `tier`)."""

    event: str | None = None
    artifact: str | None = None
    node: NodeId | None = None
    tier: Tier | None = None
    limit: int = EFFECTS_MAX
    after: Seq = Seq(0)


class WhyInfo(_Message, frozen=True, kw_only=True):
    """`causes` are the events that led to `event`, the root first; `effects` all that came of it,
    in the order of the log, each naming its own cause. `more`: there are more than told."""

    event: EventInfo
    causes: tuple[EventInfo, ...]
    effects: tuple[EventInfo, ...]
    more: bool = False


class NamedSpan(_Message, frozen=True, kw_only=True):
    """A key that pointed to the artifact from `since` until `until` (None: it still does), moved
    there and away by these events and people."""

    key: Key
    since: datetime
    until: datetime | None
    since_seq: Seq
    until_seq: Seq | None
    actor: str
    until_actor: str | None = None


class MadeInfo(_Message, frozen=True, kw_only=True):
    """One artifact made from another: by which transform, in which event."""

    artifact: ArtifactId
    by: str
    seq: Seq


class LineageInfo(_Message, frozen=True, kw_only=True):
    """Verb `artifact.lineage`: where an artifact comes from and what it was used for. `sources` are
    the artifacts that it was made from and `results` those made from it, as far as the log knows;
    `keys` and `engines` are told in the order in which they began."""

    artifact: ArtifactId
    kind: str
    state: str
    labels: dict[str, str]
    sealed_at: datetime
    sealed_by: str
    sealed_seq: Seq
    sources: tuple[MadeInfo, ...]
    results: tuple[MadeInfo, ...]
    keys: tuple[NamedSpan, ...]
    engines: tuple[ServedInfo, ...]
