"""Keep last: of a name's versions the newest stay, the others go.

`policy@7` is version 7 of the name `policy`: a key with a number after its last `@`.

Reacts to KeyMoved of such a key: of all versions of its name the `versions` highest stay; the keys
of the others are removed, and so are their artifacts that no other key points to.
- EngineServing, LeaseReleased, LeaseExpired, ArtifactUnpinned: the versions of an artifact that
  was claimed or served until now are looked at again.

Never removes what is pinned or leased, what an engine that runs serves, or what another key names
(then neither the key).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import is_pinned, sealed
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RemoveArtifact, RemoveKey
from tensorcast.schema.engine_events import EngineLeft, EngineLost, EngineServing
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import ArtifactUnpinned, KeyMoved, LeaseExpired, LeaseReleased
from tensorcast.schema.ids import ArtifactId, Key, family_of


class KeepLastParameters(Parameters, frozen=True, kw_only=True):
    """How many `versions` stay of each name that matches one of `names` (`*`: any text)."""

    versions: Annotated[int, Meta(ge=1)] = 3
    names: tuple[str, ...] = ("*",)


class KeepLast(Configured[KeepLastParameters]):
    """Keeps the last K versions of each name (name@1, name@2, ...) and drops the others."""

    name = "keep-last"
    Parameters = KeepLastParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        names = dict.fromkeys(_names(view, recorded))
        return tuple(command for name in names for command in self._drop_old(view, name))

    def _drop_old(self, view: ClusterView, name: str) -> Iterator[Command]:
        if not any(fnmatchcase(name, pattern) for pattern in self.parameters.names):
            return
        numbered = sorted(
            (number, key)
            for key in view.keys_by_family.get(name, ())
            if (number := _number(key)) is not None
        )
        for _, key in numbered[: -self.parameters.versions]:
            artifact = view.keys[key].artifact
            if _may_go(view, artifact, name):
                yield RemoveKey(key=key, expect=artifact)
                if view.keys_by_artifact[artifact] == {key} and sealed(view, artifact):
                    yield RemoveArtifact(artifact=artifact)


def _names(view: ClusterView, recorded: Recorded) -> Iterable[str]:
    match recorded.event:
        case KeyMoved(key=key):
            return (family_of(key),) if _number(key) is not None else ()
        case LeaseReleased(lease=lease) | LeaseExpired(lease=lease):
            return _names_of(view, view.leases[lease].artifact)
        case ArtifactUnpinned(artifact=artifact):
            return _names_of(view, artifact)
        case EngineServing() | EngineLeft() | EngineLost() as event:
            served = view.engines[event.engine].weights
            return (family_of(Key(served)),) if _number(Key(served)) is not None else ()
        case _:
            return ()


def _names_of(view: ClusterView, artifact: ArtifactId) -> Iterator[str]:
    keys = sorted(view.keys_by_artifact.get(artifact, ()))
    return (family_of(key) for key in keys if _number(key) is not None)


def _number(key: Key) -> int | None:
    _, mark, number = key.rpartition("@")
    return int(number) if mark and number.isdecimal() and len(number) < 16 else None


def _may_go(view: ClusterView, artifact: ArtifactId, name: str) -> bool:
    keys = view.keys_by_artifact.get(artifact, frozenset[Key]())
    return (
        not is_pinned(view, artifact)
        and not view.leases_by_artifact.get(artifact)
        and not any(view.engines[engine].artifact == artifact for engine in view.engines_up)
        and all(view.keys[key].status is KeyStatus.SET for key in keys)
        and all(_number(key) is not None and family_of(key) == name for key in keys)
    )
