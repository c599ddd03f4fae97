"""Whether what a step waits for has come. Pure.

Signals are not kept in the view: whoever looks at a plan hands in those that `is_wanted` picks from
the log after the position that `listening` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tensorcast.controlplane.core.names import find_key
from tensorcast.controlplane.core.plans.outcomes import Broken, Done
from tensorcast.controlplane.core.plans.scopes import Scope, open_scopes, root_scope
from tensorcast.controlplane.core.plans.soaking import look_at_soak
from tensorcast.controlplane.core.view import ready_replicas
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.aggregates.plan import ACTIVE, Plan, StepState, StepStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, TensorCastError
from tensorcast.schema.faults import Fault, FaultKind, from_error
from tensorcast.schema.ids import EngineId, Seq
from tensorcast.schema.plain import is_same
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_values import ValueType, check_value
from tensorcast.schema.plans import (
    Barrier,
    CallStep,
    SoakStep,
    WaitEngines,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import Pattern, Signal, Topic

Wait = WaitSignal | WaitKey | WaitReplicas | WaitEngines | WaitTime | SoakStep | Barrier | CallStep
Ears = WaitSignal | CallStep | SoakStep
"""Steps that listen for signals."""
Heard = Mapping[StepPath, Sequence[Signal]]
HEARD_MAX: Final = 10_000


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """A step that listens for signals after a position; `enough` of those that it wants will
    do."""

    path: StepPath
    step: Ears
    state: StepState
    call: str
    pattern: Pattern
    after: Seq
    enough: int


# ---- signals -----------------------------------------------------------------------------------


def call_topic(engine: str) -> Topic:
    """Where an engine is asked."""
    return Topic(f"engine.call.{engine}")


def answer_topic(engine: str) -> Topic:
    """Where it answers."""
    return Topic(f"engine.answer.{engine}")


def call_id(plan: Plan, path: StepPath, attempt: int) -> str:
    """What an answer must name: the try that it is for."""
    return f"{plan.id}/{path}#{attempt}"


def listening(plan: Plan) -> Iterator[Listening]:
    """The steps of a plan that listen now."""
    for scope in open_scopes(root_scope(plan)):
        for step, state in scope.states():
            is_deaf = isinstance(step, SoakStep) and not step.topic
            if state.status is StepStatus.RUNNING and isinstance(step, Ears) and not is_deaf:
                yield _listen(plan, scope.path(step), step, state)


def _listen(plan: Plan, path: StepPath, step: Ears, state: StepState) -> Listening:
    if isinstance(step, CallStep):
        pattern, after, enough = answer_topic(str(state.inputs["engine"])), state.version, 1
    elif isinstance(step, SoakStep):
        pattern, after, enough = Topic(str(state.inputs["topic"])), _since(state), HEARD_MAX
    else:
        pattern = Topic(str(state.inputs["topic"]))
        after = plan.submitted_seq if step.since == "plan" else state.started_seq
        enough = HEARD_MAX if step.distinct else _number(state.inputs["count"])
    return Listening(
        path=path,
        step=step,
        state=state,
        call=call_id(plan, path, state.attempt),
        pattern=Pattern(pattern),
        after=after,
        enough=enough,
    )


def _since(state: StepState) -> Seq:
    known = state.inputs.get("since")
    return Seq(known) if isinstance(known, int) else state.started_seq


def is_wanted(one: Listening, signal: Signal) -> bool:
    """Whether a signal of the pattern says what the step waits for."""
    if isinstance(one.step, CallStep):
        return signal.data.get("call") == one.call
    where = one.state.inputs.get("where")
    if not isinstance(where, Mapping):
        return True
    data = signal.data
    return all(name in data and is_same(data[name], value) for name, value in where.items())


def _signal(step: WaitSignal, state: StepState, heard: Sequence[Signal]) -> Done | None:
    counted = _distinct(step.distinct, heard)
    count = _number(state.inputs["count"])
    if len(counted) < count:
        return None
    last = counted[count - 1]
    outputs: dict[str, object] = {
        "topic": last.topic,
        "data": last.data,
        "seq": last.seq,
        "actor": last.actor,
        "all": [signal.data for signal in counted[:count]],
    }
    return Done(outputs, last.seq)


def _distinct(field: str, heard: Sequence[Signal]) -> Sequence[Signal]:
    """The first of each that say the same in the field; those that do not say it do not count."""
    if not field:
        return heard
    found: dict[bytes, Signal] = {}
    for signal in heard:
        said = signal.topic if field == "topic" else signal.data.get(field)
        if said is not None:
            found.setdefault(msgspec.json.encode(said, order="deterministic"), signal)
    return tuple(found.values())


def _answer(
    view: ClusterView, step: CallStep, state: StepState, heard: Sequence[Signal]
) -> Done | Broken | None:
    if not heard:
        engine = view.engines.get(EngineId(str(state.inputs["engine"])))
        if engine is not None and engine.status is not EngineStatus.UP:
            detail = f"Engine {engine.id} is {engine.status}."
            return Broken(Fault(kind=FaultKind.UNAVAILABLE, detail=detail), engine.version)
        return None
    answer = heard[0]
    fault = answer.data.get("fault")
    if fault is not None:
        return Broken(_told(fault), answer.seq)
    given = answer.data.get("outputs", {})
    try:
        outputs = check_value(given, ValueType.MAPPING, "The answer")
        assert isinstance(outputs, Mapping)
        return Done(
            {
                name: check_value(outputs.get(name), wanted, f"Output {name!r} of the answer")
                for name, wanted in step.returns.items()
            },
            answer.seq,
        )
    except InvalidArgument as error:
        return Broken(from_error(error), answer.seq)


def _told(fault: object) -> Fault:
    """The fault that an engine tells, whatever it has written."""
    try:
        return msgspec.convert(fault, Fault)
    except msgspec.ValidationError:
        return Fault(kind=FaultKind.INVALID, detail=str(fault)[:1000])


# ---- states ------------------------------------------------------------------------------------


def look(
    view: ClusterView, scope: Scope, step: Wait, state: StepState, now: datetime, heard: Heard
) -> Done | Broken | None:
    """What has come of a step that waits; None: it waits on."""
    match step:
        case WaitSignal():
            return _signal(step, state, heard.get(scope.path(step), ()))
        case CallStep():
            return _answer(view, step, state, heard.get(scope.path(step), ()))
        case WaitKey():
            return _key(view, step, state)
        case WaitReplicas():
            return _replicas(view, step, state)
        case WaitEngines():
            return _engines(view, step, state)
        case WaitTime():
            return Done({}) if now >= due_time(step, state) else None
        case SoakStep():
            is_over = now >= due_time(step, state)
            return look_at_soak(view, step, state, heard.get(scope.path(step), ()), is_over)
        case Barrier():
            return _barrier(scope, step)


def due_time(step: WaitTime | SoakStep, state: StepState) -> datetime:
    """When a wait for a time is over; `settle_s` later for engines that are watched."""
    if isinstance(step, WaitTime) and step.until is not None:
        return step.until
    times = (state.inputs.get("for_s"), state.inputs.get("settle_s"))
    return state.started_at + timedelta(seconds=sum(s for s in times if isinstance(s, int | float)))


def _key(view: ClusterView, step: WaitKey, state: StepState) -> Done | None:
    found = find_key(view, str(state.inputs["key"]))
    if found is None or (step.artifact and found.artifact != state.inputs["artifact"]):
        return None
    outputs: dict[str, object] = {
        "key": found.key,
        "artifact": found.artifact,
        "version": found.moves,
    }
    return Done(outputs, found.version)


def _replicas(view: ClusterView, step: WaitReplicas, state: StepState) -> Done | None:
    artifact = str(state.inputs["artifact"])
    chosen = _names(state.inputs["nodes"])
    found = [
        replica
        for replica in ready_replicas(view, artifact)  # type: ignore[arg-type]  # a recorded id
        if replica.tier is step.tier and (not chosen or replica.node in chosen)
    ]
    if len(found) < _number(state.inputs["count"]):
        return None
    outputs: dict[str, object] = {"artifact": artifact, "nodes": [one.node for one in found]}
    return Done(outputs, max((one.version for one in found), default=Seq(0)))


def _engines(view: ClusterView, step: WaitEngines, state: StepState) -> Done | None:
    chosen = _names(state.inputs["engines"])
    up = [view.engines[name] for name in sorted(view.engines_up)]
    asked = [engine for engine in up if not chosen or engine.id in chosen]
    found = [engine for engine in asked if engine.artifact == state.inputs["artifact"]]
    count = _number(state.inputs["count"])
    if len(found) < (count or max(1, len(chosen) or len(asked))):
        return None
    outputs: dict[str, object] = {
        "artifact": state.inputs["artifact"],
        "engines": [engine.id for engine in found],
    }
    return Done(outputs, max((engine.version for engine in found), default=Seq(0)))


def _barrier(scope: Scope, step: Barrier) -> Done | Broken | None:
    states = {name: scope.state(name) for name in dict.fromkeys(step.steps)}
    ended = {
        name: state
        for name, state in states.items()
        if state is not None and state.status not in ACTIVE
    }
    succeeded = [name for name, one in ended.items() if one.status is StepStatus.SUCCEEDED]
    count = step.count or len(states)
    because = max((state.version for state in ended.values()), default=Seq(0))
    if len(succeeded) >= count:
        return Done({"succeeded": list(succeeded)}, because)
    lost = len(ended) - len(succeeded)
    if len(states) - lost < count:
        detail = f"Only {len(states) - lost} of {len(states)} steps can succeed; {count} must."
        return Broken(Fault(kind=FaultKind.UNAVAILABLE, detail=detail, permanent=True), because)
    return None


def _names(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 1


def as_fault(error: TensorCastError) -> Fault:
    """What a step fails with that cannot begin: trying again cannot help."""
    return msgspec.structs.replace(from_error(error), permanent=True)
