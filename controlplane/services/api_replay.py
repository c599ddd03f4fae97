"""A whole view in the words of the API, or the part of it that concerns one thing. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import Protocol, TypeVar

import msgspec

from tensorcast.controlplane.core.names import (
    find_key,
    resolve_artifact,
    resolve_engine,
    resolve_node,
    resolve_operation,
    resolve_plan,
)
from tensorcast.controlplane.core.view import replicas_of, replicas_on
from tensorcast.controlplane.services.api_answers import (
    describe_artifact,
    describe_engine,
    describe_key,
    describe_node,
    describe_operation,
)
from tensorcast.controlplane.services.api_plan_answers import describe_plan, summarize_plan
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.api import LIST_MAX, ReplayInfo
from tensorcast.schema.cluster import LIVE, ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, EngineId, Key, NodeId, OperationId, PlanId, Seq

K = TypeVar("K", bound=str)
KINDS = ("artifact", "key", "node", "operation", "engine", "plan")


class _Versioned(Protocol):
    @property
    def version(self) -> Seq: ...


class _Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The names of what is shown."""

    artifacts: Collection[ArtifactId]
    keys: Collection[Key]
    nodes: Collection[NodeId]
    operations: Collection[OperationId]
    engines: Collection[EngineId] = ()
    plans: Collection[PlanId] = ()


def summarize(
    view: ClusterView, *, kind: str | None, what: str | None, limit: int = LIST_MAX
) -> ReplayInfo:
    """The view, each part by name; with `kind` (artifact, key, node, operation or engine) and
    `what` only what concerns that one. Of more than `limit` things of a kind those that changed
    last. Raises InvalidArgument, and NotFound when it was not there."""
    if limit < 1:
        raise InvalidArgument(f"A limit of {limit} makes no sense.", hint="Ask for 1 or more.")
    chosen = _select(view, kind, what)
    limit = min(limit, LIST_MAX)
    tell = describe_plan if kind == "plan" else summarize_plan
    artifacts = _newest(view.artifacts, chosen.artifacts, limit)
    operations = _newest(view.operations, chosen.operations, limit)
    return ReplayInfo(
        at_seq=view.at,
        artifacts=tuple(describe_artifact(view, view.artifacts[a]) for a in artifacts),
        keys=tuple(describe_key(view.keys[k]) for k in _newest(view.keys, chosen.keys, limit)),
        nodes=tuple(
            describe_node(view, view.nodes[n]) for n in _newest(view.nodes, chosen.nodes, limit)
        ),
        operations=tuple(describe_operation(view, view.operations[op]) for op in operations),
        engines=tuple(
            describe_engine(view.engines[e]) for e in _newest(view.engines, chosen.engines, limit)
        ),
        plans=tuple(tell(view.plans[p]) for p in _newest(view.plans, chosen.plans, limit)),
        totals={name: len(getattr(chosen, name)) for name in _Selection.__struct_fields__},
    )


def _newest(states: Mapping[K, _Versioned], names: Collection[K], limit: int) -> list[K]:
    """The names of the `limit` things that changed last, by name."""
    if len(names) > limit:
        names = heapq.nlargest(limit, names, key=lambda name: states[name].version)
    return sorted(names)


def _select(view: ClusterView, kind: str | None, what: str | None) -> _Selection:
    if (kind is None) != (what is None) or (kind is not None and kind not in KINDS):
        raise InvalidArgument(
            "A part of a replay is named by its kind and its name.",
            hint=f"The kinds are {', '.join(KINDS)}.",
        )
    if what is None:
        return _Selection(
            artifacts=view.artifacts.keys(),
            keys=[key for key in view.keys if view.keys[key].status is KeyStatus.SET],
            nodes=view.nodes.keys(),
            operations=view.operations.keys(),
            engines=view.engines.keys(),
            plans=view.plans.keys(),
        )
    if kind == "artifact":
        return _about_artifact(view, resolve_artifact(view, what))
    if kind == "node":
        return _about_node(view, resolve_node(view, what))
    if kind == "key":
        return _about_key(view, what)
    if kind == "engine":
        return _about_engine(view, resolve_engine(view, what).id)
    if kind == "plan":
        return _about_plan(view, resolve_plan(view, what))
    return _about_operation(view, resolve_operation(view, what))


def _about_artifact(view: ClusterView, artifact: ArtifactId) -> _Selection:
    holders = {r.node for r in replicas_of(view, artifact) if r.status in LIVE}
    return _Selection(
        artifacts=[artifact],
        keys=view.keys_by_artifact.get(artifact, ()),
        nodes=[node for node in holders if node in view.nodes],
        operations=view.operations_by_artifact.get(artifact, ()),
    )


def _about_key(view: ClusterView, what: str) -> _Selection:
    key = find_key(view, what)
    if key is None:
        raise NotFound(
            f"There was no key {what!r}.", hint=f"`tcctl key show {what}` tells where it pointed."
        )
    return _Selection(artifacts=[key.artifact], keys=[key.key], nodes=(), operations=())


def _about_node(view: ClusterView, node: NodeId) -> _Selection:
    held = {r.artifact for r in replicas_on(view, node) if r.status in LIVE}
    artifacts = [artifact for artifact in held if artifact in view.artifacts]
    return _Selection(
        artifacts=artifacts,
        keys=[key for a in artifacts for key in view.keys_by_artifact.get(a, ())],
        nodes=[node],
        operations=[op for op in view.operations if view.operations[op].node == node],
        engines=[name for name in view.engines if view.engines[name].node == node],
    )


def _about_operation(view: ClusterView, operation: OperationId) -> _Selection:
    found = view.operations[operation]
    artifact = found.work.artifact
    return _Selection(
        artifacts=[artifact] if artifact in view.artifacts else [],
        keys=view.keys_by_artifact.get(artifact, ()),
        nodes=[found.node] if found.node in view.nodes else [],
        operations=[operation],
    )


def _about_plan(view: ClusterView, plan: PlanId) -> _Selection:
    """The plan, and the operations that it issued or waited for."""
    steps = view.plans[plan].steps.values()
    named = {OperationId(name) for step in steps for name in step.operations}
    operations = [name for name in sorted(named) if name in view.operations]
    artifacts = {view.operations[name].work.artifact for name in operations}
    nodes = {view.operations[name].node for name in operations}
    return _Selection(
        artifacts=[artifact for artifact in sorted(artifacts) if artifact in view.artifacts],
        keys=[key for a in sorted(artifacts) for key in view.keys_by_artifact.get(a, ())],
        nodes=[node for node in sorted(nodes) if node in view.nodes],
        operations=operations,
        plans=[plan],
    )


def _about_engine(view: ClusterView, engine: EngineId) -> _Selection:
    artifact, node = view.engines[engine].artifact, view.engines[engine].node
    return _Selection(
        artifacts=[artifact] if artifact and artifact in view.artifacts else [],
        keys=view.keys_by_artifact.get(artifact, ()) if artifact else (),
        nodes=[node] if node and node in view.nodes else [],
        operations=[],
        engines=[engine],
    )
