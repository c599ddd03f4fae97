"""What each user may ask, as the rules of namespaces say; and verb `access.list`, the rules.

What is refused is refused before anything is decided. Lists leave out what a user may not read. The
trail (`audit.*`, `replay`, `moment`, `diff`, operations) is for all of the cluster, as it names
things and never shows what is in them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tensorcast.controlplane.core.names import find_key, resolve_artifact
from tensorcast.controlplane.core.rights import check_command
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.schema.access import user_of
from tensorcast.schema.api import ArtifactInfo, Browse, Execute, KeyInfo, Show
from tensorcast.schema.api_access import AccessInfo
from tensorcast.schema.api_plans import ForecastInfo, PlanInfo
from tensorcast.schema.api_store import ArchivesQuery, StartJob
from tensorcast.schema.authorization import (
    check_artifact,
    check_key,
    may,
    may_any,
)
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound, PermissionDenied
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.namespaces import Right, namespace_of

READS: Final = ("artifact.show", "artifact.tensors", "artifact.lineage", "key.show")
"""Verbs that show one thing, as a `Show` asks."""


async def list_access(desk: Desk, request: Browse) -> tuple[AccessInfo, ...]:
    """The rules of all namespaces that have some, by name and user."""
    view = await desk.view_for(request)
    return tuple(
        AccessInfo(namespace=state.id, who=who, rights=rights, changed_at=state.changed_at)
        for _, state in sorted(view.namespaces.items())
        for who, rights in sorted(state.rules.items())
    )


async def authorize(desk: Desk, verb: str, request: msgspec.Struct, user: str) -> None:
    """Raises PermissionDenied for what a user ("": not known, or the operator) may not ask."""
    if not user:
        return
    if isinstance(request, StartJob | ArchivesQuery) and request.folder is not None:
        raise PermissionDenied(
            "Only the operator of the cluster may say where archives are.",
            hint="Ask with TENSORCAST_NATS_URL=nats://USER:PASSWORD@HOST:PORT of the operator:"
            " `nats` in cluster.json of its home. Without a folder archives go where"
            " TENSORCAST_ARCHIVE_DIR of the control plane says.",
        )
    if isinstance(request, Execute):
        for command in (request.command, *request.further):
            check_command(desk.follower.view, user, command)
    elif isinstance(request, Show) and verb in READS and desk.follower.view.namespaces:
        _check_show(await desk.view_after(request.after), user, request.what)


def readable(desk: Desk, answer: object, user: str) -> object:
    """The answer without the artifacts, keys and plans of a list that a user may not read. Raises
    PermissionDenied for a plan, or a dry run of what a user may not read."""
    view = desk.follower.view
    if not user or not view.namespaces:
        return answer
    if isinstance(answer, PlanInfo) and not _is_readable(view, answer, user):
        check_key(view, user, Key(answer.name), Right.READ)
    if isinstance(answer, ForecastInfo):
        for artifact in {ArtifactId(one.artifact) for one in answer.steps if one.artifact}:
            check_artifact(view, user, artifact, Right.READ)
    if not isinstance(answer, tuple):
        return answer
    return tuple(one for one in answer if _is_readable(view, one, user))


def _is_readable(view: ClusterView, one: object, user: str) -> bool:
    match one:
        case ArtifactInfo():
            return may_any(view, user, one.id, Right.READ)
        case PlanInfo():
            is_own = user_of(one.actor) == user
            return is_own or may(view, user, namespace_of(Key(one.name)), Right.READ)
        case KeyInfo():
            return may(view, user, namespace_of(one.key), Right.READ)
        case _:
            return True


def _check_show(view: ClusterView, user: str, what: str) -> None:
    if find_key(view, what) is not None:
        check_key(view, user, Key(what), Right.READ)
        return
    try:
        artifact = resolve_artifact(view, what)
    except (NotFound, InvalidArgument):
        return  # whoever answers says it
    check_artifact(view, user, artifact, Right.READ)
