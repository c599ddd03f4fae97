"""Whether a user may do something with a key or an artifact, as the rules of its namespace say.

An artifact is in the namespace of the key that it was first put with, and in those of the keys that
point to it now; without any it is in `default`. Who may read one of these may read it. `user` is
who was authenticated; "" (a NATS server without users, or its operator) may do everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.namespaces import DEFAULT, Namespace, Right, is_allowed, namespace_of

_DOES: Final = {
    Right.READ: "read",
    Right.WRITE: "write to",
    Right.KEYS: "move keys of",
    Right.PLANS: "run plans in",
    Right.GRANT: "change the rules of",
}


def namespaces_of(view: ClusterView, artifact: ArtifactId) -> frozenset[Namespace]:
    """The namespaces that an artifact is in; at least one."""
    found = {namespace_of(key) for key in view.keys_by_artifact.get(artifact, ())}
    known = view.artifacts.get(artifact)
    if known is not None and known.namespace:
        found.add(known.namespace)
    return frozenset(found or {DEFAULT})


def may(view: ClusterView, user: str, namespace: Namespace, right: Right) -> bool:
    """Whether the rules of a namespace allow it."""
    found = view.namespaces.get(namespace)
    return not user or found is None or is_allowed(found.rules, user, right)


def may_any(view: ClusterView, user: str, artifact: ArtifactId, right: Right) -> bool:
    """Whether the rules of one of an artifact's namespaces allow it."""
    if not view.namespaces or not user:
        return True
    return any(may(view, user, one, right) for one in namespaces_of(view, artifact))


def check_namespace(view: ClusterView, user: str, namespace: Namespace, right: Right) -> None:
    """Raises PermissionDenied."""
    if not may(view, user, namespace, right):
        raise _denied(user, (namespace,), right)


def check_key(view: ClusterView, user: str, key: Key, right: Right) -> None:
    """Raises PermissionDenied."""
    check_namespace(view, user, namespace_of(key), right)


def check_artifact(view: ClusterView, user: str, artifact: ArtifactId, right: Right) -> None:
    """Raises PermissionDenied unless one of its namespaces allows it."""
    if not may_any(view, user, artifact, right):
        raise _denied(user, namespaces_of(view, artifact), right, artifact)


def check_everywhere(view: ClusterView, user: str, artifact: ArtifactId, right: Right) -> None:
    """Raises PermissionDenied unless all of its namespaces allow it: what concerns all of them."""
    for one in sorted(namespaces_of(view, artifact)):
        check_namespace(view, user, one, right)


def _denied(
    user: str, namespaces: Iterable[Namespace], right: Right, artifact: ArtifactId | None = None
) -> PermissionDenied:
    name = min(namespaces)
    return PermissionDenied(
        f"User {user} may not {_DOES[right]} namespace {name!r}.",
        hint=f"Who may grant there allows it by `tcctl access grant {name} {user} {right}`.",
        artifact=artifact,
    )
