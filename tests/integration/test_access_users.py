"""Two users of two namespaces, each with a key of their own, at a control plane that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from controlplanes import ControlPlane as Process
from keyed_servers import Keyed, user
from samples import artifact_id, manifest
from tensorcast.client.api import ControlPlane
from tensorcast.log.identity import new_event_id, now
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.events import ArtifactSealed, KeyMoved
from tensorcast.schema.ids import Key
from tensorcast.schema.namespaces import Namespace, Right

pytestmark = [pytest.mark.slow]

RED, BLUE = Namespace("red"), Namespace("blue")
R, B = artifact_id("red"), artifact_id("blue")


@pytest.fixture
async def server(tmp_path, postgres_url) -> AsyncIterator[Keyed]:
    """An artifact in each namespace; red is ada's and blue is cleo's, by their own rules."""
    server = Keyed(tmp_path, "ada", "cleo")
    server.start()
    credentials = str(server.layout.key("controlplane"))
    plane = Process(tmp_path, server.url, postgres_url, TENSORCAST_NATS_CREDENTIALS=credentials)
    try:
        async with server.log("controlplane") as log:
            events = [
                event
                for artifact, space in ((R, RED), (B, BLUE))
                for event in (
                    ArtifactSealed(
                        artifact=artifact, kind="weights", manifest=manifest(1), namespace=space
                    ),
                    KeyMoved(key=Key(f"{space}/m"), artifact=artifact, previous=None, version=1),
                )
            ]
            drafts = [Draft(id=new_event_id(), at=now(), actor="test", event=e) for e in events]
            await log.append(drafts)
        await plane.start()
        yield server
    finally:
        plane.end()
        server.stop()


async def test_each_has_their_own_and_neither_the_others(server: Keyed):
    async with user(server, "user.ada") as ada, user(server, "user.cleo") as cleo:
        await ada.grant_access("red", "ada", tuple(Right))
        await cleo.grant_access("blue", "cleo", tuple(Right))
        for one, mine, other in ((ada, R, B), (cleo, B, R)):
            await check(one, mine, other)
        await ada.grant_access("red", "cleo", (Right.READ,))
        assert (await cleo.artifact(R)).id == R
        with pytest.raises(PermissionDenied, match="cleo may not write to namespace 'red'"):
            await cleo.move_key("red/theirs", R)
        await ada.revoke_access("red", "cleo", (Right.READ,))
        with pytest.raises(PermissionDenied):
            await cleo.artifact(R)
        rules = await ada.audit(AuditQuery(types=("namespace.*",)))
        actors = {event.actor for event in rules}
        assert actors == {"user:ada@y", "user:cleo@y"}  # by their keys: both said user:x@y


async def check(api: ControlPlane, mine: str, other: str) -> None:
    """What somebody with all rights in one namespace may do, and may not in the other."""
    own, foreign = ("red", "blue") if mine == R else ("blue", "red")
    assert [one.key for one in await api.keys()] == [f"{own}/m"]
    await api.move_key(f"{own}/new", mine)
    await api.remove_key(f"{own}/new")
    for forbidden in (
        api.artifact(other),
        api.move_key(f"{foreign}/new", mine),
        api.move_key(f"{own}/taken", other),
        api.remove_key(f"{foreign}/m"),
        api.remove_artifact(other, force=True),
        api.grant_access(foreign, "ada", (Right.READ,)),
    ):
        with pytest.raises(PermissionDenied):
            await forbidden
