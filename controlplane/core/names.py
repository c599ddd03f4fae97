"""What people type, and what it stands for: a key, an id, or the beginning of an id."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tensorcast.schema.aggregates.engine import Engine, EngineStatus
from tensorcast.schema.aggregates.key import KeyState, KeyStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import (
    PLAN_PREFIX,
    ArtifactId,
    EngineId,
    Key,
    NodeId,
    OperationId,
    PlanId,
    is_artifact_id,
    parse_node,
)

PREFIX_MIN = 6
_OPERATION = "op-"
_PLAN = PLAN_PREFIX
_CANDIDATES_SHOWN_MAX = 5


def find_key(view: ClusterView, text: str) -> KeyState | None:
    """The key of this name, if it points to something now."""
    found = view.keys.get(Key(text))
    return found if found and found.status is KeyStatus.SET else None


def resolve_artifact(view: ClusterView, text: str) -> ArtifactId:
    """The artifact that a key, an id or the unambiguous beginning of an id stands for; the key is
    tried first, but a full id is never a key. Raises NotFound or InvalidArgument."""
    key = None if is_artifact_id(text) else find_key(view, text)
    if key is not None:
        return key.artifact
    if ArtifactId(text) in view.artifacts:
        return ArtifactId(text)
    found = _by_prefix(view.artifacts, text, text)
    if found is None:
        raise NotFound(
            f"There is no key and no artifact {text!r}.",
            hint="`tcctl key ls` and `tcctl artifact ls` show what there is.",
            artifact=text,
        )
    return ArtifactId(found)


def resolve_operation(view: ClusterView, text: str) -> OperationId:
    """The operation of this id or beginning of an id, with or without `op-`. Raises NotFound or
    InvalidArgument."""
    if OperationId(text) in view.operations:
        return OperationId(text)
    digits = text.removeprefix(_OPERATION)
    found = _by_prefix(view.operations, _OPERATION + digits, digits)
    if found is None:
        raise NotFound(
            f"There is no operation {text!r}.",
            hint=(
                "`tcctl op ls` shows what there is."
                if len(digits) >= PREFIX_MIN
                else f"Give {PREFIX_MIN} characters or more of its id after {_OPERATION!r}."
            ),
            operation=text,
        )
    return OperationId(found)


def resolve_plan(view: ClusterView, text: str) -> PlanId:
    """The plan of this id or beginning of an id, with or without `plan-`; or the one last submitted
    under this name. Raises NotFound or InvalidArgument."""
    if PlanId(text) in view.plans:
        return PlanId(text)
    named = [plan for plan in view.plans.values() if plan.spec.name == text]
    if named:
        return max(named, key=lambda plan: plan.submitted_seq).id
    digits = text.removeprefix(_PLAN)
    found = _by_prefix(view.plans, _PLAN + digits, digits)
    if found is None:
        raise NotFound(f"There is no plan {text!r}.", hint="`tcctl plan ls` shows what there is.")
    return PlanId(found)


def resolve_node(view: ClusterView, text: str) -> NodeId:
    """The node of this name. Raises NotFound or InvalidArgument."""
    node = parse_node(text)
    if node not in view.nodes:
        raise NotFound(
            f"There is no node {text!r}.", hint="`tcctl node ls` shows what there is.", node=text
        )
    return node


def resolve_engine(view: ClusterView, text: str) -> Engine:
    """The engine of this name, or that of this address: the one that runs, else the last that did.
    Raises NotFound."""
    found = view.engines.get(EngineId(text))
    if found is not None:
        return found
    url = text.rstrip("/")
    there = [one for one in view.engines.values() if one.url and one.url.rstrip("/") == url]
    if not there:
        raise NotFound(
            f"There is no engine {text!r}.",
            hint="`tcctl engine ls --all` shows what there was.",
        )
    return max(there, key=lambda one: (one.status is EngineStatus.UP, one.version))


def _by_prefix(ids: Iterable[str], prefix: str, typed: str) -> str | None:
    """The one id that begins so; None when there is none. Raises InvalidArgument for several."""
    if len(typed) < PREFIX_MIN:
        return None
    found = list(islice((name for name in ids if name.startswith(prefix)), 1000))
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:_CANDIDATES_SHOWN_MAX])
        more = ", ..." if len(found) > _CANDIDATES_SHOWN_MAX else ""
        raise InvalidArgument(
            f"{typed!r} may be any of {shown}{more}.", hint="Give more characters of the id."
        )
    return found[0] if found else None
