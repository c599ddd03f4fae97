"""A whole view in the words of the API, or the part of it that concerns one thing. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tensorcast.controlplane.core.names import (
    resolve_artifact,
    resolve_engine,
    resolve_node,
    resolve_operation,
)
from tensorcast.controlplane.core.view import LIVE, replicas_of, replicas_on
from tensorcast.controlplane.services.api_answers import (
    describe_artifact,
    describe_engine,
    describe_key,
    describe_node,
    describe_operation,
)
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.api import ReplayInfo
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import ArtifactId, EngineId, Key, NodeId, OperationId

KINDS = ("artifact", "node", "operation", "engine")


class _Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The names of what is shown."""

    artifacts: Collection[ArtifactId]
    keys: Collection[Key]
    nodes: Collection[NodeId]
    operations: Collection[OperationId]
    engines: Collection[EngineId] = ()


def summarize(view: ClusterView, *, kind: str | None, what: str | None) -> ReplayInfo:
    """The view, each part by name; with `kind` (artifact, node, operation or engine) and `what`
    only what concerns that one. Raises InvalidArgument, and NotFound when it was not there."""
    chosen = _select(view, kind, what)
    return ReplayInfo(
        at_seq=view.at,
        artifacts=tuple(
            describe_artifact(view, view.artifacts[a]) for a in sorted(chosen.artifacts)
        ),
        keys=tuple(describe_key(view.keys[key]) for key in sorted(chosen.keys)),
        nodes=tuple(describe_node(view, view.nodes[node]) for node in sorted(chosen.nodes)),
        operations=tuple(
            describe_operation(view, view.operations[op]) for op in sorted(chosen.operations)
        ),
        engines=tuple(describe_engine(view.engines[name]) for name in sorted(chosen.engines)),
    )


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
        )
    if kind == "artifact":
        return _about_artifact(view, resolve_artifact(view, what))
    if kind == "node":
        return _about_node(view, resolve_node(view, what))
    if kind == "engine":
        return _about_engine(view, resolve_engine(view, what).id)
    return _about_operation(view, resolve_operation(view, what))


def _about_artifact(view: ClusterView, artifact: ArtifactId) -> _Selection:
    holders = {r.node for r in replicas_of(view, artifact) if r.status in LIVE}
    return _Selection(
        artifacts=[artifact],
        keys=view.keys_by_artifact.get(artifact, ()),
        nodes=[node for node in holders if node in view.nodes],
        operations=view.operations_by_artifact.get(artifact, ()),
    )


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


def _about_engine(view: ClusterView, engine: EngineId) -> _Selection:
    artifact, node = view.engines[engine].artifact, view.engines[engine].node
    return _Selection(
        artifacts=[artifact] if artifact and artifact in view.artifacts else [],
        keys=view.keys_by_artifact.get(artifact, ()) if artifact else (),
        nodes=[node] if node and node in view.nodes else [],
        operations=[],
        engines=[engine],
    )
