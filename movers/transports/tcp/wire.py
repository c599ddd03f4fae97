"""The pull protocol, as bytes. Pure; every length that a peer sends is checked before it is used.

    opening    magic, version, length, JSON Hello         client to server, once
               magic, version, length, JSON Welcome       server to client, once
    ticket     magic, version, length, ticket             client to server, if the Welcome brought a
               magic, version, length, JSON Welcome       challenge (`schema/tickets.py`)
    request    artifact, ranges of its byte space, how long to wait for each next chunk
    parts      for each range, in order, any number: status, what the server holds (if it is still
               filling), size, then so many bytes, which go on where the part before ended

A part that says MORE ends where a chunk ends, and another one follows, maybe after a wait: so a
replica that fills is served at the pace at which it fills. OK brings the rest; any other status
ends the range without bytes. A request without ranges says that
all parts have been read: the server may let go of the artifact. All integers are big-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from tensorcast.schema.chunks import CHUNKS_MAX, ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tickets import Challenge

MAGIC = b"TCPULL"
VERSION = 2
HELLO_BYTES_MAX = 1024
ARTIFACT_BYTES_MAX = 128
RANGES_MAX = 4096
WAIT_MS_MAX = 10_000
HOLDS_MAX = 512
"""Most ranges of chunks that one part tells of; what is left out is asked for later."""

OPENING = struct.Struct(">6sHI")
REQUEST = struct.Struct(">HHI")
RANGE = struct.Struct(">QQ")
PART = struct.Struct(">BBHIQ")
HELD = struct.Struct(">II")


class Status(IntEnum):
    """OK: the rest of the range follows. MORE: some chunks of it, then another part. MISSING: the
    server does not have the next chunk. NOT_FOUND: it has no such artifact. INVALID: the range is
    none of the artifact's. The last three bring no bytes."""

    OK = 0
    MISSING = 1
    NOT_FOUND = 2
    INVALID = 3
    MORE = 4


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and whom it believes to have reached."""

    cluster: str
    node: NodeId
    peer: NodeId


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's name, and an arbitrary text that is another one after each of its starts; with
    `refusal`, one sentence on why it will not serve (`may_pass`: later it may). `challenge` is to
    be answered by a ticket."""

    node: NodeId
    life: str = ""
    refusal: str = ""
    may_pass: bool = False
    challenge: Challenge | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of one artifact, of which each next chunk may be waited for `wait_s`; without
    ranges: the artifact may be let go."""

    artifact: ArtifactId
    ranges: tuple[ByteRange, ...]
    wait_s: float


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed beginning of a request, and so the size of the rest."""

    artifact_bytes: int
    ranges: int
    wait_s: float

    @property
    def rest_bytes(self) -> int:
        return self.artifact_bytes + self.ranges * RANGE.size


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a part; `holds_count` ranges of chunks follow if it `tells`, then `size_bytes`
    bytes."""

    status: Status
    size_bytes: int
    tells: bool = False
    holds_count: int = 0


def pack_opening(message: Hello | Welcome) -> bytes:
    """The first bytes that a side sends."""
    body = msgspec.json.encode(message)
    return OPENING.pack(MAGIC, VERSION, len(body)) + body


def pack_ticket(ticket: bytes) -> bytes:
    """The answer to a challenge."""
    return OPENING.pack(MAGIC, VERSION, len(ticket)) + ticket


def parse_opening_head(head: bytes) -> int:
    """The size of the JSON that follows. Raises Corrupt when the peer speaks something else."""
    magic, version, size = OPENING.unpack(head)
    if magic != MAGIC:
        raise Corrupt("The peer does not speak the pull protocol.")
    if version != VERSION:
        raise Corrupt(f"The peer speaks version {version} of the pull protocol, not {VERSION}.")
    if size > HELLO_BYTES_MAX:
        raise Corrupt(f"The peer announces a greeting of {size} bytes.")
    return int(size)


def parse_hello(body: bytes) -> Hello:
    """Raises Corrupt."""
    try:
        return msgspec.json.decode(body, type=Hello)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The peer's greeting cannot be read: {error}.") from error


def parse_welcome(body: bytes) -> Welcome:
    """Raises Corrupt."""
    try:
        return msgspec.json.decode(body, type=Welcome)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"The peer's greeting cannot be read: {error}.") from error


def pack_request(request: Request) -> bytes:
    """A whole request."""
    artifact = request.artifact.encode()
    wait_ms = min(WAIT_MS_MAX, int(request.wait_s * 1000))
    parts = [REQUEST.pack(len(artifact), len(request.ranges), wait_ms), artifact]
    parts += [RANGE.pack(r.offset, r.size) for r in request.ranges]
    return b"".join(parts)


RELEASE = REQUEST.pack(0, 0, 0)
"""The request that lets the artifact go."""


def parse_request_head(head: bytes) -> RequestHead:
    """Raises Corrupt for sizes beyond the limits."""
    artifact_bytes, ranges, wait_ms = REQUEST.unpack(head)
    if artifact_bytes > ARTIFACT_BYTES_MAX or ranges > RANGES_MAX or wait_ms > WAIT_MS_MAX:
        raise Corrupt(
            f"A request with a name of {artifact_bytes} bytes, {ranges} ranges and {wait_ms} ms "
            "is beyond the limits."
        )
    return RequestHead(artifact_bytes=artifact_bytes, ranges=ranges, wait_s=wait_ms / 1000)


def parse_request(head: RequestHead, rest: bytes) -> Request:
    """Raises Corrupt when the artifact's name is no text."""
    try:
        artifact = ArtifactId(rest[: head.artifact_bytes].decode("ascii"))
    except UnicodeDecodeError as error:
        raise Corrupt("A request names an artifact that is no text.") from error
    ranges = (ByteRange(*pair) for pair in RANGE.iter_unpack(rest[head.artifact_bytes :]))
    return Request(artifact=artifact, ranges=tuple(ranges), wait_s=head.wait_s)


def pack_part(status: Status, size_bytes: int, holds: ChunkSet | None = None) -> bytes:
    """The head of a part, and what the server holds if it is to be told."""
    told = holds.ranges[:HOLDS_MAX] if holds is not None else ()
    head = PART.pack(status, holds is not None, 0, len(told), size_bytes)
    return head + b"".join(HELD.pack(*run) for run in told)


def parse_part(head: bytes, left_bytes: int, chunk_bytes: int) -> Part:
    """The head of a part of a range of which `left_bytes` have not come. Raises Corrupt for
    anything that does not fit into it."""
    number, tells, reserved, holds_count, size_bytes = PART.unpack(head)
    try:
        status = Status(number)
    except ValueError as error:
        raise Corrupt(f"The peer answers with status {number}, which is unknown.") from error
    if not _fits(status, size_bytes, left_bytes, chunk_bytes):
        raise Corrupt(f"The peer announces {size_bytes} bytes that were not asked for.")
    if holds_count > HOLDS_MAX or tells > 1 or reserved or (holds_count and not tells):
        raise Corrupt("The peer says what it holds in a way that cannot be read.")
    return Part(status=status, size_bytes=size_bytes, tells=bool(tells), holds_count=holds_count)


def _fits(status: Status, size_bytes: int, left_bytes: int, chunk_bytes: int) -> bool:
    """Whether a part of this size can be the next one."""
    match status:
        case Status.OK:
            return size_bytes == left_bytes
        case Status.MORE:
            return 0 < size_bytes < left_bytes and size_bytes % chunk_bytes == 0
        case _:
            return not size_bytes


def parse_holds(packed: bytes) -> ChunkSet:
    """The chunks that the server holds. Raises Corrupt for impossible numbers."""
    runs = list(HELD.iter_unpack(packed))
    if any(not first < stop <= CHUNKS_MAX for first, stop in runs):
        raise Corrupt("The peer claims to hold chunks that cannot be.")
    return ChunkSet.merge(runs)
