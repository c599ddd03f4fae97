"""What clients ask the control plane (a NATS request for each verb) and what it answers.

A request goes to `subjects.api_subject(cluster, verb)`; the answer is a `Reply`. Field names of the
answers are those of the public JSON output and stay.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.api_plans import PlanInfo
from tensorcast.schema.commands import Command
from tensorcast.schema.errors import Corrupt, ErrorBody, from_body
from tensorcast.schema.faults import Detour
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    EventId,
    Key,
    NodeId,
    OperationId,
    Overflow,
    Seq,
    Tier,
)

LIST_MAX = 1000
FURTHER_MAX = 500
"""Most commands that are carried out together, but for the first."""
WAIT_S_MAX = 20.0
"""A waiting request is answered after at most so long; the caller asks again."""


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


# ---- requests ------------------------------------------------------------------------------


class Execute(_Message, frozen=True, kw_only=True):
    """Verb `execute`: decide a command, and `further` ones, and append their events: all of them or
    none. Answer: `Executed`."""

    command: Command
    actor: str
    force: bool = False
    further: Annotated[tuple[Command, ...], Meta(max_length=FURTHER_MAX)] = ()


class Show(_Message, frozen=True, kw_only=True):
    """Verbs `artifact.show`, `artifact.tensors`, `key.show`, `operation.show`, `node.show`,
    `engine.show`:
    `what` is a key, an id or an unambiguous beginning of an id (6 characters or more). The answer
    includes everything up to event `after`; with `at` it is as it was after that event."""

    what: str
    after: Seq = Seq(0)
    at: Seq | None = None


class Browse(_Message, frozen=True, kw_only=True):
    """Verbs `artifact.list`, `key.list`, `operation.list`, `node.list`, `engine.list`: newest
    first; with `at` as it was after that event. `plan.list`: those with a `label`."""

    limit: int = LIST_MAX
    after: Seq = Seq(0)
    status: str | None = None
    node: NodeId | None = None
    artifact: str | None = None
    at: Seq | None = None
    label: str = ""


class AuditQuery(_Message, frozen=True, kw_only=True):
    """Verbs `audit.log` and `artifact.history`: events in the order of the log from position
    `since` on and up to `before` (both exclusive). `what` (key, id, node, operation or engine)
    selects the events about it; for an artifact these include its replicas, operations, leases,
    engines and keys. In `type`, `types` and `actor`, `*` stands for any text; an event of any of
    the `types` will do. An answer carries a few MiB at most: whoever wants all asks again from the
    last position until an answer is empty. `plan` (id, its beginning or name): the events of the
    plan and all that its runner did."""

    what: str | None = None
    artifact: str | None = None
    node: NodeId | None = None
    actor: str | None = None
    type: str | None = None
    cause: EventId | None = None
    time_from: datetime | None = None
    time_to: datetime | None = None
    since: Seq = Seq(0)
    before: Seq | None = None
    limit: int = LIST_MAX
    newest: bool = False
    after: Seq = Seq(0)
    types: tuple[str, ...] = ()
    key: Key | None = None
    operation: str | None = None
    engine: str | None = None
    plan: str | None = None


class ReplayQuery(_Message, frozen=True, kw_only=True):
    """Verb `replay`: the state as it was after event `to_seq`, or after the last event not later
    than `to_time`. `what` (with `kind` artifact, key, node, operation, engine or plan) keeps only
    what concerns it. Of more than `limit` things of a kind, those that changed last are told."""

    to_seq: Seq | None = None
    to_time: datetime | None = None
    kind: str | None = None
    what: str | None = None
    limit: int = LIST_MAX


class WaitOperation(_Message, frozen=True, kw_only=True):
    """Verb `operation.wait`: answers the operation when it ended, or as it is after `timeout_s`."""

    operation: OperationId
    timeout_s: float


class WaitReplicas(_Message, frozen=True, kw_only=True):
    """Verb `replicas.wait`: answers `ReplicasProgress` when each node has the replica that was
    requested by event `request`, or finally failed to make it, or after `timeout_s`."""

    artifact: ArtifactId
    nodes: tuple[NodeId, ...]
    tier: Tier
    request: EventId
    timeout_s: float


class WeightsQuery(_Message, frozen=True, kw_only=True):
    """Verb `engine.weights`: which weights an engine (its name or address) served at a time, as
    `ServedInfo`; None: now."""

    engine: str
    at: datetime | None = None
    after: Seq = Seq(0)


class Ask(_Message, frozen=True, kw_only=True):
    """Verbs `status`, `blocks.stats`, `blocks.spaces`."""


class BlockShow(_Message, frozen=True, kw_only=True):
    """Verb `blocks.show`: what is known of one KV block by its packed key; with `node`, on that
    node only."""

    key: bytes
    node: NodeId | None = None


class BlockQuery(_Message, frozen=True, kw_only=True):
    """Verb `blocks.events`: events of the KV log in its order after `since`, with `newest` the last
    ones. Their keys are told only `with_keys`."""

    node: NodeId | None = None
    space: str | None = None
    type: str | None = None
    since: Seq = Seq(0)
    limit: int = LIST_MAX
    newest: bool = False
    with_keys: bool = False


# ---- answers -------------------------------------------------------------------------------


class Executed(_Message, frozen=True, kw_only=True):
    """`events` are the ids of the appended events (none: it was already so); `seq` is the position
    of the last one, or of the aggregate's last event."""

    events: tuple[EventId, ...]
    seq: Seq


class ReplicaInfo(_Message, frozen=True, kw_only=True):
    node: NodeId
    tier: Tier
    state: str
    chunks_ready: int
    chunks_total: int


class ArtifactInfo(_Message, frozen=True, kw_only=True):
    """`state` is sealed or removed; `seq` the position of its last own event."""

    id: ArtifactId
    kind: str
    state: str
    bytes: int
    tensors: int
    labels: dict[str, str]
    keys: tuple[Key, ...]
    replicas: tuple[ReplicaInfo, ...]
    pinned: bool
    leases: int
    sealed_at: datetime
    seq: Seq


class TensorInfo(_Message, frozen=True, kw_only=True, omit_defaults=True):
    """`strides` (in elements) only for a tensor that is not contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    strides: tuple[int, ...] | None = None


class KeyMove(_Message, frozen=True, kw_only=True):
    artifact: ArtifactId | None
    at: datetime
    actor: str
    seq: Seq


class KeyInfo(_Message, frozen=True, kw_only=True):
    """`version` counts its moves; `newest` is the highest N of the keys `key@N` that are set."""

    key: Key
    artifact: ArtifactId | None
    version: int
    history: tuple[KeyMove, ...] = ()
    newest: int = 0


class OperationInfo(_Message, frozen=True, kw_only=True):
    """`chunks_ready` of `chunks_total` tell the progress of the replica that it makes."""

    id: OperationId
    kind: str
    node: NodeId
    artifact: ArtifactId
    status: str
    attempt: int
    bytes_moved: int
    transports: dict[str, int]
    policy: str
    cause: EventId | None
    fault: FaultInfo | None
    issued_at: datetime
    ended_at: datetime | None
    chunks_ready: int = 0
    chunks_total: int = 0
    detours: tuple[Detour, ...] = ()


class TierInfo(_Message, frozen=True, kw_only=True):
    """Bytes; `used` is all that is taken, by the word of a node that is up (replicas, KV slabs,
    open puts), else what the replicas there take."""

    capacity: int
    used: int


class PeerInfo(_Message, frozen=True, kw_only=True):
    """A node that failed others: what a mover thinks of it (`quarantined`: it is not asked;
    `probation`: it gets one try), since how many failures in a row and why, and for how long it
    stays in quarantine, in seconds."""

    node: NodeId
    standing: str
    failures: int
    reason: str
    quarantined_s: float = 0.0


class NodeInfo(_Message, frozen=True, kw_only=True):
    """`bandwidth` in bytes a second (0: not known); `peers` are the nodes that its mover does not
    rely on now; `trouble` says why it takes no new work (empty: it does)."""

    node: NodeId
    epoch: int
    state: str
    address: str
    cordoned: bool
    draining: bool
    tiers: dict[Tier, TierInfo]
    transports: tuple[str, ...]
    replicas: int
    labels: dict[str, str]
    joined_at: datetime
    bandwidth: int = 0
    overflow: Overflow = Overflow.SPILL
    peers: tuple[PeerInfo, ...] = ()
    trouble: str = ""


class ServedInfo(_Message, frozen=True, kw_only=True):
    """Weights that an engine served from `since` until `until` (None: it does so now)."""

    engine: EngineId
    version: str
    artifact: ArtifactId | None
    since: datetime
    until: datetime | None
    life: str
    seq: Seq


class EngineInfo(_Message, frozen=True, kw_only=True):
    """`version` is that of the weights that it serves or, when it is not up, served last (empty: it
    has not said), `since` when they began to serve. `load` is what it said last, for example
    `cache_usage` (0 to 1). `served` are its last weights, the oldest first; only one engine alone
    is told with them."""

    engine: EngineId
    kind: str
    state: str
    node: NodeId | None
    model: str
    url: str
    version: str
    artifact: ArtifactId | None
    since: datetime | None
    life: str
    labels: dict[str, str]
    registered_at: datetime
    seq: Seq
    load: dict[str, float] = {}
    served: tuple[ServedInfo, ...] = ()


class EventInfo(_Message, frozen=True, kw_only=True, omit_defaults=True):
    """An event with its envelope; `data` is JSON as it was written, `fields` the same by name.
    `cause_seq` is the position of its cause, where whoever answers knows it."""

    seq: Seq
    id: EventId
    type: str
    v: int
    at: datetime
    actor: str
    cause: EventId | None
    data: msgspec.Raw
    cause_seq: Seq | None = None

    @property
    def fields(self) -> dict[str, object]:
        """What it says, by name."""
        return msgspec.json.decode(self.data, type=dict[str, object])


class BlockCount(_Message, frozen=True, kw_only=True):
    """KV blocks and their bytes, as far as nodes have told."""

    blocks: int
    bytes: int


class NodeBlocks(_Message, frozen=True, kw_only=True):
    """The KV blocks of a node. `counters` are those of its mover's last heartbeat."""

    node: NodeId
    state: str
    epoch: int
    tiers: dict[Tier, BlockCount]
    counters: dict[str, int] = {}


class SpaceBlocks(_Message, frozen=True, kw_only=True):
    """The KV blocks of a space: in all, and on each node that is up."""

    space: str
    blocks: int
    bytes: int
    nodes: dict[NodeId, dict[Tier, BlockCount]]


class BlockHolder(_Message, frozen=True, kw_only=True):
    """A node that holds a block, since the KV event `seq`."""

    node: NodeId
    tier: Tier
    bytes: int
    since: datetime
    seq: Seq


class BlockMention(_Message, frozen=True, kw_only=True):
    """An event that named a block; `bytes` is 0 for an eviction."""

    seq: Seq
    at: datetime
    type: str
    node: NodeId
    epoch: int
    tier: Tier
    bytes: int


class BlockInfo(_Message, frozen=True, kw_only=True):
    """A block's key, who holds it now, and the last events that named it, the oldest first."""

    space: str
    prefix: str
    layer_group: int
    rank: int
    holders: tuple[BlockHolder, ...]
    events: tuple[BlockMention, ...]


class ReplayInfo(_Message, frozen=True, kw_only=True):
    """`at` is when event `at_seq` happened, `last_seq` the last event of the log, `totals` how many
    of each kind there were (no more than `limit` of them are told)."""

    at_seq: Seq
    artifacts: tuple[ArtifactInfo, ...]
    keys: tuple[KeyInfo, ...]
    nodes: tuple[NodeInfo, ...]
    operations: tuple[OperationInfo, ...]
    plans: tuple[PlanInfo, ...] = ()
    engines: tuple[EngineInfo, ...] = ()
    at: datetime | None = None
    last_seq: Seq = Seq(0)
    totals: dict[str, int] = {}


class ReplicasProgress(_Message, frozen=True, kw_only=True):
    """`done`: nothing is left to wait for. `failed` are the operations that will not succeed."""

    done: bool
    ready: tuple[NodeId, ...]
    operations: tuple[OperationInfo, ...]
    failed: tuple[OperationInfo, ...]
    bytes_ready: int
    bytes_total: int


class ClusterStatus(_Message, frozen=True, kw_only=True):
    """Positions: of the log, of what Postgres has committed, of what the schedulers have seen."""

    cluster: str
    last_seq: Seq
    committed_seq: Seq
    scheduled_seq: Seq
    nodes: tuple[NodeInfo, ...]
    problems: tuple[str, ...] = ()


class Reply(_Message, frozen=True, kw_only=True):
    """Either `ok` (the answer as JSON) or `error`."""

    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorBody | None = None


T = TypeVar("T")


def reply_ok(answer: object) -> bytes:
    """The bytes of a good answer."""
    return msgspec.json.encode({"ok": answer})


def reply_error(body: ErrorBody) -> bytes:
    """The bytes of a refusal."""
    return msgspec.json.encode({"error": body})


def parse_reply(payload: bytes, answer: type[T]) -> T:
    """The answer in a reply. Raises the error that it carries, Corrupt when it cannot be read."""
    try:
        reply = msgspec.json.decode(payload, type=Reply)
        if reply.error is None:
            return msgspec.json.decode(reply.ok, type=answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(
            f"The control plane's answer cannot be read: {error}.",
            hint="Client and control plane may be of different releases.",
        ) from error
    raise from_body(reply.error)
