"""Names of NATS objects and subjects. No other file builds one.

tc.<cluster>.log.<aggregate kind>.<aggregate id>     the log: one subject for each aggregate
tc.<cluster>.log.signal.<topic>                      signals in it; a topic has tokens of its own
tc.<cluster>.kv.<node>.changed, .cleared             the KV log: what happens to a node's KV blocks
tc.<cluster>.kv.engine.<engine>                      in it: the blocks in an engine's own caches
tc.<cluster>.heads                                   signed heads of the log
tc.<cluster>.api.<verb>                              requests to the control plane
tc.<cluster>.user.<user>.<verb>                      the same, by a user whom NATS knows
tc.<cluster>.ticket.<node>.<user>                    asks a mover for a ticket to its own data port
tc.<cluster>.heartbeat.<node>                        a mover is alive (not an event)
tc.<cluster>.renewal.<lease>                         a lease is still wanted (not an event)
tc.<cluster>.presence.<engine>                       an engine is alive (not an event)
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import AggregateKind, Event, aggregate_of
from tensorcast.schema.ids import EngineId, LeaseId, NodeId
from tensorcast.schema.signals import Pattern, parse_topic

_UNSAFE_IN_QUOTED = re.compile(r"[.~]")


def log_name(cluster: str) -> str:
    """The JetStream object that holds the log of a cluster."""
    return f"TC_{cluster}_LOG"


def cursor_bucket(cluster: str) -> str:
    """The key-value bucket that holds the cursors of schedulers."""
    return f"TC_{cluster}_CURSORS"


def log_subjects(cluster: str) -> str:
    """All subjects of the log."""
    return f"tc.{cluster}.log.>"


def log_subject(cluster: str, kind: AggregateKind, aggregate_id: str) -> str:
    """The subject of one aggregate."""
    if kind is AggregateKind.SIGNAL:
        return signal_subjects(cluster, Pattern(parse_topic(aggregate_id)))
    return f"tc.{cluster}.log.{kind}.{_token(aggregate_id)}"


def signal_subjects(cluster: str, pattern: Pattern) -> str:
    """The subjects of all topics that a pattern chooses."""
    return f"tc.{cluster}.log.{AggregateKind.SIGNAL}.{pattern}"


def subject_of(cluster: str, event: Event) -> str:
    """The subject that an event is appended to."""
    return log_subject(cluster, *aggregate_of(event))


def kind_subjects(cluster: str, kind: AggregateKind) -> str:
    """The subjects of all aggregates of one kind."""
    return f"tc.{cluster}.log.{kind}.{'>' if kind is AggregateKind.SIGNAL else '*'}"


def parse_log_subject(subject: str) -> tuple[AggregateKind, str]:
    """The aggregate that a log subject stands for. Raises ValueError for any other subject."""
    parts = subject.split(".", 4)
    if len(parts) != 5 or parts[0] != "tc" or parts[2] != "log":
        raise ValueError(f"{subject!r} is not a subject of the log")
    kind = AggregateKind(parts[3])
    if "." in parts[4] and kind is not AggregateKind.SIGNAL:
        raise ValueError(f"{subject!r} is not a subject of the log")
    return kind, unquote(parts[4])


def heads_name(cluster: str) -> str:
    """The JetStream object that holds the signed heads of the log."""
    return f"TC_{cluster}_HEADS"


def heads_subject(cluster: str) -> str:
    """Where a signed head of the log goes."""
    return f"tc.{cluster}.heads"


def kv_log_name(cluster: str) -> str:
    """The JetStream object that holds the KV log of a cluster."""
    return f"TC_{cluster}_KV"


def kv_subjects(cluster: str) -> str:
    """All subjects of the KV log."""
    return f"tc.{cluster}.kv.>"


def kv_changed(cluster: str, node: NodeId) -> str:
    """Where a node's blocks are said to be stored and evicted."""
    return f"tc.{cluster}.kv.{_token(node)}.changed"


def kv_cleared(cluster: str, node: NodeId) -> str:
    """Where a node begins anew to say what it holds: the last message is where to read from."""
    return f"tc.{cluster}.kv.{_token(node)}.cleared"


def kv_engine(cluster: str, engine: EngineId) -> str:
    """Where it is told which blocks an engine holds in its own caches."""
    return f"tc.{cluster}.kv.engine.{_token(engine)}"


def kv_engines(cluster: str) -> str:
    """All subjects of what engines hold."""
    return f"tc.{cluster}.kv.engine.*"


def api_subject(cluster: str, verb: str) -> str:
    """Where the control plane listens for one kind of request."""
    return f"tc.{cluster}.api.{verb}"


def user_subject(cluster: str, user: str, verb: str) -> str:
    """Where the control plane listens for the requests of one user: nobody else may send there, so
    the subject says who asks."""
    return f"tc.{cluster}.user.{user}.{verb}"


def parse_request_subject(cluster: str, subject: str) -> tuple[str, str]:
    """The user (empty: not known) and the verb of a request to the control plane."""
    own = subject.removeprefix(f"tc.{cluster}.user.")
    if own == subject:
        return "", subject.removeprefix(f"tc.{cluster}.api.")
    user, _, verb = own.partition(".")
    return user, verb


def ticket_subject(cluster: str, node: NodeId, user: str) -> str:
    """Where a mover is asked for a ticket by a user, who alone may send there ("": not known)."""
    return f"tc.{cluster}.ticket.{node}.{user or '-'}"


def ticket_subjects(cluster: str, node: NodeId) -> str:
    """Where a mover is asked for tickets by anybody."""
    return f"tc.{cluster}.ticket.{node}.*"


def parse_ticket_subject(subject: str) -> str:
    """The user who asks for a ticket; "" when NATS knows no users."""
    return subject.rpartition(".")[2].strip("-")


def api_queue(cluster: str) -> str:
    """The queue group that lets several control planes share the requests."""
    return f"tc-{cluster}-api"


def heartbeat(cluster: str, node: NodeId) -> str:
    """Where a mover says that it is alive."""
    return f"tc.{cluster}.heartbeat.{node}"


def heartbeats(cluster: str) -> str:
    """The subjects of all movers' heartbeats."""
    return f"tc.{cluster}.heartbeat.*"


def renewal(cluster: str, lease: LeaseId) -> str:
    """Where the holder of a lease says that it still wants it."""
    return f"tc.{cluster}.renewal.{_token(lease)}"


def renewals(cluster: str) -> str:
    """The subjects of all renewals."""
    return f"tc.{cluster}.renewal.*"


def presence(cluster: str, engine: EngineId) -> str:
    """Where an engine says that it is alive."""
    return f"tc.{cluster}.presence.{_token(engine)}"


def presences(cluster: str) -> str:
    """The subjects of all engines' signs of life."""
    return f"tc.{cluster}.presence.*"


def _token(text: str) -> str:
    """Any text as one subject token: what NATS could misread is percent-encoded."""
    if not text:
        raise InvalidArgument("An id must not be empty.")
    quoted = quote(text, safe="-_:@=+")
    return _UNSAFE_IN_QUOTED.sub(lambda m: f"%{ord(m.group()):02X}", quoted)
