"""The pull protocol, as bytes. Pure; every length that a peer sends is checked before it is used.

    opening    magic, version, length, JSON Hello         client to server, once
               magic, version, length, JSON Welcome       server to client, once
    request    artifact, ranges of its byte space, how long to wait for the first one
    answer     for each range, in order: status, what the server holds (if it is still filling),
               size, then so many bytes: a beginning of the range, all of it if the status is OK

A request without ranges says that all answers have been read: the server may let go of the
artifact. All integers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from tensorcast.schema.chunks import CHUNKS_MAX, ByteRange, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import ArtifactId, NodeId

MAGIC = b"TCPULL"
VERSION = 1
HELLO_BYTES_MAX = 1024
ARTIFACT_BYTES_MAX = 128
RANGES_MAX = 64
WAIT_MS_MAX = 10_000
HOLDS_MAX = 512
"""Most ranges of chunks that one answer tells of; what is left out is asked for later."""

OPENING = struct.Struct(">6sHI")
REQUEST = struct.Struct(">HHI")
RANGE = struct.Struct(">QQ")
ANSWER = struct.Struct(">BBHIQ")
HELD = struct.Struct(">II")


class Status(IntEnum):
    """OK: the whole range follows. MISSING: a beginning of it (maybe nothing) follows. NOT_FOUND:
    the server has no such artifact. INVALID: the range lies outside of it."""

    OK = 0
    MISSING = 1
    NOT_FOUND = 2
    INVALID = 3


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, and whom it believes to have reached."""

    cluster: str
    node: NodeId
    peer: NodeId


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The server's name; with `refusal`, one sentence on why it will not serve."""

    node: NodeId
    refusal: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of one artifact; without ranges: the artifact may be let go."""

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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The head of one answer; `holds_count` ranges of chunks follow if it `tells`, then
    `size_bytes` bytes."""

    status: Status
    size_bytes: int
    tells: bool = False
    holds_count: int = 0


def pack_opening(message: Hello | Welcome) -> bytes:
    """The first bytes that a side sends."""
    body = msgspec.json.encode(message)
    return OPENING.pack(MAGIC, VERSION, len(body)) + body


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


def pack_answer(status: Status, size_bytes: int, holds: ChunkSet | None = None) -> bytes:
    """The head of an answer, and what the server holds if it is to be told."""
    told = holds.ranges[:HOLDS_MAX] if holds is not None else ()
    head = ANSWER.pack(status, holds is not None, 0, len(told), size_bytes)
    return head + b"".join(HELD.pack(*run) for run in told)


def parse_answer(head: bytes, wanted: Sequence[int]) -> Answer:
    """The head of an answer to a range; `wanted` are the sizes that may follow, the whole range
    last. Raises Corrupt for anything else."""
    number, tells, _, holds_count, size_bytes = ANSWER.unpack(head)
    try:
        status = Status(number)
    except ValueError as error:
        raise Corrupt(f"The peer answers with status {number}, which is unknown.") from error
    sizes: Sequence[int] = (0,)
    if status is Status.OK:
        sizes = wanted[-1:]
    elif status is Status.MISSING:
        sizes = wanted[:-1]
    if size_bytes not in sizes or holds_count > HOLDS_MAX or tells > 1:
        raise Corrupt(f"The peer announces {size_bytes} bytes that were not asked for.")
    return Answer(status=status, size_bytes=size_bytes, tells=bool(tells), holds_count=holds_count)


def parse_holds(packed: bytes) -> ChunkSet:
    """The chunks that the server holds. Raises Corrupt for impossible numbers."""
    runs = list(HELD.iter_unpack(packed))
    if any(not first < stop <= CHUNKS_MAX for first, stop in runs):
        raise Corrupt("The peer claims to hold chunks that cannot be.")
    return ChunkSet.merge(runs)
