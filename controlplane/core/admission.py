"""Which commands of users are let in, and what they must find in the cluster.

An aggregate's own `decide` sees that aggregate only; what spans several is checked here: a key may
not point to an artifact that does not exist, a request may not name a node that cannot take it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

import msgspec

from tensorcast.controlplane.core.names import (
    resolve_artifact,
    resolve_node,
    resolve_operation,
    resolve_plan,
)
from tensorcast.controlplane.core.view import sealed
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    AcquireLease,
    CancelOperation,
    Command,
    CordonNode,
    DrainNode,
    EmitSignal,
    GrantAccess,
    LeaveEngine,
    MoveKey,
    PinArtifact,
    RegisterEngine,
    ReleaseLease,
    RemoveArtifact,
    RemoveKey,
    RequestReplicas,
    RequestVerification,
    RetryOperation,
    RevokeAccess,
    ServeWeights,
    UncordonNode,
    UnpinArtifact,
)
from tensorcast.schema.errors import (
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    Rejected,
    Unavailable,
)
from tensorcast.schema.ids import (
    PLAN_PREFIX,
    ArtifactId,
    NodeId,
    ReplicaId,
    Tier,
    is_plan_id,
    parse_key,
    parse_node,
)
from tensorcast.schema.namespaces import Namespace
from tensorcast.schema.plan_commands import (
    CancelPlan,
    PausePlan,
    PlanUserCommand,
    ResumePlan,
    SubmitPlan,
)
from tensorcast.schema.signals import Topic

ACTOR_CHARS_MAX = 256
NAME_CHARS_MAX = 256
NODES_MAX = 10_000
TOPICS_MAX = 100_000
NAMESPACES_MAX = 100_000
_RESERVED = ("policy:", "mover:", "timers", "controlplane", PLAN_PREFIX)

UserCommand = (
    PinArtifact
    | UnpinArtifact
    | RequestReplicas
    | RequestVerification
    | RemoveArtifact
    | MoveKey
    | RemoveKey
    | CancelOperation
    | RetryOperation
    | CordonNode
    | UncordonNode
    | DrainNode
    | AcquireLease
    | ReleaseLease
    | EmitSignal
    | RegisterEngine
    | ServeWeights
    | LeaveEngine
    | GrantAccess
    | RevokeAccess
    | PlanUserCommand
)
"""What users may ask for; all else is written by movers and policies alone."""


def check_actor(actor: str) -> None:
    """Raises InvalidArgument or PermissionDenied unless a user may call itself so."""
    if not 0 < len(actor) <= ACTOR_CHARS_MAX or not actor.isprintable():
        raise InvalidArgument(
            f"An actor is 1 to {ACTOR_CHARS_MAX} printable characters.", hint="Say user:NAME@HOST."
        )
    if actor.startswith(_RESERVED):
        raise PermissionDenied(f"A client cannot act as {actor!r}.", hint="Say user:NAME@HOST.")


def admit(view: ClusterView, command: Command, *, force: bool = False) -> tuple[Command, ...]:
    """The commands to carry out, as one, for what a user asks: names are resolved, and what it
    touches is checked. Raises PermissionDenied, NotFound, InvalidArgument, Rejected or
    Unavailable."""
    if not isinstance(command, UserCommand):
        raise PermissionDenied(
            f"{type(command).__name__} is not for users.",
            hint="Movers and policies alone report it.",
        )
    match command:
        case RemoveArtifact():
            return _removal(view, _existing(view, command.artifact), force)
        case PinArtifact() | UnpinArtifact():
            artifact = _existing(view, command.artifact)
            return (msgspec.structs.replace(command, artifact=artifact),)
        case RequestReplicas():
            return (_request(view, command),)
        case RequestVerification():
            return (_verification(view, command),)
        case MoveKey():
            return (_move(view, command),)
        case CancelOperation() | RetryOperation():
            operation = resolve_operation(view, command.operation)
            return (msgspec.structs.replace(command, operation=operation),)
        case AcquireLease():
            return (_lease(view, command),)
        case CordonNode() | UncordonNode() | DrainNode():
            resolve_node(view, command.node)
            return (command,)
        case EmitSignal():
            check_room(view, command.topic)
            return (command,)
        case RegisterEngine():
            if command.node is not None:
                parse_node(command.node)  # its mover may join later
            return (command,)
        case SubmitPlan():
            if not is_plan_id(command.plan):
                raise InvalidArgument(f"{command.plan!r} is not the id of a plan.")
            return (command,)
        case PausePlan() | ResumePlan() | CancelPlan():
            return (msgspec.structs.replace(command, plan=resolve_plan(view, command.plan)),)
        case RemoveKey() | ReleaseLease() | ServeWeights() | LeaveEngine() | RevokeAccess():
            return (command,)
        case GrantAccess():
            check_namespaces(view, command.namespace)
            return (command,)
        case _:
            assert_never(command)


def check_room(view: ClusterView, topic: Topic) -> None:
    """Raises OutOfCapacity for one more topic of signals than there may be."""
    if topic not in view.signals and len(view.signals) >= TOPICS_MAX:
        raise OutOfCapacity(
            f"There are {TOPICS_MAX} topics of signals already.",
            hint="Use topics for kinds of signals; what differs each time belongs into the data.",
            retryable=False,
        )


def check_namespaces(view: ClusterView, namespace: Namespace) -> None:
    """Raises OutOfCapacity for one more namespace with rules than there may be."""
    if namespace not in view.namespaces and len(view.namespaces) >= NAMESPACES_MAX:
        raise OutOfCapacity(
            f"{NAMESPACES_MAX} namespaces have rules already.",
            hint="Share namespaces, or have fewer of them.",
            retryable=False,
        )


def _existing(view: ClusterView, text: str) -> ArtifactId:
    """The artifact of this key, id or beginning of an id, which must not be removed."""
    artifact = resolve_artifact(view, text)
    if sealed(view, artifact) is None:
        raise NotFound(
            f"Artifact {artifact} was removed.",
            hint="Put its content again to have it back.",
            artifact=artifact,
        )
    return artifact


def _move(view: ClusterView, command: MoveKey) -> MoveKey:
    """`expect` may be the beginning of an id too; what nobody knows is left to the comparison."""
    expect = command.expect
    if expect is not None:
        with suppress(NotFound):
            expect = resolve_artifact(view, expect)
    return MoveKey(
        key=parse_key(command.key), artifact=_existing(view, command.artifact), expect=expect
    )


def _removal(view: ClusterView, artifact: ArtifactId, force: bool) -> tuple[Command, ...]:
    keys = sorted(view.keys_by_artifact.get(artifact, ()))
    if keys and not force:
        named = ", ".join(keys[:5]) + (", ..." if len(keys) > 5 else "")
        point = "points" if len(keys) == 1 else "point"
        raise Rejected(
            f"{'Key' if len(keys) == 1 else 'Keys'} {named} {point} to artifact {artifact}.",
            hint="Remove or move the keys first, or use --force to remove them with it.",
            artifact=artifact,
        )
    if view.leases_by_artifact.get(artifact) and not force:
        raise Rejected(
            f"Somebody holds a lease on artifact {artifact}.",
            hint="Wait until it ends, or use --force: its replicas then go when the lease ends.",
            artifact=artifact,
        )
    return (
        *(RemoveKey(key=key, expect=artifact) for key in keys),
        RemoveArtifact(artifact=artifact),
    )


def _request(view: ClusterView, command: RequestReplicas) -> RequestReplicas:
    if len(command.nodes) > NODES_MAX:
        raise InvalidArgument(f"A request names at most {NODES_MAX} nodes.")
    artifact = _existing(view, command.artifact)
    for node in command.nodes:
        _check_takes_replicas(view, node, artifact)
        if command.tier is Tier.OBJECT:
            _check_store(view, node, artifact)
        if command.tier is Tier.GPU:
            _check_gpu(view, node, artifact)
    return msgspec.structs.replace(command, artifact=artifact)


def _check_takes_replicas(view: ClusterView, name: NodeId, artifact: ArtifactId) -> None:
    node = view.nodes[resolve_node(view, name)]
    if node.status is not NodeStatus.UP:
        how = "was lost" if node.status is NodeStatus.LOST else "was stopped"
        raise Unavailable(
            f"Node {name} {how}.",
            hint="Start its mover (`tcctl up` on an embedded cluster), or name another node.",
            node=name,
            artifact=artifact,
        )
    if node.cordoned:
        raise Rejected(
            f"Node {name} is {'draining' if node.draining else 'cordoned'}.",
            hint=f"Run `tcctl node uncordon {name}` first, or name another node.",
            node=name,
            artifact=artifact,
        )


def _check_store(view: ClusterView, name: NodeId, artifact: ArtifactId) -> None:
    if Tier.OBJECT not in view.nodes[resolve_node(view, name)].tiers:
        raise Rejected(
            f"Node {name} has no access to a store.",
            hint="Set TENSORCAST_OBJECT_URL for its mover, or name another node.",
            node=name,
            artifact=artifact,
        )


def _check_gpu(view: ClusterView, name: NodeId, artifact: ArtifactId) -> None:
    if not view.nodes[resolve_node(view, name)].tiers.get(Tier.GPU):
        raise Rejected(
            f"Node {name} keeps nothing in the memory of a GPU.",
            hint="Set TENSORCAST_GPU_BYTES for its mover, or name another node.",
            node=name,
            artifact=artifact,
        )


def _verification(view: ClusterView, command: RequestVerification) -> RequestVerification:
    """No replicas named: all of them."""
    artifact = _existing(view, command.artifact)
    known = view.replicas_by_artifact.get(artifact, frozenset[ReplicaId]())
    for replica in command.replicas:
        if replica not in known:
            raise NotFound(
                f"Artifact {artifact} has no replica {replica!r}.",
                hint="`tcctl artifact where` shows its replicas.",
                artifact=artifact,
            )
    replicas = command.replicas or tuple(sorted(known))
    return msgspec.structs.replace(command, artifact=artifact, replicas=replicas)


def _lease(view: ClusterView, command: AcquireLease) -> AcquireLease:
    if not all(0 < len(text) <= NAME_CHARS_MAX for text in (command.lease, command.holder)):
        raise InvalidArgument(f"A lease and its holder have names of 1 to {NAME_CHARS_MAX} chars.")
    if command.node is not None:
        resolve_node(view, command.node)
    return msgspec.structs.replace(command, artifact=_existing(view, command.artifact))
