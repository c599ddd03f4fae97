"""What each kind of step takes and gives, by type, and which steps it has to wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, assert_never

import msgspec

from tensorcast.schema.plan_values import Reference, ValueType, references_in
from tensorcast.schema.plans import (
    Barrier,
    CallStep,
    CancelStep,
    ConditionStep,
    EmitStep,
    FindEngines,
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
    bodies_of,
)

T = ValueType
COLLECTED: Final = "collected"


class Field(NamedTuple):
    """A field of a step that may hold references, and what it wants."""

    name: str
    value: object
    type: ValueType


def takes(step: Step) -> tuple[Field, ...]:
    """The fields of a step that are given a value before it begins; not what `collect` gathers
    after its end."""
    match step:
        case OperationStep():
            return (
                Field("artifact", step.artifact, T.ARTIFACT),
                Field("node", step.node, T.NODE),
                Field("sources", step.sources, T.NODES),
            )
        case ReplicateStep():
            return (Field("artifact", step.artifact, T.ARTIFACT), Field("to", step.to, T.NODES))
        case EmitStep():
            return (Field("topic", step.topic, T.TEXT), Field("data", step.data, T.MAPPING))
        case CallStep():
            return (
                Field("engine", step.engine, T.ENGINE),
                Field("arguments", step.arguments, T.MAPPING),
            )
        case MoveKeyStep():
            return (
                Field("key", step.key, T.KEY),
                Field("artifact", step.artifact, T.ARTIFACT),
                Field("expect", step.expect, T.ARTIFACT),
            )
        case MoveKeysStep():
            return (Field("moves", msgspec.to_builtins(step.moves), T.LIST),)
        case FindEngines():
            unless = (Field("unless", step.unless, T.ARTIFACT),) if step.unless else ()
            return (Field("weights", step.weights, T.TEXT), *unless)
        case CancelStep():
            return (Field("operation", step.operation, T.OPERATION),) if step.operation else ()
        case Barrier():
            return ()
        case ConditionStep():
            return _of_question(step.test)
        case MapStep():
            return _of_map(step)
        case SubPlanStep():
            return _of_sub_plan(step)
        case _:
            return _of_wait(step)


def _of_wait(
    step: WaitSignal | WaitKey | WaitReplicas | WaitEngines | WaitTime | SoakStep,
) -> tuple[Field, ...]:
    match step:
        case WaitSignal():
            return (
                Field("topic", step.topic, T.TEXT),
                Field("where", step.where, T.MAPPING),
                Field("count", step.count, T.INTEGER),
            )
        case WaitKey():
            wanted = (Field("artifact", step.artifact, T.ARTIFACT),) if step.artifact else ()
            return (Field("key", step.key, T.KEY), *wanted)
        case WaitReplicas():
            return (
                Field("artifact", step.artifact, T.ARTIFACT),
                Field("count", step.count, T.INTEGER),
                Field("nodes", step.nodes, T.NODES),
            )
        case WaitEngines():
            return (
                Field("artifact", step.artifact, T.ARTIFACT),
                Field("engines", step.engines, T.ENGINES),
                Field("count", step.count, T.INTEGER),
            )
        case WaitTime():
            return (Field("for_s", step.for_s, T.NUMBER),) if step.for_s is not None else ()
        case SoakStep():
            served = (Field("artifact", step.artifact, T.ARTIFACT),) if step.artifact else ()
            return (
                Field("for_s", step.for_s, T.NUMBER),
                Field("engines", step.engines, T.ENGINES),
                *served,
                Field("topic", step.topic, T.TEXT),
                Field("where", step.where, T.MAPPING),
                Field("checks", msgspec.to_builtins(step.checks), T.LIST),
            )
        case _:
            assert_never(step)


def _of_question(question: Question) -> tuple[Field, ...]:
    match question.op:
        case "is_ready":
            left, right = T.ARTIFACT, T.NODE
        case "is_set":
            left, right = T.KEY, T.ANY
        case "in":
            left, right = T.ANY, T.LIST
        case _:
            left, right = T.ANY, T.ANY
    return (Field("left", question.left, left), Field("right", question.right, right))


def _of_map(step: MapStep) -> tuple[Field, ...]:
    if step.nodes:
        return (Field("nodes", step.nodes, T.NODES),)
    if step.artifacts:
        return (Field("artifacts", step.artifacts, T.LIST),)
    if step.shards is not None:
        return (Field("shards", step.shards, T.INTEGER),)
    return (Field("items", step.items, T.LIST),)


def _of_sub_plan(step: SubPlanStep) -> tuple[Field, ...]:
    wanted = step.plan.inputs
    return tuple(
        Field(f"input {name}", value, wanted[name].type if name in wanted else T.ANY)
        for name, value in step.inputs.items()
    )


def gives(step: Step) -> Mapping[str, ValueType]:
    """The outputs of a step by name. A step of any kind has them once it has succeeded."""
    match step:
        case OperationStep():
            return {
                "artifact": T.ARTIFACT,
                "node": T.NODE,
                "operation": T.OPERATION,
                "bytes_moved": T.INTEGER,
                "joined": T.BOOLEAN,
            }
        case ReplicateStep():
            return {
                "artifact": T.ARTIFACT,
                "nodes": T.NODES,
                "operations": T.LIST,
                "bytes_moved": T.INTEGER,
            }
        case WaitSignal():
            return {
                "topic": T.TEXT,
                "data": T.MAPPING,
                "seq": T.INTEGER,
                "actor": T.TEXT,
                "all": T.LIST,
            }
        case WaitKey():
            return {"key": T.KEY, "artifact": T.ARTIFACT, "version": T.INTEGER}
        case WaitReplicas():
            return {"artifact": T.ARTIFACT, "nodes": T.NODES}
        case WaitEngines():
            return {"artifact": T.ARTIFACT, "engines": T.ENGINES}
        case Barrier():
            return {"succeeded": T.LIST}
        case EmitStep():
            return {"topic": T.TEXT, "data": T.MAPPING}
        case CallStep():
            return step.returns
        case MoveKeyStep():
            return {"key": T.KEY, "artifact": T.ARTIFACT, "previous": T.ANY}
        case MoveKeysStep():
            return {"moves": T.LIST}
        case FindEngines():
            return {"engines": T.ENGINES, "nodes": T.NODES}
        case SoakStep():
            return {"signals": T.INTEGER}
        case ConditionStep():
            return {"met": T.BOOLEAN}
        case MapStep():
            return {"items": T.LIST, COLLECTED: T.LIST}
        case SubPlanStep():
            return dict.fromkeys(step.plan.outputs, T.ANY)
        case WaitTime() | CancelStep():
            return {}
        case _:
            assert_never(step)


def item_type(step: MapStep) -> ValueType:
    """What `${item}` is in the body of a map."""
    if step.nodes:
        return T.NODE
    if step.artifacts:
        return T.ARTIFACT
    return T.INTEGER if step.shards is not None else T.ANY


_BODIES: Final = frozenset({"then", "otherwise", "steps", "compensate", "plan"})


def own_references(step: Step) -> Iterator[Reference]:
    """The references in a step itself, not in its bodies. Raises InvalidArgument."""
    yield from references_in(own_values(step))


def own_values(step: Step) -> list[object]:
    """What is written in a step itself, not in its bodies."""
    return [
        _plain(getattr(step, name))
        for name in step.__struct_fields__
        if name not in _BODIES or (name == "steps" and isinstance(step, Barrier))
    ]


def _plain(value: object) -> object:
    """The value with what is written as mappings as such."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def free_references(step: Step) -> Iterator[Reference]:
    """The references in a step and in all its bodies, but for a plan within. Raises
    InvalidArgument."""
    yield from own_references(step)
    for body in bodies_of(step):
        for inner in body:
            yield from free_references(inner)


def needs_of(step: Step, beside: frozenset[str]) -> frozenset[str]:
    """The steps of its body (`beside`: their ids) that must have ended before it begins. Raises
    InvalidArgument."""
    taken = {reference.root for reference in free_references(step)} & beside
    return frozenset(step.depends_on) | (taken - {step.id})


def sources_of(step: Step, beside: frozenset[str]) -> frozenset[str]:
    """The steps of its body whose outputs it, or anything within it, takes. Raises
    InvalidArgument."""
    return frozenset({reference.root for reference in free_references(step)} & beside)
