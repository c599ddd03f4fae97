"""What applications and their node's mover say to each other on the unix socket.

A frame is a 4-byte big-endian length and a JSON message; descriptors travel with the length. The
application asks, the mover answers each request once and in order. Closing the connection aborts
the puts that it has opened.
"""

from __future__ import annotations

import struct

import msgspec

from tensorcast.schema.errors import Corrupt, ErrorBody
from tensorcast.schema.ids import ArtifactId, Epoch, Key, NodeId, ReplicaId, Seq
from tensorcast.schema.tensors import Manifest

FRAME_BYTES_MAX = 64 << 20
LENGTH = struct.Struct(">I")
DESCRIPTORS_MAX = 4


class _Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag=str.lower):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="say", tag=str.lower):
    pass


class Hello(_Request, frozen=True, kw_only=True):
    """First message of a connection. `actor` is who asks (`user:ada@host`)."""

    actor: str
    pid: int


class Prepare(_Request, frozen=True, kw_only=True):
    """What awaits a put of `size_bytes` under a key (None: under none)? Answered by Prospect; it
    changes nothing."""

    size_bytes: int
    key: Key | None = None


class OpenPut(_Request, frozen=True, kw_only=True):
    """Asks for a segment of at least `size_bytes`; answered by PutOpened and one descriptor."""

    size_bytes: int


NO_SESSION = 0


class SealPut(_Request, frozen=True, kw_only=True):
    """The bytes are written and unmapped: make it an artifact, its first replica, and (with `key`)
    move the key, all in one append. `expect` is what the key must point to now (None: nothing,
    or this very artifact). Session 0 brings no bytes: the node must hold the artifact already.
    Refused with Conflict for the key, and then with NotFound when the node does not hold it."""

    session: int
    artifact: ArtifactId
    kind: str
    manifest: Manifest
    labels: dict[str, str] = {}
    key: Key | None = None
    expect: ArtifactId | None = None


class AbortPut(_Request, frozen=True, kw_only=True):
    session: int


class Get(_Request, frozen=True, kw_only=True):
    """Asks to read an artifact, by key or id; answered by Granted and two descriptors (the segment,
    read-only, and the lifeline that must stay open as long as the mapping lives). When the node has
    no replica, the mover makes one first. `after`: the mover must know the log up to there."""

    what: str
    after: Seq = Seq(0)
    timeout_s: float = 300.0


class AskStats(_Request, frozen=True, kw_only=True):
    pass


class Welcome(_Answer, frozen=True, kw_only=True):
    cluster: str
    node: NodeId
    epoch: Epoch


class Prospect(_Answer, frozen=True, kw_only=True):
    """As far as the mover knows, the key points to `key_artifact` (None: nowhere). `fits`: there is
    memory for the bytes without eviction."""

    key_artifact: ArtifactId | None
    fits: bool


class PutOpened(_Answer, frozen=True, kw_only=True):
    """The segment has `capacity_bytes`. `is_zero` tells whether it holds only zeros; otherwise the
    writer must zero the gaps between tensors itself."""

    session: int
    capacity_bytes: int
    is_zero: bool


class PutSealed(_Answer, frozen=True, kw_only=True):
    """`existed`: the artifact was there already with a replica on this node."""

    artifact: ArtifactId
    replica: ReplicaId
    seq: Seq
    existed: bool


class Done(_Answer, frozen=True, kw_only=True):
    pass


class Granted(_Answer, frozen=True, kw_only=True):
    """The segment's first `manifest.size_bytes` bytes are the artifact's byte space."""

    artifact: ArtifactId
    kind: str
    labels: dict[str, str]
    manifest: Manifest


class Stats(_Answer, frozen=True, kw_only=True):
    """Counts for diagnosis and leak tests. Bytes; `readers` are lifelines that are open.
    `unsaved_bytes` is what a stop must write to the disk so that nothing is lost;
    `disk_free_bytes` is the room there."""

    node: NodeId
    epoch: Epoch
    capacity_bytes: int
    used_bytes: int
    segments: int
    segments_free: int
    replicas: int
    puts_open: int
    readers: int
    journal_pending: int
    log_seq: Seq
    descriptors: int
    unsaved_bytes: int = 0
    disk_free_bytes: int = 0


class Refused(_Answer, frozen=True, kw_only=True):
    error: ErrorBody


Request = Hello | Prepare | OpenPut | SealPut | AbortPut | Get | AskStats
Answer = Welcome | Prospect | PutOpened | PutSealed | Done | Granted | Stats | Refused

_requests = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(Answer)


def encode_frame(message: Request | Answer) -> bytes:
    """Length and message, ready to send."""
    body = msgspec.json.encode(message)
    return LENGTH.pack(len(body)) + body


def body_bytes(length: bytes) -> int:
    """Size of the message that follows a 4-byte length. Raises Corrupt when it is too long."""
    (size,) = LENGTH.unpack(length)
    if size > FRAME_BYTES_MAX:
        raise Corrupt(f"A message of {size} bytes was announced; {FRAME_BYTES_MAX} is the limit.")
    return int(size)


def decode_request(body: bytes) -> Request:
    """Raises Corrupt when the bytes are no request."""
    try:
        return _requests.decode(body)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"A request cannot be read: {error}.") from error


def decode_answer(body: bytes) -> Answer:
    """Raises Corrupt when the bytes are no answer."""
    try:
        return _answers.decode(body)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"The mover's answer cannot be read: {error}.",
            hint="Client and mover may be of different releases.",
        ) from error
