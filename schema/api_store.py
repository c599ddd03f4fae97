"""What clients ask the control plane about the store itself, and what it answers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.ids import Seq

LETTERS_MAX = 1000


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class DeadQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.dead`: the events that the read models could not take, in the order of the log
    (those of KV blocks last), after `after`. With `seq` only those at that position. Answer:
    `DeadPage`."""

    seq: Seq | None = None
    after: Seq = Seq(0)
    limit: int = LETTERS_MAX


class RetryDead(_Message, frozen=True, kw_only=True):
    """Verb `store.retry`: try all parked events again, now. Answer: `DeadPage`, what still
    waits."""


class DeadLetter(_Message, frozen=True, kw_only=True):
    """A parked event. `log` is `log` or `kv`; `kind` and `id` name the thing that it is about.
    `fault` is `unreadable`, `fold` (it cannot follow, or this release stumbles over it), `postgres`
    (refused there) or `follows` (it waits behind another one)."""

    log: str
    seq: Seq
    kind: str
    id: str
    type: str
    fault: str
    reason: str
    parked_at: datetime
    tried_at: datetime | None = None


class DeadPage(_Message, frozen=True, kw_only=True):
    """At most `limit` of the `total` that there are."""

    letters: tuple[DeadLetter, ...]
    total: int


class JobsQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.jobs`: the long works on the store. Answer: a list of `JobInfo`."""


class StartJob(_Message, frozen=True, kw_only=True):
    """Verb `store.start`: have the read models made anew beside the live ones (`name` `rebuild`),
    or old events moved into files (`archive`): those before a position or a time, at most; into
    `folder` of the machine of the control plane (None: where it is told to). Answer: a list of
    `JobInfo`, once it has begun."""

    name: str
    before_seq: Seq | None = None
    before_time: datetime | None = None
    folder: str | None = None


class ArchivesQuery(_Message, frozen=True, kw_only=True):
    """Verb `audit.archives`: the files that hold old events. With `folder` they are looked for
    there from now on. Answer: a list of `ArchiveInfo`, the oldest events first."""

    folder: str | None = None


class ArchiveInfo(_Message, frozen=True, kw_only=True):
    """A file with the events from `first` to `last`, which happened between these times. They are
    in the database as well while not `is_dropped`; `problem` says why the file cannot be read."""

    log_epoch: int
    first: Seq
    last: Seq
    path: str
    bytes: int
    at_first: datetime
    at_last: datetime
    made_at: datetime
    is_dropped: bool
    problem: str | None = None


class JobInfo(_Message, frozen=True, kw_only=True):
    """How far a work is, or how it ended: `problem` is None when it ended well. One that has said
    nothing for `silent_s` seconds was cut off, unless it has ended."""

    name: str
    phase: str
    done: int
    total: int
    problem: str | None
    started_at: datetime
    ended_at: datetime | None
    silent_s: float
