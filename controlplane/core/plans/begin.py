"""What a step needs before it begins, and the commands with which it does. Pure.

References are resolved and their types checked first; then names are looked up: a step runs with
the artifact that a key pointed to when it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from tensorcast.controlplane.core.names import find_key, resolve_artifact, resolve_operation
from tensorcast.controlplane.core.plans.finding import find_engines
from tensorcast.controlplane.core.plans.scopes import Scope, active_below
from tensorcast.controlplane.core.plans.tasks import (
    Standing,
    inspect,
    issue_wanted,
    make_order,
    stop_operations,
)
from tensorcast.controlplane.core.plans.waits import call_id, call_topic
from tensorcast.controlplane.core.policies.topics import check_signal
from tensorcast.controlplane.core.view import accepts, is_ready
from tensorcast.schema.aggregates.operation import OPEN as OPEN_OPERATIONS
from tensorcast.schema.aggregates.plan import ACTIVE, Plan
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import CancelOperation, Command, EmitSignal, MoveKey
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    NodeId,
    Tier,
    parse_engine,
    parse_key,
    parse_node,
)
from tensorcast.schema.plain import has_order, is_same
from tensorcast.schema.plan_commands import StartStep, StopStep, SucceedStep
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_types import takes
from tensorcast.schema.plan_values import check_value, resolve
from tensorcast.schema.plans import (
    ALL,
    ITEMS_MAX,
    Barrier,
    CallStep,
    CancelStep,
    ConditionStep,
    EmitStep,
    FindEngines,
    KeyMove,
    MapStep,
    MoveKeysStep,
    MoveKeyStep,
    OperationStep,
    Question,
    ReplicateStep,
    SoakStep,
    Step,
    SubPlanStep,
    WaitEngines,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
)
from tensorcast.schema.signals import encode_data, parse_pattern, parse_topic

Values = dict[str, object]
LOST_LATE_S: Final = 2.0
"""An engine that has been silent for its whole time is on record as lost soon after."""


def begin(
    view: ClusterView, scope: Scope, step: Step, attempt: int, labels: Sequence[str]
) -> tuple[Command, ...]:
    """The commands with which try `attempt` of a step begins; what is done at once ends with it.
    Raises InvalidArgument, NotFound, Conflict when it cannot begin."""
    plan, path = scope.plan, scope.path(step)
    values = _values(scope, step)
    match step:
        case OperationStep() | ReplicateStep():
            return _operations(view, scope, step, attempt, values, labels)
        case EmitStep():
            topic, data = parse_topic(str(values["topic"])), _mapping(values["data"])
            encode_data(data)
            check_signal(view, topic, data)
            return (
                EmitSignal(topic=topic, data=data),
                _done(plan, path, attempt, {"topic": topic, "data": data}),
            )
        case CallStep():
            return _call(scope, step, attempt, values)
        case MoveKeyStep():
            move, moved = _move(view, msgspec.convert(values, KeyMove))
            return (move, _done(plan, path, attempt, moved))
        case MoveKeysStep():
            return _move_keys(view, scope, step, attempt, values)
        case FindEngines():
            return (_done(plan, path, attempt, find_engines(view, step, values)),)
        case CancelStep():
            return (*_cancel(view, scope, step, values), _done(plan, path, attempt, {}))
        case ConditionStep():
            values["met"] = _is_met(view, step.test, values)
        case MapStep():
            values = {"items": _items(view, step, values)}
        case SubPlanStep():
            values = _inputs(step, values)
        case _:
            values = _awaited(view, step, values)
            if isinstance(step, SoakStep) and (before := scope.state(step.since)) is not None:
                values["since"] = before.started_seq
    return (StartStep(plan=plan.id, step=path, attempt=attempt, inputs=values),)


def _values(scope: Scope, step: Step) -> Values:
    found: Values = {}
    for name, value, wanted in takes(step):
        given = resolve(value, scope.lookup)
        if given != ALL or not isinstance(value, str):
            check_value(given, wanted, f"{name!r}")
        found[name.removeprefix("input ")] = given
    return found


def _done(plan: Plan, path: StepPath, attempt: int, outputs: Values) -> SucceedStep:
    return SucceedStep(plan=plan.id, step=path, attempt=attempt, outputs=outputs)


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict), "its type is checked"
    return value


# ---- operations --------------------------------------------------------------------------------


def _operations(
    view: ClusterView,
    scope: Scope,
    step: OperationStep | ReplicateStep,
    attempt: int,
    values: Values,
    labels: Sequence[str],
) -> tuple[Command, ...]:
    plan, path = scope.plan, scope.path(step)
    values = {
        "artifact": resolve_artifact(view, str(values["artifact"])),
        "nodes": list(_targets(view, step, values)),
        **({"sources": values["sources"]} if values.get("sources") else {}),
    }
    order = make_order(plan.id, path, step, attempt, values)
    tasks = inspect(view, order)
    issued = issue_wanted(view, order, tasks, labels)
    joined = [task.operation for task in tasks if task.standing is Standing.RUNNING]
    start = StartStep(
        plan=plan.id,
        step=path,
        attempt=attempt,
        inputs=values,
        operations=(*filter(None, joined), *(command.operation for command in issued)),
    )
    return (*issued, start)


def _targets(
    view: ClusterView, step: OperationStep | ReplicateStep, values: Values
) -> tuple[NodeId, ...]:
    if isinstance(step, OperationStep):
        return (parse_node(str(values["node"])),)
    if values["to"] == ALL:
        nodes = _accepting(view, step.tier)
        if not nodes:
            raise InvalidArgument("No node accepts replicas now.")
        return nodes
    return tuple(dict.fromkeys(parse_node(str(node)) for node in _listed(values["to"])))


def _accepting(view: ClusterView, tier: Tier = Tier.DRAM) -> tuple[NodeId, ...]:
    return tuple(
        node
        for node in sorted(view.nodes)
        if accepts(view, node) and view.nodes[node].tiers.get(tier)
    )


def _listed(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return (value,)
    return value if isinstance(value, list | tuple) else ()


# ---- what is done at once ----------------------------------------------------------------------


def _call(scope: Scope, step: CallStep, attempt: int, values: Values) -> tuple[Command, ...]:
    plan, path = scope.plan, scope.path(step)
    engine = parse_engine(str(values["engine"]))
    data: Values = {
        "call": call_id(plan, path, attempt),
        "verb": step.verb,
        "arguments": values["arguments"],
    }
    encode_data(data)
    return (
        EmitSignal(topic=parse_topic(call_topic(engine)), data=data),
        StartStep(plan=plan.id, step=path, attempt=attempt, inputs=values),
    )


def _move_keys(
    view: ClusterView, scope: Scope, step: MoveKeysStep, attempt: int, values: Values
) -> tuple[Command, ...]:
    wanted = msgspec.convert(values["moves"], tuple[KeyMove, ...])
    pairs = [_move(view, one) for one in wanted]
    if len({move.key for move, _ in pairs}) < len(pairs):
        raise InvalidArgument("It moves a key twice.")
    outputs: Values = {"moves": [moved for _, moved in pairs]}
    done = _done(scope.plan, scope.path(step), attempt, outputs)
    return (*(move for move, _ in pairs), done)


def _move(view: ClusterView, wanted: KeyMove) -> tuple[MoveKey, Values]:
    """The command, and what it will have done. Raises InvalidArgument."""
    key = parse_key(wanted.key)
    artifact = resolve_artifact(view, wanted.artifact)
    known = find_key(view, key)
    present = known.artifact if known else None
    expect: ArtifactId | None = present
    if wanted.expect == "absent":
        expect = None
    elif wanted.expect != "any":
        expect = resolve_artifact(view, wanted.expect)
    if expect != present and present != artifact:
        raise InvalidArgument(
            f"Key {key!r} points to {present or 'nothing'}, not to {expect or 'nothing'}."
        )
    moved: Values = {"key": key, "artifact": artifact, "previous": present}
    return MoveKey(key=key, artifact=artifact, expect=present), moved


def _cancel(
    view: ClusterView, scope: Scope, step: CancelStep, values: Values
) -> tuple[Command, ...]:
    if step.operation:
        operation = resolve_operation(view, str(values["operation"]))
        if view.operations[operation].status not in OPEN_OPERATIONS:
            return ()
        reason = f"step {scope.path(step)} of {scope.plan.id}"
        return (CancelOperation(operation=operation, reason=reason),)
    state = scope.state(step.step)
    if state is not None and state.status not in ACTIVE:
        return ()
    return tuple(halt(view, scope.plan, scope.path(step.step), f"step {step.id} cancelled it"))


def halt(view: ClusterView, plan: Plan, path: str, reason: str) -> list[Command]:
    """Stops a step and all within it (path "": everything), with what they copy; the innermost
    first."""
    commands: list[Command] = []
    for name, state in active_below(plan, path):
        commands += stop_operations(view, plan, name, state)
        commands.append(StopStep(plan=plan.id, step=name, reason=reason))
    own = plan.steps.get(StepPath(path))
    if path and (own is None or own.status in ACTIVE):
        commands += stop_operations(view, plan, StepPath(path), own) if own else []
        commands.append(StopStep(plan=plan.id, step=StepPath(path), reason=reason))
    return commands


# ---- holders -----------------------------------------------------------------------------------


def _is_met(view: ClusterView, question: Question, values: Values) -> bool:
    left, right = values["left"], values["right"]
    match question.op:
        case "is_ready":
            artifact = resolve_artifact(view, str(left))
            return is_ready(view, artifact, parse_node(str(right)), Tier.DRAM)
        case "is_set":
            return find_key(view, str(left)) is not None
        case "eq":
            return is_same(left, right)
        case "ne":
            return not is_same(left, right)
        case "in":
            return any(is_same(left, one) for one in _listed(right))
        case "lt" | "le" | "gt" | "ge":
            return _compare(question.op, left, right)
        case _:
            assert_never(question.op)


def _compare(op: str, left: object, right: object) -> bool:
    if not has_order(left, right):
        raise InvalidArgument(f"{left!r} and {right!r} have no order: compare numbers, or texts.")
    less, same = left < right, left == right  # type: ignore[operator]  # both are of one kind
    return bool({"lt": less, "le": less or same, "gt": not (less or same), "ge": not less}[op])


def _items(view: ClusterView, step: MapStep, values: Values) -> list[object]:
    ((name, given),) = values.items()
    if name == "nodes":
        items: list[object] = list(
            _accepting(view) if given == ALL else map(parse_node, map(str, _listed(given)))
        )
    elif name == "shards":
        assert isinstance(given, int), "its type is checked"
        items = list(range(min(max(given, 0), ITEMS_MAX + 1)))
    else:
        items = list(_listed(given))
    if len(items) > ITEMS_MAX:
        raise InvalidArgument(f"A map goes over {ITEMS_MAX} items at most.")
    return items


def _inputs(step: SubPlanStep, values: Values) -> Values:
    wanted = step.plan.inputs
    return {name: values.get(name, one.default) for name, one in wanted.items()}


# ---- waits -------------------------------------------------------------------------------------


def _awaited(
    view: ClusterView,
    step: WaitSignal | WaitKey | WaitReplicas | WaitEngines | WaitTime | SoakStep | Barrier,
    values: Values,
) -> Values:
    """The values with whole ids."""
    match step:
        case WaitSignal():
            parse_pattern(str(values["topic"]))
        case WaitKey():
            parse_key(str(values["key"]))
        case WaitReplicas():
            nodes = _accepting(view, step.tier) if values["nodes"] == ALL else values["nodes"]
            values["nodes"] = list(_listed(nodes))
        case WaitEngines():
            engines: object = () if values["engines"] == ALL else values["engines"]
            values["engines"] = [EngineId(str(engine)) for engine in _listed(engines)]
        case SoakStep():
            engines = [EngineId(str(engine)) for engine in _listed(values["engines"])]
            values["engines"] = engines
            if found := [view.engines[name].ttl_s for name in engines if name in view.engines]:
                values["settle_s"] = max(found) + LOST_LATE_S
            if values["topic"]:
                parse_pattern(str(values["topic"]))
        case WaitTime() | Barrier():
            return values
        case _:
            assert_never(step)
    if "artifact" in values:
        values["artifact"] = resolve_artifact(view, str(values["artifact"]))
    return values
