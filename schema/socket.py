"""What applications and their node's mover say to each other on the unix socket.

A frame is a 4-byte big-endian length and a JSON message; descriptors travel with the length. The
application asks, the mover answers each request once and in order. Closing the connection aborts
the puts that it has opened.
"""

from __future__ import annotations

import struct

import msgspec

from tensorcast.schema.api import PeerInfo
from tensorcast.schema.chunks import ChunkSet
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
    """Asks for a segment of at least `size_bytes`; answered by PutOpened and one descriptor, which
    is to be written through. `lasting`: the application will work in the segment and go on reading
    it after the seal. Then two more come: one that is to be read through, and a lifeline, as with
    Granted."""

    size_bytes: int
    lasting: bool = False


NO_SESSION = 0


class SealPut(_Request, frozen=True, kw_only=True):
    """The bytes are written, and soon nobody can write to them any more (mappings and descriptors
    for writing are closed): the mover digests them and makes them an artifact, its first replica,
    and (with `key`) moves the key, all in one append. `expect` is what the key must point to now
    (None: nothing, or this very artifact).

    What the writer knows already is checked: `artifact` (None: not known) and the digests of the
    manifest (empty: not known). Session 0 brings no bytes and needs both: the node must hold the
    artifact already. Refused with Conflict for the key, and then with NotFound when the node does
    not hold it.

    Answered by PutSealed. Without `wait` by PutAccepted, as soon as it is certain that the seal
    survives a crash of the mover."""

    session: int
    kind: str
    manifest: Manifest
    artifact: ArtifactId | None = None
    labels: dict[str, str] = {}
    key: Key | None = None
    expect: ArtifactId | None = None
    wait: bool = True


class AwaitPut(_Request, frozen=True, kw_only=True):
    """Waits for the seal of an accepted put; answered by PutSealed, or refused with what the seal
    failed with. NotFound for a ticket that is not known, or not any more."""

    ticket: str


class AbortPut(_Request, frozen=True, kw_only=True):
    session: int


class Get(_Request, frozen=True, kw_only=True):
    """Asks to read an artifact, by key or id. A key whose put is accepted and not yet sealed is
    waited for. Answered by Granted and two descriptors (the segment,
    read-only, and the lifeline that must stay open as long as the mapping lives). When the node has
    no replica, the mover makes one first. `after`: the mover must know the log up to there.
    `partial`: answered as soon as the segment is there, though bytes are still to come
    (`Granted.chunks`); `Follow` tells of them. `chunks`: no others are needed, and these must be
    there. A node that has nothing of the artifact, and is not getting it, brings no more then: an
    excerpt, which is no replica (`Granted.is_excerpt`). None: all.
    `gpu`: the reader has a device too. If a GPU of the node has all of it, the answer says where
    (`Granted.gpu`), and brings one descriptor: the lifeline."""

    what: str
    after: Seq = Seq(0)
    timeout_s: float = 300.0
    partial: bool = False
    chunks: ChunkSet | None = None
    gpu: bool = False


class Follow(_Request, frozen=True, kw_only=True):
    """Waits until more than `have` chunks of what was granted in part are there. Answered by
    Arrived, after `timeout_s` at the latest. Refused with Unavailable when nothing more will come
    into that segment: ask anew with Get."""

    artifact: ArtifactId
    segment: str
    have: int
    timeout_s: float = 10.0


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
    """`existed`: the artifact was there already with a replica on this node. `kind` and `labels`
    are those that are stored: content that was there before keeps its own."""

    artifact: ArtifactId
    replica: ReplicaId
    seq: Seq
    existed: bool
    kind: str = ""
    labels: dict[str, str] = {}


class PutAccepted(_Answer, frozen=True, kw_only=True):
    """The put is as safe as the memory it lies in; `ticket` is for AwaitPut. `sealed`: it did not
    take any time at all, or whether the key is free depends on the content."""

    ticket: str
    sealed: PutSealed | None = None


class Done(_Answer, frozen=True, kw_only=True):
    pass


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The byte space in the memory of the device at `pci`: `handle` opens it in another process of
    the machine. It may be read as long as the lifeline is open, and never written."""

    pci: str
    handle: bytes


class Granted(_Answer, frozen=True, kw_only=True):
    """The segment's first `manifest.size_bytes` bytes are the artifact's byte space. `chunks`, if
    any, are those of its bytes that are there: only of these may be read. `segment` is its name in
    Follow. `is_excerpt`: no others will come than those that are asked for with Get."""

    artifact: ArtifactId
    kind: str
    labels: dict[str, str]
    manifest: Manifest
    segment: str = ""
    chunks: ChunkSet | None = None
    is_excerpt: bool = False
    gpu: GpuPlace | None = None


class Arrived(_Answer, frozen=True, kw_only=True):
    """The chunks that are there now, all checked."""

    chunks: ChunkSet


class Stats(_Answer, frozen=True, kw_only=True):
    """Counts for diagnosis and leak tests. Bytes; `readers` are lifelines that are open.
    `unsaved_bytes` is what a stop must write to the disk so that nothing is lost;
    `disk_free_bytes` is the room there. `free_bytes` is memory that is kept for the next use, on
    top of `used_bytes`; `waiting` requests wait for memory.
    `trouble` says why the node takes no new work; it is empty when all is well."""

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
    free_bytes: int = 0
    disk_capacity_bytes: int = 0
    disk_used_bytes: int = 0
    waiting: int = 0
    peers: tuple[PeerInfo, ...] = ()
    trouble: str = ""


class Refused(_Answer, frozen=True, kw_only=True):
    error: ErrorBody


Request = Hello | Prepare | OpenPut | SealPut | AwaitPut | AbortPut | Get | Follow | AskStats
Answer = (
    Welcome
    | Prospect
    | PutOpened
    | PutSealed
    | PutAccepted
    | Done
    | Granted
    | Arrived
    | Stats
    | Refused
)

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
