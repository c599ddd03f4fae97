"""How events look to people. Pure: values to tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tensorcast.cli.output import Flow, Table, shorten, shorten_operation
from tensorcast.cli.plan_events import describe_plan_event
from tensorcast.cli.signals import shorten_data
from tensorcast.cli.units import format_second, format_size
from tensorcast.schema import events as facts
from tensorcast.schema.api import EventInfo
from tensorcast.schema.codec import decode_event
from tensorcast.schema.engine_events import (
    EngineEvent,
    EngineLeft,
    EngineLost,
    EngineRegistered,
    EngineServing,
)
from tensorcast.schema.ids import PLAN_PREFIX, EventId
from tensorcast.schema.namespaces import NamespaceEvent
from tensorcast.schema.plan_events import PlanEvent
from tensorcast.schema.policy_events import PolicyConfigured, PolicyEvent, PolicyStopped
from tensorcast.schema.wording import tell_count
from tensorcast.schema.work import kind_of


class Namer:
    """Remembers the events that were shown, so that a cause can be named by its position."""

    def __init__(self) -> None:
        self._seen: dict[EventId, str] = {}

    def learn(self, event: EventInfo) -> None:
        """Modifies the memory: `event`, and its cause where that is told, can be named from now
        on."""
        self._seen[event.id] = f"#{event.seq}"
        if event.cause is not None and event.cause_seq is not None:
            self._seen[event.cause] = f"#{event.cause_seq}"

    def name(self, cause: EventId | None) -> str:
        """A short name of a cause; its id when the event was not shown."""
        if cause is None:
            return ""
        return self._seen.get(cause, cause)


def event_flow(
    pages: Iterator[Sequence[EventInfo]], closing: Callable[[], str] = lambda: ""
) -> Flow:
    """Events as they come, page by page."""
    namer = Namer()

    def draw(page: Sequence[object]) -> Table:
        events = [item for item in page if isinstance(item, EventInfo)]
        for event in events:
            namer.learn(event)
        return table_events(events, namer)

    return Flow(pages=pages, table=draw, brief=_brief, empty="No events.", closing=closing)


def table_events(events: Sequence[EventInfo], namer: Namer) -> Table:
    """One event a line."""
    return Table(
        titles=("seq", "at", "actor", "type", "about", "what", "cause"),
        rows=[
            (
                str(one.seq),
                format_second(one.at),
                one.actor,
                one.type,
                *describe_event(one),
                namer.name(one.cause),
            )
            for one in events
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"what", "cause"}),
        empty="No events.",
    )


def table_chain(chain: Sequence[EventInfo]) -> Table:
    """A chain of causes, the root first, each effect indented under its cause."""
    return Table(
        titles=("seq", "at", "event", "by", "about", "what"),
        rows=[
            (
                str(one.seq),
                format_second(one.at),
                f"{'  ' * depth}{'└ ' if depth else ''}{one.type}",
                one.actor,
                *describe_event(one),
            )
            for depth, one in enumerate(chain)
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"what"}),
    )


def subject_of(info: EventInfo) -> tuple[str, str]:
    """The kind and id of what an event is about; ("", "") for an event of a newer release."""
    fact = fact_of(info)
    if isinstance(fact, facts.UnknownEvent):
        return "", ""
    kind, aggregate = facts.aggregate_of(fact)
    return kind.value, aggregate


def describe_event(info: EventInfo) -> tuple[str, str]:
    """What an event is about and what it says, both short."""
    fact = fact_of(info)
    if isinstance(fact, facts.UnknownEvent):
        return "?", "an event of a newer release"
    kind, aggregate = facts.aggregate_of(fact)
    return _subject(kind, aggregate), _content(fact)


def fact_of(info: EventInfo) -> facts.Event | facts.UnknownEvent:
    """The event itself, of its own type."""
    return decode_event(info.type, info.v, info.data)


def _brief(item: object) -> str:
    return item.id if isinstance(item, EventInfo) else ""


def _subject(kind: facts.AggregateKind, aggregate: str) -> str:
    match kind:
        case facts.AggregateKind.ARTIFACT:
            return shorten(aggregate)
        case facts.AggregateKind.OPERATION:
            return shorten_operation(aggregate)
        case facts.AggregateKind.REPLICA:
            return _replica(aggregate)
        case _:
            return aggregate


def _replica(replica: str) -> str:
    artifact, _, place = replica.partition(":")
    return f"{shorten(artifact)} {place.replace(':', '/')}"


def _content(fact: facts.Event) -> str:
    if isinstance(fact, facts.ArtifactEvent):
        return _about_artifact(fact)
    if isinstance(fact, facts.KeyEvent):
        return _about_key(fact)
    if isinstance(fact, facts.ReplicaEvent):
        return _about_replica(fact)
    if isinstance(fact, facts.OperationEvent):
        return _about_operation(fact)
    if isinstance(fact, facts.NodeEvent):
        return _about_node(fact)
    if isinstance(fact, EngineEvent):
        return _about_engine(fact)
    if isinstance(fact, facts.SignalEvent):
        return shorten_data(fact.data)
    if isinstance(fact, PlanEvent):
        return describe_plan_event(fact)
    if isinstance(fact, NamespaceEvent):
        return f"{fact.who}: {', '.join(fact.rights)}"
    if isinstance(fact, PolicyEvent):
        return _about_policy(fact)
    return _about_lease(fact)


def _about_policy(fact: PolicyEvent) -> str:
    match fact:
        case PolicyConfigured():
            return shorten_data(fact.parameters)
        case PolicyStopped():
            return f"{fact.reason}: {fact.detail}"
        case _:
            return ""


def _about_artifact(fact: facts.ArtifactEvent) -> str:
    match fact:
        case facts.ArtifactSealed():
            size = format_size(fact.manifest.size_bytes)
            return f"{fact.kind}, {tell_count(len(fact.manifest.index), 'tensor')}, {size}"
        case facts.ReplicasRequested():
            return f"{fact.tier} of {', '.join(fact.nodes)}"
        case facts.VerificationRequested():
            return tell_count(len(fact.replicas), "replica")
        case _:
            return ""


def _about_key(fact: facts.KeyEvent) -> str:
    before = shorten(fact.previous)
    if isinstance(fact, facts.KeyRemoved):
        return f"was {before}"
    return f"to {shorten(fact.artifact)}" + (f", was {before}" if before else "")


def _about_replica(fact: facts.ReplicaEvent) -> str:
    match fact:
        case facts.ReplicaStarted() | facts.ReplicaReady():
            return tell_count(fact.chunks_total, "chunk")
        case facts.ReplicaFilled():
            return f"{tell_count(len(fact.chunks), 'chunk')} more"
        case facts.ReplicaCorrupted():
            return f"{tell_count(len(fact.chunks), 'chunk')}: {fact.detail}"
        case facts.ReplicaEvicting():
            return fact.reason
        case facts.ReplicaLost():
            return fact.detail
        case facts.ReplicaGone():
            return ""


def name_issuer(policy: str) -> str:
    """Who issued an operation: a plan, by its id, or a policy."""
    return f"plan {policy}" if policy.startswith(PLAN_PREFIX) else f"policy {policy}"


def _about_operation(fact: facts.OperationEvent) -> str:
    match fact:
        case facts.OperationIssued():
            work, issuer = fact.work, name_issuer(fact.policy)
            return f"{kind_of(work)} {shorten(work.artifact)} on {fact.node} ({issuer})"
        case facts.OperationStarted():
            return f"attempt {fact.attempt}, epoch {fact.epoch}"
        case facts.OperationSucceeded():
            by = ", ".join(fact.transports)
            return f"{format_size(fact.bytes_moved)} moved" + (f" by {by}" if by else "")
        case facts.OperationFailed():
            return f"{fact.fault.kind}: {fact.fault.detail}"
        case facts.OperationRetried():
            return f"attempt {fact.attempt} follows"
        case facts.OperationRerouted():
            return f"from {', '.join(fact.sources)}"
        case facts.OperationCancelled():
            return fact.reason


def _about_node(fact: facts.NodeEvent) -> str:
    match fact:
        case facts.NodeJoined():
            return f"epoch {fact.epoch} at {fact.address}"
        case facts.NodeLost():
            return f"silent for {fact.silent_s:.1f} s"
        case facts.NodePressured():
            return f"{fact.tier} needs {format_size(fact.needed_bytes)}"
        case facts.NodeRelieved():
            return f"{fact.tier} has {format_size(fact.free_bytes)} to spare"
        case _:
            return ""


def _about_engine(fact: EngineEvent) -> str:
    match fact:
        case EngineRegistered():
            place = f" on {fact.node}" if fact.node else ""
            return f"{fact.kind}{place}" + (f" at {fact.url}" if fact.url else "")
        case EngineServing():
            since = f" since {format_second(fact.since)}"
            return fact.version + (f", {shorten(fact.artifact)}" if fact.artifact else "") + since
        case EngineLost():
            return f"not heard of since {format_second(fact.last_seen)}"
        case EngineLeft():
            return ""


def _about_lease(fact: facts.LeaseEvent) -> str:
    match fact:
        case facts.LeaseAcquired():
            place = f" on {fact.node}" if fact.node else ""
            return f"{shorten(fact.artifact)}{place} for {fact.holder}"
        case _:
            return ""
