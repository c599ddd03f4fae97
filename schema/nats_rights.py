"""What each identity may say to a NATS server and hear from it: the least that its work needs.

Rights are subjects. Where a subject names a node, a mover has those of its own node alone; where it
does not (replicas, operations, artifacts, keys) all movers may write, and the fold refuses what
makes no sense. Nobody but the operator may delete, purge or change a JetStream object.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from tensorcast.schema import subjects
from tensorcast.schema.access import Access
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import NodeId
from tensorcast.schema.signals import parse_pattern

ANSWER_S: Final = 300
SECURITY_TOPIC: Final = "security"
"""Movers emit signals on topics under this one: what they refused."""
READ_VERBS: Final = (
    "artifact.*",
    "key.list",
    "key.show",
    "operation.*",
    "replicas.wait",
    "node.*",
    "engine.*",
    "audit.*",
    "blocks.*",
    "engine_blocks.views",
    "engine_blocks.holders",
    "signal.topics",
    "policy.list",
    "policy.show",
    "plan.*",
    "replay",
    "moment",
    "diff",
    "status",
    "access.*",
)
"""Verbs of the API that change nothing: all that a reader may ask."""


class Role(StrEnum):
    """What an identity is for. `name` is that of the node or of the user."""

    CONTROLPLANE = "controlplane"
    MOVER = "mover"
    USER = "user"
    READER = "reader"


class Rights(msgspec.Struct, frozen=True):
    """Subjects with wildcards. `answers`: may send once to where a request says that it waits."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False


def identity_of(role: Role, name: str) -> str:
    """What an identity is called, in the server's configuration and in `Access`."""
    if role is Role.CONTROLPLANE:
        return str(role)
    return f"{Role.USER if role is Role.READER else role}.{name}"


def rights_of(role: Role, name: str, cluster: str) -> Rights:
    """All that a role may do in a cluster."""
    inbox = f"{Access(identity=identity_of(role, name)).inbox}.>"
    match role:
        case Role.CONTROLPLANE:
            return _controlplane(cluster, inbox)
        case Role.MOVER:
            return _mover(cluster, NodeId(name), inbox)
        case Role.USER:
            return _user(cluster, name, inbox)
        case Role.READER:
            return _reader(cluster, name, inbox)


def _controlplane(cluster: str, inbox: str) -> Rights:
    log, kv = subjects.log_name(cluster), subjects.kv_log_name(cluster)
    kept = (log, kv, f"KV_{subjects.cursor_bucket(cluster)}", subjects.heads_name(cluster))
    return Rights(
        publish=(
            subjects.log_subjects(cluster),
            subjects.kv_engines(cluster),
            subjects.heads_subject(cluster),
            f"$KV.{subjects.cursor_bucket(cluster)}.*",
            *(f"$JS.API.STREAM.CREATE.{name}" for name in kept),
            *(f"$JS.API.STREAM.INFO.{name}" for name in kept),
            *(f"$JS.API.STREAM.MSG.GET.{name}" for name in kept),
            *_ordered(log),
            *_ordered(kv),
            *(f"$JS.API.CONSUMER.DELETE.{name}.*" for name in (log, kv)),
            f"{Access(identity=identity_of(Role.USER, '>')).inbox}",
            inbox,
        ),
        subscribe=(
            subjects.api_subject(cluster, ">"),
            subjects.user_subject(cluster, "*", ">"),
            subjects.heartbeats(cluster),
            subjects.renewals(cluster),
            subjects.presences(cluster),
            inbox,
        ),
        answers=True,
    )


def _mover(cluster: str, node: NodeId, inbox: str) -> Rights:
    log, kv = subjects.log_name(cluster), subjects.kv_log_name(cluster)
    kinds = (
        AggregateKind.ARTIFACT,
        AggregateKind.KEY,
        AggregateKind.REPLICA,
        AggregateKind.OPERATION,
    )
    warnings = parse_pattern(f"{SECURITY_TOPIC}.>")
    return Rights(
        publish=(
            *(subjects.kind_subjects(cluster, kind) for kind in kinds),
            subjects.log_subject(cluster, AggregateKind.NODE, node),
            subjects.signal_subjects(cluster, warnings),
            subjects.kv_changed(cluster, node),
            subjects.kv_cleared(cluster, node),
            subjects.heartbeat(cluster, node),
            *(f"$JS.API.STREAM.INFO.{name}" for name in (log, kv)),
            *(f"$JS.API.STREAM.MSG.GET.{name}" for name in (log, kv)),
            *_ordered(log),
            *_ordered(kv),
        ),
        subscribe=(subjects.ticket_subjects(cluster, node), inbox),
        answers=True,
    )


def _user(cluster: str, name: str, inbox: str) -> Rights:
    log = subjects.log_name(cluster)
    return Rights(
        publish=(
            subjects.user_subject(cluster, name, ">"),
            subjects.ticket_subject(cluster, NodeId("*"), name),
            subjects.renewals(cluster),
            subjects.presences(cluster),
            *_signals(cluster),
            f"$JS.API.CONSUMER.DELETE.{log}.*",
        ),
        subscribe=(inbox,),
    )


def _reader(cluster: str, name: str, inbox: str) -> Rights:
    verbs = (subjects.user_subject(cluster, name, verb) for verb in READ_VERBS)
    return Rights(publish=(*verbs, *_signals(cluster)), subscribe=(inbox,))


def _ordered(log: str) -> tuple[str, ...]:
    """To read a JetStream object in order, by consumers of one's own, and control their flow."""
    return (
        f"$JS.API.CONSUMER.CREATE.{log}.*",
        f"$JS.FC.{log}.>",
        f"$JS.FC.*.*.{log}.>",
    )


def _signals(cluster: str) -> tuple[str, ...]:
    """To read signals from the log, and nothing else of it."""
    log = subjects.log_name(cluster)
    topics = subjects.kind_subjects(cluster, AggregateKind.SIGNAL)
    return (
        f"$JS.API.CONSUMER.CREATE.{log}.*.{topics}",
        f"$JS.API.CONSUMER.INFO.{log}.*",
        f"$JS.API.CONSUMER.LIST.{log}",
        f"$JS.API.CONSUMER.MSG.NEXT.{log}.*",
        f"$JS.ACK.{log}.>",
        f"$JS.ACK.*.*.{log}.>",
    )
