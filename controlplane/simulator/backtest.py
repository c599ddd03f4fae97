"""A recorded log, decided anew: would another policy have done better?

`review` puts every recorded event to the policies again, each in the view right after it, and
compares their decisions with those that are in the log: with the same policies they are the same.
A policy that the log says was stopped is not asked again what it was stopped for: it may answer
nothing that a log can hold, or never.

`rerun` plays the same hour again with other policies. What came from outside (puts, requests of
users, keys, leases, engines, signals, nodes that come and go, damage) happens again at its time;
what followed from decisions (operations, replicas that they made, evictions, pressure) follows from
the new ones. A get that had to wait is a need: it waits again only if the artifact is not there.
Plans run again, by the runner of production; what engines answer to their calls they answer as
long after each call as they did.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from tensorcast.controlplane.core.catalog import Catalog
from tensorcast.controlplane.core.decisions import decide_reactions, is_right
from tensorcast.controlplane.core.guard import Guard
from tensorcast.controlplane.core.view import DEMAND, is_making, is_ready
from tensorcast.controlplane.simulator.agenda import Action
from tensorcast.controlplane.simulator.answers import Answers, find_answers
from tensorcast.controlplane.simulator.machines import Fleet, Machine
from tensorcast.controlplane.simulator.measures import Measures, Meter, measure
from tensorcast.controlplane.simulator.plan_review import review_plans
from tensorcast.controlplane.simulator.plans import PlanRunner, signal_of
from tensorcast.controlplane.simulator.stops import find_stops
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema import events as e
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import EventId, NodeId, Seq, is_plan_id
from tensorcast.schema.signals import Signal
from tensorcast.schema.work import Materialize, target_tier

PREFIX: Final = "policy:"
RETRY: Final = "policy:retry"
SETTLE_S: Final = 60.0
"""So long after the last recorded event the simulated cluster may end what it has begun."""
LAST_MAX: Final = 200
"""The answers to so many events at the end of a log may lie beyond it."""


# ---- the same decisions ------------------------------------------------------------------------


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """`decided` commands of which `carried_out` are in the log as they were decided; `overtaken`
    were needless by the time of the next event and are rightly not there. `strange` are events
    that policies wrote and that were not decided here, `missing` decisions that should be there
    (both by position of the event that was answered). `plan_events` are those that plans wrote,
    `plan_strange` those among them that the runner would not have written."""

    events: int = 0
    decided: int = 0
    carried_out: int = 0
    overtaken: int = 0
    strange: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    plan_events: int = 0
    plan_strange: tuple[int, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the log holds exactly what was decided here."""
        return not (self.strange or self.missing or self.plan_strange)


def review(
    view: ClusterView,
    events: Sequence[Recorded],
    catalog: Catalog,
    *,
    earlier: Sequence[Signal] = (),
) -> Review:
    """Decides every event anew and looks for the decisions in the log; `view` is the view before
    the first one, `earlier` are the signals before it."""
    written = _written_by_policies(events)
    looked_at = _looked_at(events)
    views = [view]
    for recorded in events:
        views.append(project(views[-1], recorded))
    counts = {"decided": 0, "carried_out": 0, "overtaken": 0}
    strange: list[int] = []
    missing: list[int] = []
    stops, guard = find_stops(events), Guard()
    for place, recorded in enumerate(events, 1):
        answers = written.pop(recorded.id, {})
        guard.note(recorded)
        running = stops.still(recorded.seq, catalog.running(views[place]))
        for decision in decide_reactions(
            views[place], recorded, running, catalog=catalog, guard=guard
        ):
            answered = answers.pop(decision.actor, [])
            for command in decision.commands:
                counts["decided"] += 1
                if _take(command, answered, views, view.at):
                    counts["carried_out"] += 1
                elif _is_overtaken(
                    command, views[place : looked_at[place - 1]], catalog, decision.policy
                ) or (looked_at[place - 1] is None and place + LAST_MAX > len(events)):
                    counts["overtaken"] += 1
                else:
                    missing.append(recorded.seq)
            strange += [recorded.seq] * len(answered)
        strange += [recorded.seq for left in answers.values() for _ in left]
    plans = review_plans(views, events, [*earlier, *filter(None, map(signal_of, events))])
    return Review(
        events=len(events),
        strange=tuple(strange),
        missing=tuple(sorted(set(missing))),
        plan_events=plans.events,
        plan_strange=plans.strange,
        **counts,
    )


def _written_by_policies(
    events: Iterable[Recorded],
) -> dict[EventId, dict[str, list[Recorded]]]:
    """What policies wrote, by the event that they answered and by actor."""
    found: dict[EventId, dict[str, list[Recorded]]] = {}
    for one in events:
        is_decided = one.actor.startswith(PREFIX) and one.actor != RETRY
        if is_decided and one.cause is not None:
            found.setdefault(one.cause, {}).setdefault(one.actor, []).append(one)
    return found


def _take(
    command: Command, answered: list[Recorded], views: Sequence[ClusterView], first: int
) -> bool:
    """Whether a command is among what was written; takes its events away."""
    for one in answered:
        before = views[one.seq - first - 1]
        try:
            wanted, _ = decide(before, command)
        except TensorCastError:
            continue
        if one.event in wanted:
            answered.remove(one)
            return True
    return False


def _looked_at(events: Sequence[Recorded]) -> list[int | None]:
    """For each event the number of the first view in which its answers have surely been looked at,
    also when nobody was there to do so for a while: that after an answer to a later event. None:
    that is not in the log."""
    places = {one.id: place for place, one in enumerate(events)}
    found: list[int | None] = [None] * len(events)
    answered: dict[int, int] = {}
    for place, one in enumerate(events):
        if one.actor.startswith(PREFIX) and one.actor != RETRY and one.cause in places:
            answered.setdefault(places[one.cause], place + 1)
    first: int | None = None
    for place in reversed(range(len(events))):
        found[place] = first
        if place in answered:
            first = answered[place] if first is None else min(first, answered[place])
    return found


def _is_overtaken(
    command: Command, views: Sequence[ClusterView], catalog: Catalog, policy: str
) -> bool:
    """Whether a command was needless in one of the views in which it may have been looked at."""
    for view in views:
        if not catalog.is_running(view, policy) or not is_right(view, command):
            return True
        try:
            if not decide(view, command)[0]:
                return True
        except TensorCastError:
            return True
    return False


# ---- other decisions ---------------------------------------------------------------------------


def rerun(
    view: ClusterView,
    events: Sequence[Recorded],
    catalog: Catalog,
    *,
    seed: int = 0,
    earlier: Sequence[Signal] = (),
) -> Measures:
    """Plays the events again with other policies; `view` is the view before the first one,
    `earlier` are the signals before it."""
    if not events:
        return Measures()
    begin = events[0].at
    world = World(seed, catalog=catalog, view=view, begin=begin, keeps=False)
    meter = Meter(view)
    world.watchers.append(lambda recorded: meter.note(recorded, world.view))
    player = _Player(world, meter, _rates(view, events))
    PlanRunner(world, signals=earlier)
    answers, stops = find_answers(events), find_stops(events)
    world.watchers.append(lambda recorded: player.answer(recorded, answers))
    seen = view
    for recorded in events:
        before, seen = seen, project(seen, recorded)
        delay_s = max(0.0, (recorded.at - begin).total_seconds())
        for stopped in stops.at(recorded.seq):  # before the event, so that it is not asked again
            world.agenda.after(delay_s, player.play(stopped))
        if recorded.id not in answers.ids and _is_from_outside(before, recorded):
            world.agenda.after(delay_s, player.play(recorded))
    world.agenda.run((events[-1].at - begin).total_seconds() + SETTLE_S)
    return msgspec.structs.replace(meter.result(), faults=tuple(world.faults.values()))


class _Player:
    """Has recorded things happen again."""

    def __init__(self, world: World, meter: Meter, rates: dict[NodeId, float]) -> None:
        self._world = world
        self._meter = meter
        self._rates = rates
        self._fleet = Fleet(world)
        for name, node in world.view.nodes.items():
            self._arrive(name, is_up=node.status is NodeStatus.UP)
        for operation in sorted(world.view.open_operations):
            machine = self._fleet.machines.get(world.view.operations[operation].node)
            if machine is not None:
                machine.resume(operation)

    def _arrive(self, name: NodeId, *, is_up: bool) -> Machine:
        machine = self._fleet.machines.setdefault(name, Machine(self._world, name))
        machine.is_up = is_up
        self._world.network.set_rate(name, self._rates.get(name, self._rates.get(NodeId(""), 0.0)))
        return machine

    def play(self, recorded: Recorded) -> Action:
        """What happens again, when its time has come."""

        def happen() -> None:
            event = recorded.event
            if isinstance(event, e.OperationIssued):
                self._need(event)
                return
            if not self._may_follow(recorded):
                return
            match event:
                case e.NodeJoined(node=node):
                    self._arrive(node, is_up=True)
                case e.NodeLeft(node=node) | e.NodeLost(node=node):
                    self._fleet.machines[node].is_up = False
                    self._world.network.drop(node)
            assert not isinstance(event, e.UnknownEvent)
            self._world.append(event, actor=recorded.actor, id=recorded.id)

        return happen

    def answer(self, recorded: Recorded, answers: Answers) -> None:
        """An engine that was asked answers as it did."""
        for delay_s, answer in answers.to(recorded):
            self._world.agenda.after(delay_s, self.play(answer))

    def _need(self, event: e.OperationIssued) -> None:
        machine = self._fleet.machines.get(event.node)
        if machine is None or not machine.is_up:
            return
        if machine.read(event.work.artifact):
            self._meter.hit()

    def _may_follow(self, recorded: Recorded) -> bool:
        event = recorded.event
        if isinstance(event, e.UnknownEvent):
            return False
        view = self._world.view
        if isinstance(event, e.ReplicaReady) and is_ready(
            view, event.artifact, event.node, event.tier
        ):
            return False
        trial = project(view, msgspec.structs.replace(recorded, seq=Seq(view.at + 1)))
        return trial.skipped == view.skipped


def _is_from_outside(view: ClusterView, recorded: Recorded) -> bool:
    """Whether something did not follow from a policy's decision. `view` is that before it."""
    if recorded.actor.startswith((PREFIX, "controlplane:")) or is_plan_id(recorded.actor):
        return False
    match recorded.event:
        case e.OperationIssued(policy=policy):
            return policy == DEMAND
        case (
            e.OperationStarted()
            | e.OperationSucceeded()
            | e.OperationFailed()
            | e.OperationRetried()
            | e.OperationRerouted()
            | e.OperationCancelled()
            | e.ReplicaStarted()
            | e.ReplicaFilled()
            | e.ReplicaEvicting()
            | e.ReplicaGone()
            | e.NodePressured()
            | e.NodeRelieved()
            | e.UnknownEvent()
        ):
            return False
        case e.ReplicaReady(artifact=artifact, node=node, tier=tier):
            made = is_making(view, artifact, node, tier) or any(
                target_tier(view.operations[name].work) is tier
                for name in view.open_by_node.get(node, ())
                if view.operations[name].work.artifact == artifact
            )
            return not made
        case _:
            return True


def _rates(view: ClusterView, events: Sequence[Recorded]) -> dict[NodeId, float]:
    """How fast each node pulled in the recorded time, in bytes a second: the median of its pulls;
    "" stands for all. Without any pull it is not known."""
    started: dict[str, datetime] = {}
    found: dict[NodeId, list[float]] = {}
    for recorded in events:
        view = project(view, recorded)
        match recorded.event:
            case e.OperationStarted(operation=name):
                started[name] = recorded.at
            case e.OperationSucceeded(operation=name, bytes_moved=moved) if moved:
                operation = view.operations[name]
                if name in started and isinstance(operation.work, Materialize):
                    took_s = max(1e-4, (recorded.at - started[name]).total_seconds())
                    found.setdefault(operation.node, []).append(moved / took_s)
                    found.setdefault(NodeId(""), []).append(moved / took_s)
    return {node: statistics.median(rates) for node, rates in found.items()}


# ---- all of it ---------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened, the same simulated with the policies that ran, and with the others:
    the second says how far the simulation can be believed."""

    review: Review
    recorded: Measures
    as_it_was: Measures
    instead: Measures


def compare(
    view: ClusterView,
    events: Sequence[Recorded],
    before: Catalog,
    instead: Catalog,
    *,
    earlier: Sequence[Signal] = (),
) -> Comparison:
    """Reviews the log with `before`, the policies that ran, and reruns it with both; `earlier` are
    the signals before it."""
    return Comparison(
        review=review(view, events, before, earlier=earlier),
        recorded=measure(view, events),
        as_it_was=rerun(view, events, before, earlier=earlier),
        instead=rerun(view, events, instead, earlier=earlier),
    )
