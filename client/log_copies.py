"""Copying the log to a file, and proving such a copy without any cluster."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from tensorcast.client.log_files import (
    LogReader,
    in_batches,
    make_log_file,
    open_log_file,
    read_anchors,
)
from tensorcast.client.proofs import SOURCES, Anchor, Count, choose, prove
from tensorcast.schema.api_audit import (
    PLAIN_BYTES_MAX,
    BadEvent,
    Extent,
    Imported,
    ImportEvents,
    Life,
    RawEvent,
    RowsPage,
    SpanInfo,
    VerifyInfo,
    pack,
)
from tensorcast.schema.chain import chain_event
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.events import UnknownEvent
from tensorcast.schema.heads import parse_head
from tensorcast.schema.ids import Seq
from tensorcast.schema.log_copies import FORMAT, Heading
from tensorcast.schema.subjects import subject_of

T = TypeVar("T")
IMPORT_EVENTS: Final = 1000
IMPORT_BYTES: Final = 2 << 20
SUBJECT_CHARS_MAX: Final = 600
"""A subject that is so long may have been cut."""


class Copied(msgspec.Struct, frozen=True):
    """How many events were copied, and the hash of the last one."""

    events: int
    head: str


# ---- to a file -------------------------------------------------------------------------------


class Source(Protocol):
    """Where a copy comes from."""

    async def extent(self) -> Extent: ...

    async def hashes(self, log_epoch: int, seqs: Sequence[Seq]) -> tuple[str | None, ...]: ...

    async def heads(self, source: str) -> list[str]: ...

    async def rows(self, log_epoch: int, after: Seq, last: Seq) -> RowsPage: ...


async def export_log(
    source: Source,
    path: Path,
    first: int | None,
    last: int | None,
    *,
    parquet: bool,
    force: bool,
    count: Count,
) -> Copied:
    """As `AsyncClient.export_log`. Never more than a page is in memory."""
    about = await source.extent()
    lives = choose(about, first, last)
    if not lives:
        raise InvalidArgument("The log has no events.", hint="There is nothing to export.")
    previous = (await source.hashes(lives[0].log_epoch, [Seq(lives[0].first - 1)]))[0]
    heading = Heading(
        tensorcast_log=FORMAT,
        cluster=about.cluster,
        previous=previous or "",
        lives=tuple(lives),
        key=about.key,
        former=about.former,
    )
    heads = [text for place in SOURCES for text in await source.heads(place) if _is_in(text, lives)]
    total = sum(life.last - life.first + 1 for life in lives)
    done, head = 0, heading.previous
    kept = list(dict.fromkeys(heads))
    with make_log_file(path, heading, kept, parquet=parquet, force=force) as writer:
        for life in lives:
            after = Seq(life.first - 1)
            while after < life.last:
                page = (await source.rows(life.log_epoch, after, life.last)).events
                _check_page(page, after)
                writer.write(page)
                after, head = page[-1].seq, page[-1].hash
                done += len(page)
                count(done, total)
        writer.finish()
    return Copied(done, head)


def _is_in(text: str, lives: Sequence[Life]) -> bool:
    """Whether a head says something of these events; what is none is kept, to be told."""
    head = parse_head(text)
    return head is None or any(
        life.log_epoch == head.log_epoch and life.first <= head.seq <= life.last for life in lives
    )


def _check_page(page: Sequence[RawEvent], after: Seq) -> None:
    """Raises Corrupt for a page that does not go on right after `after`, or lacks hashes."""
    wanted = after + 1
    for one in page:
        if one.seq != wanted or not one.hash:
            break
        wanted += 1
    else:
        if page:
            return
    raise Corrupt(
        f"Event {wanted} or its hash is missing in Postgres.",
        hint="`tcctl audit verify` tells more.",
    )


# ---- from a file -----------------------------------------------------------------------------


class FileRecord:
    """A copy in a file as a `Record`, read once from its beginning to its end. Remembers the hashes
    of the events in `wanted` (life, position)."""

    def __init__(self, reader: LogReader, wanted: frozenset[tuple[int, int]]) -> None:
        self._reader = reader
        self._wanted = wanted
        self._found: dict[tuple[int, int], str] = {}
        self._events = self._read()
        self._next: RawEvent | None = None
        self._damage = ""
        self._head = bytes.fromhex(reader.heading.previous)
        self._step()

    async def extent(self) -> Extent:
        """What the file says that it holds."""
        heading = self._reader.heading
        return Extent(
            cluster=heading.cluster, lives=heading.lives, key=heading.key, former=heading.former
        )

    async def heads(self, source: str) -> list[str]:
        """Those in the file; `log` has no others."""
        return self._reader.heads if source == "file" else []

    async def hashes(self, log_epoch: int, seqs: Sequence[Seq]) -> tuple[str | None, ...]:
        """Of the events that were wanted and verified."""
        return tuple(self._found.get((log_epoch, seq)) for seq in seqs)

    async def verify_span(self, log_epoch: int, first: int, last: int) -> SpanInfo:
        """Reads on, and hashes. Spans are asked for in the order of the file."""
        self._skip_to(log_epoch, first)
        seq = first
        while seq <= last:
            one = self._next
            reason = self._judge(one, log_epoch, seq)
            if one is None or reason:
                bad = BadEvent(seq=Seq(seq), reason=reason)
                return SpanInfo(events=seq - first, head=self._head.hex(), first_bad=bad)
            self._head = bytes.fromhex(one.hash)
            if (log_epoch, seq) in self._wanted:
                self._found[log_epoch, seq] = one.hash
            seq += 1
            self._step()
        return SpanInfo(events=seq - first, head=self._head.hex())

    def _judge(self, one: RawEvent | None, log_epoch: int, seq: int) -> str:
        """What is wrong with the event at a place; "" when nothing is."""
        if one is None or (one.log_epoch, one.seq) != (log_epoch, seq):
            return self._damage or "it is missing"
        payload, subject = one.payload, one.subject.encode()
        found = chain_event(self._head, log_epoch, seq, subject, payload)
        if found.hex() != one.hash:
            return "its bytes, its place or its subject are not those that were hashed"
        return ""

    def _skip_to(self, log_epoch: int, first: int) -> None:
        while (one := self._next) is not None and (one.log_epoch, one.seq) < (log_epoch, first):
            try:
                self._head = bytes.fromhex(one.hash)
            except ValueError:
                self._head = b""
            self._step()

    def _step(self) -> None:
        self._next = next(self._events, None)

    def _read(self) -> Iterator[RawEvent]:
        """The events; a file that is damaged ends there."""
        try:
            yield from self._reader.events()
        except Corrupt as error:
            self._damage = error.message.rstrip(".")


def verify_log_file(
    path: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    keys: Sequence[str] = (),
    anchors: str | Path | None = None,
    progress: Count = lambda done, total: None,
) -> VerifyInfo:
    """Verifies a log that was exported, without any cluster: as `Client.verify_log`, with the heads
    and by default the key that are in the file. What an auditor wants is a key, and anchors, that
    come from elsewhere. A copy may end before the log did: `events` says how far it goes."""
    kept = None if anchors is None else read_anchors(anchors)
    with open_log_file(Path(path)) as reader:
        found = kept if kept is not None else [Anchor("the file", text) for text in reader.heads]
        heads = [head for anchor in found if (head := parse_head(anchor.text)) is not None]
        record = FileRecord(reader, frozenset((head.log_epoch, int(head.seq)) for head in heads))
        work = prove(
            record,
            first=first,
            last=last,
            keys=keys,
            anchors=found,
            count=progress,
            is_copy=True,
        )
        return _run_at_once(work)


def _run_at_once(work: Coroutine[object, object, T]) -> T:
    """The answer of a coroutine that waits for nothing, wherever it is called."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise AssertionError("a file is never waited for")


# ---- into a cluster --------------------------------------------------------------------------


class Target(Protocol):
    """The cluster that a copy is brought into."""

    async def extent(self) -> Extent: ...

    async def hashes(self, log_epoch: int, seqs: Sequence[Seq]) -> tuple[str | None, ...]: ...

    async def bring_in(self, request: ImportEvents) -> Imported: ...


async def import_log(target: Target, path: Path, count: Count) -> Copied:
    """As `AsyncClient.import_log`: the file is verified first, and then the cluster's own chain is
    compared with it."""
    info = verify_log_file(path)
    if info.first_bad is not None:
        raise Corrupt(
            f"Event {info.first_bad.seq} of {path.name}: {info.first_bad.reason}.",
            hint="Nothing was brought in. Export the log again.",
        )
    about = await target.extent()
    with open_log_file(path) as reader:
        _check_importable(reader.heading, about, path.name)
        done = 0
        count(0, info.events)
        events = islice(reader.events(), info.events)  # those that were verified
        for batch in in_batches(events, IMPORT_EVENTS, IMPORT_BYTES):
            done += len(batch)
            is_packed = any(len(one.payload) > PLAIN_BYTES_MAX for one in batch)
            request = ImportEvents(
                first=batch[0].seq,
                events=tuple(
                    (
                        published_subject(about.cluster, one),
                        pack(one.payload) if is_packed else one.payload,
                    )
                    for one in batch
                ),
                total=info.events,
                is_packed=is_packed,
            )
            await target.bring_in(request)
            count(done, info.events)
    if (await target.hashes(1, [Seq(done)]))[0] != info.head:
        raise Corrupt(
            f"The log of {about.cluster} is another one than that in {path.name}.",
            hint="Somebody else has written to it meanwhile. Begin with a new cluster.",
        )
    return Copied(done, info.head)


def _check_importable(heading: Heading, about: Extent, name: str) -> None:
    """Raises InvalidArgument for a copy of another cluster or of a part."""
    if heading.cluster != about.cluster:
        raise InvalidArgument(
            f"{name} is the log of cluster {heading.cluster!r}, not of {about.cluster!r}.",
            hint=f"Bring it into a cluster of its name: `tcctl up --cluster {heading.cluster}`.",
        )
    places = [(life.log_epoch, int(life.first)) for life in heading.lives if life.last >= 1]
    if places != [(1, 1)]:
        raise InvalidArgument(
            f"{name} is not a whole log in one life.", hint="Export all of it, without --from."
        )


def published_subject(cluster: str, one: RawEvent) -> str:
    """The subject that an event was published to. That of its row may be cut: it follows from the
    event then."""
    if len(one.subject) < SUBJECT_CHARS_MAX:
        return one.subject
    event = decode(one.payload, one.seq).event
    return one.subject if isinstance(event, UnknownEvent) else subject_of(cluster, event)
