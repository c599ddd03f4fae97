"""What of a plan this cluster cannot do, as far as its names say it beforehand. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorcast.controlplane.core.names import resolve_artifact
from tensorcast.controlplane.core.view import size_bytes
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, TensorCastError
from tensorcast.schema.ids import ArtifactId, NodeId, Tier, is_artifact_id
from tensorcast.schema.plan_types import takes
from tensorcast.schema.plan_values import INPUT, Reference, ValueType, dig, resolve
from tensorcast.schema.plans import (
    ALL,
    MoveKeysStep,
    MoveKeyStep,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    Step,
    WaitReplicas,
    bodies_of,
)

_BRINGS = ("fill", "materialize")


def check_placement(
    view: ClusterView, spec: PlanSpec, inputs: Mapping[str, object]
) -> tuple[str, ...]:
    """One sentence for each thing that is not possible now: nodes that are not there or take
    nothing, artifacts that nobody has, what is larger than any room. What only shows as the plan
    runs is left out; so is what is given by other steps."""
    values = {name: inputs.get(name, wanted.default) for name, wanted in spec.inputs.items()}
    made = {key for step in _steps(spec.steps) for key in _keys_made(step)}
    found: list[str] = []
    for step in _steps(spec.steps):
        found += _check_step(view, step, values, made)
    return tuple(dict.fromkeys(found))


def _steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        for body in bodies_of(step):
            yield from _steps(body)


def _keys_made(step: Step) -> tuple[str, ...]:
    match step:
        case MoveKeyStep():
            return (step.key,)
        case MoveKeysStep():
            return tuple(move.key for move in step.moves)
        case _:
            return ()


def _check_step(
    view: ClusterView, step: Step, values: Mapping[str, object], made: set[str]
) -> Iterator[str]:
    known: dict[str, object] = {}
    for name, value, wanted in takes(step):
        plain = known_value(value, values)
        if plain is None:
            continue
        known[name] = plain
        for node in _nodes(plain, wanted):
            yield from _check_node(view, step, node)
        if wanted is ValueType.ARTIFACT and not isinstance(step, MoveKeyStep):
            yield from _check_artifact(view, step, str(plain), made)
    if isinstance(step, OperationStep | ReplicateStep):
        yield from _check_room(view, step, known)
    elif isinstance(step, WaitReplicas):
        yield from _check_count(view, step, known.get("nodes") or ())


def known_value(value: object, values: Mapping[str, object]) -> object:
    """The value as far as it is known beforehand; None: not at all."""

    def lookup(reference: Reference) -> object:
        if reference.root != INPUT:
            raise InvalidArgument("It is not known yet.")
        return dig(values, reference, 0)

    try:
        return resolve(value, lookup)
    except InvalidArgument:
        return None


def _nodes(value: object, wanted: ValueType) -> list[str]:
    if wanted is ValueType.NODE:
        return [str(value)]
    if wanted is ValueType.NODES and isinstance(value, list | tuple):
        return [str(one) for one in value]
    return []


def _check_node(view: ClusterView, step: Step, name: str) -> Iterator[str]:
    node = view.nodes.get(NodeId(name))
    if node is None:
        yield f"Step {step.id}: there is no node {name!r}."
    elif node.status is not NodeStatus.UP:
        yield f"Step {step.id}: node {name} is not up."
    elif node.cordoned and (isinstance(step, ReplicateStep) or _brings(step)):
        yield f"Step {step.id}: node {name} takes no new replicas; it is cordoned."


def _brings(step: Step) -> bool:
    return isinstance(step, OperationStep) and step.work in _BRINGS


def _check_artifact(view: ClusterView, step: Step, name: str, made: set[str]) -> Iterator[str]:
    if name in made:
        return
    try:
        resolve_artifact(view, name)
    except TensorCastError as error:
        if not is_artifact_id(name) or "no key" in error.message:
            yield f"Step {step.id}: {error.message}"


def _check_room(
    view: ClusterView, step: OperationStep | ReplicateStep, known: Mapping[str, object]
) -> Iterator[str]:
    try:
        artifact = resolve_artifact(view, str(known.get("artifact", "")))
    except TensorCastError:
        return
    places = known.get("node", known.get("to", ()))
    names = [places] if isinstance(places, str) else places
    for name in names if isinstance(names, list | tuple) and places != ALL else ():
        yield from _check_capacity(view, step, artifact, NodeId(str(name)))


def _check_count(view: ClusterView, step: WaitReplicas, nodes: object) -> Iterator[str]:
    """A node holds one replica of an artifact in a tier."""
    if not isinstance(step.count, int) or (step.nodes and not nodes):
        return
    named = {str(one) for one in nodes} if isinstance(nodes, list | tuple) else set()
    able = [
        name
        for name, node in view.nodes.items()
        if step.tier is Tier.OBJECT or step.tier in node.tiers
        if not named or name in named
    ]
    if step.count > len(able):
        yield (
            f"Step {step.id}: waits for {step.count} replicas; there can be {len(able)},"
            f" one on each node with tier {step.tier}{' that it names' if named else ''}."
        )


def _check_capacity(
    view: ClusterView, step: OperationStep | ReplicateStep, artifact: ArtifactId, name: NodeId
) -> Iterator[str]:
    node = view.nodes.get(name)
    if node is None:
        return
    if step.tier not in node.tiers:
        yield f"Step {step.id}: node {name} has no tier {step.tier}."
        return
    makes = not isinstance(step, OperationStep) or step.work not in ("evict", "verify")
    tier = Tier.DRAM if isinstance(step, OperationStep) and step.work == "load" else step.tier
    size, capacity = size_bytes(view, artifact), node.tiers.get(tier, 0)
    if makes and size > capacity:
        yield (
            f"Step {step.id}: the artifact takes {size} bytes; tier {tier} of node {name} has"
            f" {capacity} in all."
        )
