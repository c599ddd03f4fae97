"""Identities. All are text, so that they read well in a log line; none is made here at random."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import NewType

from tensorcast.schema.errors import InvalidArgument

ArtifactId = NewType("ArtifactId", str)
Key = NewType("Key", str)
ReplicaId = NewType("ReplicaId", str)
OperationId = NewType("OperationId", str)
LeaseId = NewType("LeaseId", str)
EngineId = NewType("EngineId", str)
PlanId = NewType("PlanId", str)
NodeId = NewType("NodeId", str)
EventId = NewType("EventId", str)
Epoch = NewType("Epoch", int)
Seq = NewType("Seq", int)
"""Position in the log, from 1; 0 stands for "before the first event"."""

KEY_BYTES_MAX = 512
PLAN_PREFIX = "plan-"
_NODE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ARTIFACT = re.compile(r"[0-9a-f]{40}")
_ENGINE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:@-]{0,126}[A-Za-z0-9])?")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAN = re.compile(rf"{PLAN_PREFIX}[0-9a-f]{{24}}")
_POLICY = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class Tier(StrEnum):
    """Where the bytes of a replica are. GPU: in the memory of one of the node's devices; it goes
    with the mover's process, so it never counts as a copy that keeps an artifact alive. OBJECT: in
    a store that all nodes share; the replica is that of the node that stored it, and any node with
    access can read it, also when that one is gone."""

    GPU = "gpu"
    DRAM = "dram"
    DISK = "disk"
    OBJECT = "object"


class Overflow(StrEnum):
    """What a node does when its memory is full. SPILL: what is nowhere else is written to disk
    first, then it may go; EVICT: only what has another copy goes; REJECT: nothing goes, and what
    does not fit is refused at once."""

    SPILL = "spill"
    EVICT = "evict"
    REJECT = "reject"


def replica_id(artifact: ArtifactId, node: NodeId, tier: Tier) -> ReplicaId:
    """The one replica that an artifact can have on a node in a tier."""
    return ReplicaId(f"{artifact}:{node}:{tier}")


def derive_operation_id(cause: str, policy: str, ordinal: int) -> OperationId:
    """The id of the operation that `policy` issues as its `ordinal`-th answer to event `cause`.

    The same decision always gives the same id. So any number of schedulers may decide at once:
    the first append wins and the others are duplicates.
    """
    text = f"{cause}\n{policy}\n{ordinal}"
    return OperationId("op-" + hashlib.blake2s(text.encode(), digest_size=12).hexdigest())


def derive_plan_id(dedup_id: str) -> PlanId:
    """The id of a plan that is submitted under this name, however often."""
    return PlanId(PLAN_PREFIX + hashlib.blake2s(dedup_id.encode(), digest_size=12).hexdigest())


def derive_event_id(subject: str, cause: str, ordinal: int) -> EventId:
    """An event id for a decision that several processes may take at once (UUID text, version 8)."""
    digest = bytearray(
        hashlib.blake2s(f"{subject}\n{cause}\n{ordinal}".encode(), digest_size=16).digest()
    )
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    text = digest.hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return EventId("-".join(parts))


def parse_node(text: str) -> NodeId:
    """A node name that is safe in subjects, paths and host names. Raises InvalidArgument."""
    if not _NODE.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is not a node name.",
            hint="Use 1 to 63 of a-z, 0-9 and '-', not at an end.",
        )
    return NodeId(text)


def parse_engine(text: str) -> EngineId:
    """A name of an engine. Raises InvalidArgument."""
    if not _ENGINE.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is not a name of an engine.",
            hint="Use 1 to 128 letters, digits, '.', '_', ':', '@' and '-', not at an end.",
        )
    return EngineId(text)


def parse_policy(text: str) -> str:
    """A name of a policy. Raises InvalidArgument."""
    if not isinstance(text, str) or not _POLICY.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is not a name of a policy.",
            hint="Use 1 to 63 of a-z, 0-9, '.', '_' and '-', not at an end.",
        )
    return text


def parse_event(text: str) -> EventId:
    """The id of an event that somebody else has chosen: a UUID. Raises InvalidArgument."""
    if not _UUID.fullmatch(text):
        raise InvalidArgument(f"{text!r} is not the id of an event.", hint="Give a UUID.")
    return EventId(text)


def parse_cluster(text: str) -> str:
    """A cluster name that is safe in names of NATS objects. Raises InvalidArgument."""
    if not _CLUSTER.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is not a cluster name.",
            hint="Use 1 to 32 of a-z, 0-9 and '-', not at an end.",
        )
    return text


def is_plan_id(text: str) -> bool:
    """Whether a text has the form of the id of a plan; operations that a plan issues have it as
    their policy."""
    return _PLAN.fullmatch(text) is not None


def is_artifact_id(text: str) -> bool:
    """Whether a text has the form of a full artifact id; such a text is never a key."""
    return _ARTIFACT.fullmatch(text) is not None


def family_of(key: Key) -> str:
    """What the versions of one thing have in common: the key up to its last `@`, or all of it."""
    name, mark, _ = key.rpartition("@")
    return name if mark else key


def number_of(key: Key) -> int:
    """The N of a version `name@N`; 0 for any other key."""
    _, mark, number = key.rpartition("@")
    is_number = mark and number.isascii() and number.isdecimal() and len(number) < 16
    return int(number) if is_number else 0


def parse_tier(text: str) -> Tier:
    """A tier by its name. Raises InvalidArgument."""
    try:
        return Tier(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a tier.", hint=f"Use one of {', '.join(Tier)}."
        ) from None


def parse_key(text: str) -> Key:
    """A key: any printable text without surrounding space that does not look like a full artifact
    id. Raises InvalidArgument."""
    if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
        raise InvalidArgument(
            f"{text!r} is not a key.", hint="Use printable text without space at its ends."
        )
    if len(text.encode()) > KEY_BYTES_MAX:
        raise InvalidArgument(
            f"The key is longer than {KEY_BYTES_MAX} bytes.", hint="Choose a shorter one."
        )
    if is_artifact_id(text):
        raise InvalidArgument(
            f"{text!r} is not a key: it has the form of an artifact id.", hint="Choose a name."
        )
    return Key(text)
