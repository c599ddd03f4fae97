"""What applications ask about inference engines, and how a trainer gives them new weights; part of
`AsyncClient`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tensorcast.client.engine_verbs import Moment
from tensorcast.schema.api import EngineInfo, KeyInfo, ServedInfo
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId, parse_key

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.handles import AsyncArtifact
    from tensorcast.client.naming import What
    from tensorcast.client.session import Contents

VERSIONS_SKIPPED_MAX = 1000
SEPARATOR = "@"


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...

    async def put(
        self,
        contents: Contents,
        *,
        key: str | None = None,
        kind: str = "weights",
        labels: Mapping[str, str] | None = None,
        expect: What | None = None,
        wait: bool | None = None,
    ) -> AsyncArtifact: ...


class AsyncEngineCalls:
    """Engines and the versions of their weights."""

    async def engines(
        self: _Client, *, status: str | None = None, node: str | None = None
    ) -> tuple[EngineInfo, ...]:
        """The inference engines that run (or those of `status`: up, left, lost, all), the last
        changed first; those of one node."""
        return await self.api.engines(status=status, node=node)

    async def engine(self: _Client, engine: str) -> EngineInfo:
        """One engine, by its name or its address, with the weights that it served last. Raises
        NotFound."""
        return await self.api.engine(engine)

    async def weights_of(self: _Client, engine: str, *, at: Moment | None = None) -> ServedInfo:
        """Which weights an engine (its name or address) served at a time, a datetime or the seconds
        of `time.time()` (None: now): their version and artifact, and from when to when. So it tells
        which weights made a sample that ended at that time.

        The engine's clock counts. Raises NotFound when it served none then, or none that it told.
        """
        return await self.api.weights_of(engine, at=at)

    async def publish(
        self: _Client,
        name: str,
        contents: Contents,
        *,
        kind: str = "weights",
        labels: Mapping[str, str] | None = None,
        point: bool = True,
    ) -> str:
        """Puts the next version of the weights `name` and returns it: the key `name@3`, after
        `name@2`. Then the key `name` points to it too; without `point` it does not, until a
        `roll_out` has brought the version to the engines.

        Versions count from 1, and none that exists is given away. Both keys are set by
        compare-and-set: when somebody else publishes at the same time, one of the two gets Conflict
        (what it has put stays under its own version, if it got one). Raises as `put`.
        """
        version, artifact, before = await _publish(self, name, contents, kind, labels)
        if point and artifact != before:
            await _point(self, name, artifact, before)
        return version


async def _publish(
    client: _Client, name: str, contents: Contents, kind: str, labels: Mapping[str, str] | None
) -> tuple[str, ArtifactId, ArtifactId | None]:
    """The version, its artifact, and what the name points to."""
    if not isinstance(name, str) or SEPARATOR in name or any(map(str.isspace, name)):
        raise InvalidArgument(
            f"{name!r} cannot be published.", hint=f"Give a name without {SEPARATOR!r} and spaces."
        )
    parse_key(name)
    if not contents and not isinstance(contents, str):
        raise InvalidArgument(f"There is nothing in {name!r} to publish: it has no tensors.")
    before = await _find(client, name)
    version = await _next_version(client, name, before)
    artifact = await client.put(contents, key=version, kind=kind, labels=labels, wait=True)
    return version, artifact.id, before.artifact if before is not None else None


async def _point(
    client: _Client, name: str, artifact: ArtifactId, expect: ArtifactId | None
) -> None:
    try:
        await client.api.move_key(name, artifact, expect=expect)
    except Conflict as error:
        raise Conflict(
            f"Somebody else published {name!r} meanwhile.",
            hint=f"`tcctl key show {name}` shows who; publish again if yours shall be the newest.",
            artifact=artifact,
        ) from error


async def _next_version(client: _Client, name: str, before: KeyInfo | None) -> str:
    """The first version that no key has: beyond the newest one, and beyond the moves of the key,
    which count alike unless somebody else moves it."""
    first = max(before.version, before.newest) + 1 if before is not None else 1
    for number in range(first, first + VERSIONS_SKIPPED_MAX):
        version = f"{name}{SEPARATOR}{number}"
        if await _find(client, version) is None:
            return version
    raise Conflict(
        f"Keys {name}{SEPARATOR}{first} and {VERSIONS_SKIPPED_MAX} more are taken.",
        hint="Choose another name.",
    )


async def _find(client: _Client, key: str) -> KeyInfo | None:
    try:
        return await client.api.key(key)
    except NotFound:
        return None
