"""Puts that a mover has accepted, when it is killed or stopped before they are sealed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mover_nodes import MIB, Application, Content, MoverNode, observing
from servers import NatsServer
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.ids import Key
from tensorcast.schema.socket import (
    AwaitPut,
    OpenPut,
    PutAccepted,
    PutOpened,
    PutSealed,
    SealPut,
)


@pytest.fixture
def node(tmp_path: Path, nats_server: NatsServer) -> Iterator[MoverNode]:
    node = MoverNode("n1", tmp_path / "n1", nats_server.url)
    node.start()
    yield node
    node.close()


def accept(application: Application, content: Content, key: str) -> tuple[str, int]:
    """The ticket of an accepted put, and a descriptor that can be written through: as long as it
    is open, the put cannot be sealed."""
    opened, fds = application.ask(OpenPut(size_bytes=len(content.bytes), lasting=True))
    assert isinstance(opened, PutOpened)
    writable, readable, lifeline = fds
    os.pwrite(writable, content.bytes, 0)
    os.close(readable)
    os.close(lifeline)
    manifest = msgspec.structs.replace(content.manifest, digests=b"")
    request = SealPut(
        session=opened.session, kind="weights", manifest=manifest, key=Key(key), wait=False
    )
    accepted, _ = application.ask(request)
    assert isinstance(accepted, PutAccepted)
    assert accepted.sealed is None
    return accepted.ticket, writable


def wait_for(application: Application, ticket: str) -> PutSealed:
    sealed, _ = application.ask(AwaitPut(ticket=ticket))
    assert isinstance(sealed, PutSealed)
    return sealed


async def test_a_mover_that_is_killed_seals_what_it_accepted_in_its_next_life(
    node: MoverNode, nats_server: NatsServer
):
    content = Content([3 * MIB, 7])
    with node.application() as application:
        ticket, writable = accept(application, content, "m")
        _, (other,) = application.ask(OpenPut(size_bytes=MIB))  # one that is not accepted
        os.close(other)
    node.kill()
    node.start()
    os.close(writable)
    with node.application() as application:
        sealed = wait_for(application, ticket)
        assert (sealed.artifact, sealed.existed) == (content.id, False)
        with application.get("m") as reading:
            assert reading.bytes() == content.bytes
        assert application.stats().used_bytes == 4 * MIB
        assert wait_for(application, ticket) == sealed
    async with observing(nats_server.url) as observer:
        types = [event.type for event in await observer.events()]
    assert [type_ for type_ in types if type_ in ("artifact.sealed", "key.moved")] == [
        "artifact.sealed",
        "key.moved",
    ]


def test_a_reader_of_the_key_waits_over_the_crash(node: MoverNode):
    content = Content([MIB])
    with node.application() as application:
        _, writable = accept(application, content, "m")
    node.kill()
    node.start()
    os.close(writable)
    with node.application() as application, application.get("m") as reading:
        assert reading.bytes() == content.bytes


def test_the_outcome_is_known_to_the_lives_after(node: MoverNode):
    content, other = Content([MIB]), Content([MIB], seed=2)
    with node.application() as application:
        ticket, writable = accept(application, content, "m")
        os.close(writable)
        sealed = wait_for(application, ticket)
        late, writable = accept(application, other, "free")
    node.kill()
    node.start()
    with node.application() as application:
        assert wait_for(application, ticket) == sealed
        application.put(content, key="free2")
        os.close(writable)
        assert wait_for(application, late).artifact == other.id
        with pytest.raises(NotFound):
            wait_for(application, "nonsense")
        with pytest.raises(Conflict):
            application.put(other, key="m")


def test_a_stop_waits_for_what_was_accepted(node: MoverNode):
    content = Content([2 * MIB])
    with node.application() as application:
        ticket, writable = accept(application, content, "m")
        os.close(writable)
    assert node.stop() == 0
    node.start()
    with node.application() as application:
        assert wait_for(application, ticket).artifact == content.id
        with application.get("m") as reading:
            assert reading.bytes() == content.bytes


@pytest.mark.slow
def test_a_stop_writes_what_it_cannot_seal_and_the_next_life_does(
    node: MoverNode, nats_server: NatsServer
):
    content = Content([2 * MIB])
    with node.application() as application:
        nats_server.kill()
        ticket, writable = accept(application, content, "m")
        os.close(writable)
    assert node.stop() == 0
    images = list((node.folder / "data" / "accepted").iterdir())
    assert [image.name for image in images] == [f"{ticket}.image"]
    node.store.close()  # as when the whole machine goes down
    nats_server.start()
    node.store.__init__(size_max=256)
    node.start()
    with node.application() as application:
        assert wait_for(application, ticket).artifact == content.id
        with application.get("m") as reading:
            assert reading.bytes() == content.bytes
    assert list((node.folder / "data" / "accepted").iterdir()) == []


@pytest.mark.slow
def test_who_goes_on_writing_is_told(node: MoverNode):
    with node.application() as application:
        opened, (writable, *others) = application.ask(OpenPut(size_bytes=MIB, lasting=True))
        assert isinstance(opened, PutOpened)
        content = Content([MIB])
        with pytest.raises(InvalidArgument, match="still mapped for writing"):
            application.seal(opened.session, content)
        for fd in (writable, *others):
            os.close(fd)
        node.wait_until(lambda: application.stats().used_bytes == 0)
