"""Whether the record is what it was: the chain of hashes, and the signed heads that anchor it.

The chain shows that nothing in it was altered, removed, added or moved. The heads show that it was
not made anew as a whole and that its end was not cut off: they were signed when it was so far, and
are kept where the database cannot reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from tensorcast.schema.api_audit import (
    HASHES_MAX,
    SPAN_EVENTS_MAX,
    BadEvent,
    Extent,
    Life,
    SpanInfo,
    VerifyInfo,
)
from tensorcast.schema.chain import GENESIS
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.heads import SignedHead, is_signed, parse_head, parse_public_key
from tensorcast.schema.ids import Seq

Count = Callable[[int, int], None]
"""Told how many events of how many are done."""
SOURCES = ("file", "log")


class Record(Protocol):
    """What is proved: the history of a cluster, or a copy of it."""

    async def extent(self) -> Extent: ...

    async def verify_span(self, log_epoch: int, first: int, last: int) -> SpanInfo: ...

    async def hashes(self, log_epoch: int, seqs: Sequence[Seq]) -> tuple[str | None, ...]: ...

    async def heads(self, source: str) -> list[str]: ...


class Anchor(msgspec.Struct, frozen=True):
    """A signed head that was kept somewhere."""

    place: str
    text: str


async def prove(
    record: Record,
    *,
    first: int | None = None,
    last: int | None = None,
    keys: Sequence[str] = (),
    anchors: Sequence[Anchor] | None = None,
    count: Count = lambda done, total: None,
    is_copy: bool = False,
) -> VerifyInfo:
    """Verifies a record, or the events from `first` to `last` of the newest life of its log.

    `keys` are the public keys that may have signed (none: those that the record names).
    `anchors` are compared instead of those that the record gives itself. A copy may end before the
    log does: heads of later events are no fault of it. Raises InvalidArgument for a range that is
    not there.
    """
    allowed = tuple(map(parse_public_key, keys))
    about = await record.extent()
    # The heads first: those that come meanwhile are of events that the extent may not have.
    found = await _collect(record) if anchors is None else list(anchors)
    about = msgspec.structs.replace(await record.extent(), key=about.key)
    spans = choose(about, first, last)
    info = await _verify_all(record, spans, count)
    allowed = allowed or ((about.key, *about.former) if about.key else ())
    heads = check_heads(found, about.cluster, allowed)
    return await _compare(record, spans, heads, info, is_open=last is None and not is_copy)


async def _collect(record: Record) -> list[Anchor]:
    return [Anchor(place, text) for place in SOURCES for text in await record.heads(place)]


def choose(about: Extent, first: int | None, last: int | None) -> list[Life]:
    """The spans to verify, one for each life of the log. Raises InvalidArgument."""
    if first is None and last is None:
        return list(about.lives)
    newest = about.lives[-1] if about.lives else Life(log_epoch=1, last=Seq(0))
    start, end = first or newest.first, newest.last if last is None else last
    if not 1 <= start <= end <= newest.last:
        raise InvalidArgument(
            f"There are no events {start} to {end}.", hint=f"The log goes to {newest.last}."
        )
    return [Life(log_epoch=newest.log_epoch, first=Seq(start), last=Seq(end))]


async def _verify_all(record: Record, spans: Sequence[Life], count: Count) -> VerifyInfo:
    """The chain alone."""
    total = sum(span.last - span.first + 1 for span in spans)
    done, head = 0, GENESIS.hex()
    count(done, total)
    for span in spans:
        for start in range(span.first, span.last + 1, SPAN_EVENTS_MAX):
            end = min(span.last, start + SPAN_EVENTS_MAX - 1)
            part = await record.verify_span(span.log_epoch, start, end)
            done += part.events
            head = part.head or head
            if part.first_bad is not None:
                return VerifyInfo(ok=False, events=done, head=head, first_bad=part.first_bad)
            count(done, total)
    return VerifyInfo(ok=True, events=done, head=head)


class Heads(msgspec.Struct, frozen=True):
    """Heads by whether they count: those that were signed by a key that does, those of keys that
    nobody has named, both in the order of the log, and what is wrong with the others."""

    good: tuple[SignedHead, ...]
    strange: tuple[SignedHead, ...]
    wrong: tuple[BadEvent, ...]


def check_heads(anchors: Iterable[Anchor], cluster: str, keys: Sequence[str]) -> Heads:
    """Sorts heads. Without keys any that is signed by the key it names will do."""
    good: dict[tuple[int, int, str], SignedHead] = {}
    strange: dict[tuple[int, int, str], SignedHead] = {}
    wrong = []
    for number, anchor in enumerate(anchors, 1):
        head = parse_head(anchor.text)
        if head is None:
            text = f"entry {number} of the signed heads ({anchor.place}) is none"
            wrong.append(BadEvent(seq=Seq(0), reason=text))
        elif head.cluster != cluster:
            text = f"its signed head ({anchor.place}) is one of cluster {head.cluster!r}"
            wrong.append(BadEvent(seq=head.seq, reason=text))
        elif not is_signed(head, head.key):
            text = f"its signed head ({anchor.place}) was altered"
            wrong.append(BadEvent(seq=head.seq, reason=text))
        else:
            kept = good if head.key in (keys or (head.key,)) else strange
            kept[head.log_epoch, head.seq, head.hash] = head
    return Heads(_in_order(good), _in_order(strange), tuple(wrong))


def _in_order(heads: Mapping[tuple[int, int, str], SignedHead]) -> tuple[SignedHead, ...]:
    return tuple(heads[place] for place in sorted(heads))


async def _compare(
    record: Record,
    spans: Sequence[Life],
    heads: Heads,
    info: VerifyInfo,
    *,
    is_open: bool,
) -> VerifyInfo:
    """The verdict on chain and heads. Of several faults the first event that one names counts. That
    a key is strange is told when nothing else is wrong."""
    compared, faults = await _find_faults(record, spans, heads.good, is_open=is_open)
    _, doubts = await _find_faults(record, spans, heads.strange, is_open=is_open)
    info = msgspec.structs.replace(info, anchors=compared)
    if info.first_bad is not None:  # it is the exact place; heads only tell a stretch
        return info
    found = (*heads.wrong, *faults, *doubts)
    if found:
        first_bad = min(found, key=lambda fault: fault.seq)
        return msgspec.structs.replace(info, ok=False, first_bad=first_bad)
    if not heads.strange:
        return info
    first, key = heads.strange[0], heads.strange[0].key
    text = f"its signed head fits, but another key signed it than those that count: {key}"
    bad = BadEvent(seq=first.seq, reason=text)
    return msgspec.structs.replace(info, ok=False, first_bad=bad, strange_key=key)


async def _find_faults(
    record: Record, spans: Sequence[Life], heads: Sequence[SignedHead], *, is_open: bool
) -> tuple[int, list[BadEvent]]:
    """How many heads were compared with the chain, and where they differ."""
    faults: list[BadEvent] = []
    compared = 0
    for span in spans:
        # What a head says is only worth as much as the chain up to it.
        inside = [h for h in heads if h.log_epoch == span.log_epoch and h.seq >= span.first]
        beyond = [h for h in inside if h.seq > span.last]
        inside = inside[: len(inside) - len(beyond)]
        compared += len(inside)
        faults += await _differences(record, span, inside)
        if beyond and is_open:
            text = f"it is missing: the log went to event {beyond[-1].seq} at {beyond[-1].at}"
            faults.append(BadEvent(seq=Seq(span.last + 1), reason=text))
    lives = {span.log_epoch for span in spans}
    if is_open and spans and (lost := [h for h in heads if h.log_epoch > max(lives)]):
        text = f"life {lost[0].log_epoch} of the log is missing, which was there at {lost[0].at}"
        faults.append(BadEvent(seq=Seq(1), reason=text))
    if not spans and heads:
        text = f"it is missing: the log went to event {heads[-1].seq} at {heads[-1].at}"
        faults.append(BadEvent(seq=Seq(1), reason=text))
    return compared, faults


async def _differences(record: Record, span: Life, heads: Sequence[SignedHead]) -> list[BadEvent]:
    """The first head of a span that the chain does not lead to, as a list of at most one."""
    before = span.first - 1
    for start in range(0, len(heads), HASHES_MAX):
        part = heads[start : start + HASHES_MAX]
        hashes = await record.hashes(span.log_epoch, [head.seq for head in part])
        for head, found in zip(part, hashes, strict=True):
            if found != head.hash:
                text = f"events {before + 1} to {head.seq} are not those signed at {head.at}"
                return [BadEvent(seq=Seq(before + 1), reason=text)]
            before = head.seq
    return []
