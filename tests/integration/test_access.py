"""The rules of namespaces at a mover's socket, where the kernel says who asks."""

from __future__ import annotations

import getpass
from collections.abc import Iterator

import pytest
import torch

from stack import Stack, running_stack
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.jetstream import connect_log
from tensorcast.schema.access import user_name
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.namespaces import (
    Namespace,
    NamespaceEvent,
    NamespaceGranted,
    NamespaceRevoked,
    Right,
)

pytestmark = [pytest.mark.slow]

TEAM = Namespace("team")
ME = user_name(getpass.getuser())


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack(None) as stack:
        stack.start_mover("n1")
        yield stack


async def tell(stack: Stack, *events: NamespaceEvent) -> int:
    log = await connect_log(stack.nats.url, "test", name="test")
    try:
        drafts = [
            Draft(id=new_event_id(), at=now(), actor="user:ada@desk", event=event)
            for event in events
        ]
        return (await log.append(drafts))[-1]
    finally:
        await log.aclose()


async def test_a_socket_gives_and_takes_what_the_rules_allow(stack: Stack):
    with stack.connect("n1") as client:
        tensors = {"w": torch.arange(1000, dtype=torch.float32)}
        secret = client.put(tensors, key="team/a@1")
        seq = await tell(stack, NamespaceGranted(namespace=TEAM, who="bob", rights=(Right.READ,)))
        client._inner.position.advance(seq)
        for what in ("team/a@1", secret.id):
            with pytest.raises(PermissionDenied, match=f"tcctl access grant team {ME} read"):
                client.get(what)
        other = {"w": torch.ones(10)}
        with pytest.raises(PermissionDenied, match=f"User {ME} may not write to namespace 'team'"):
            client.put(other, key="team/b@1")
        assert client.put(other, key="mine").id
        seq = await tell(stack, NamespaceGranted(namespace=TEAM, who=ME, rights=(Right.WRITE,)))
        client._inner.position.advance(seq)
        assert client.get("mine")["w"][0] == 1  # the mover has seen the rule
        known = client.put(other, key="team/c@1").id
        with pytest.raises(PermissionDenied, match="move keys of"):
            client.put({"w": torch.zeros(10)}, key="team/c@1", expect=known)
        seq = await tell(
            stack,
            NamespaceRevoked(namespace=TEAM, who="bob", rights=(Right.READ,)),
            NamespaceRevoked(namespace=TEAM, who=ME, rights=(Right.WRITE,)),
            NamespaceRevoked(namespace=TEAM, who="ada", rights=tuple(Right)),
        )
        client._inner.position.advance(seq)
        assert client.get("team/a@1")["w"][999] == 999
