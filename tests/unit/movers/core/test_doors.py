"""Who must show a ticket, and of which lives it is taken."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorcast.movers.core.doors import is_expected, judge, needs_ticket
from tensorcast.schema.events import NodeLeft, NodeLost
from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.tickets import (
    TICKET_S,
    Challenge,
    Presented,
    Refusal,
    Ticket,
    TicketRefused,
    parse_ticket,
    sign_ticket,
)
from worlds import World

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
N1, N2 = NodeId("n1"), NodeId("n2")
ASKED = Challenge("aa", 10.0)


def world_of(**keys: str) -> World:
    world = World()
    for name, key in keys.items():
        world.node(name, epoch=2, ticket_key=key)
    return world


def show(epoch: int = 2) -> Presented:
    ticket = Ticket(
        node=N2,
        epoch=Epoch(epoch),
        source=N1,
        what="blocks",
        nonce=ASKED.nonce,
        until=ASKED.at + TICKET_S,
    )
    return parse_ticket(sign_ticket(ticket, KEY), N1)


def test_movers_that_have_a_key_and_strangers_need_a_ticket():
    world = world_of(n1=PUBLIC, n2=PUBLIC)
    assert needs_ticket(world.view, N2)
    assert needs_ticket(world.view, NodeId("stranger"))
    assert needs_ticket(world.view, None)


def test_a_mover_of_an_older_release_is_served_while_it_is_up():
    world = world_of(n1=PUBLIC, n2="")
    assert not needs_ticket(world.view, N2)
    assert not needs_ticket(world.view, None)  # it may be an application of its node
    assert needs_ticket(world.view, N1)
    world.then(NodeLeft(node=N2, epoch=Epoch(2)))
    assert needs_ticket(world.view, N2)
    assert needs_ticket(world.view, None)


def test_a_life_that_is_known_is_let_in_also_when_it_was_declared_lost():
    world = world_of(n1=PUBLIC, n2=PUBLIC)
    assert judge(world.view, show(), N1, ASKED, 11.0) == show().ticket
    world.then(NodeLost(node=N2, epoch=Epoch(2), silent_s=9.0))
    assert judge(world.view, show(), N1, ASKED, 11.0) == show().ticket


@pytest.mark.parametrize(
    ("keys", "epoch", "is_known", "refusal"),
    [
        ({"n1": PUBLIC}, 2, False, Refusal.UNKNOWN),
        ({"n2": PUBLIC}, 3, False, Refusal.UNKNOWN),
        ({"n2": PUBLIC}, 1, True, Refusal.FENCED),
        ({"n2": "ab" * 32}, 2, True, Refusal.FORGED),
        ({"n2": ""}, 2, True, Refusal.FORGED),
    ],
)
def test_other_lives_are_not(keys: dict[str, str], epoch: int, is_known: bool, refusal: Refusal):
    view = world_of(**keys).view
    assert is_expected(view, show(epoch).ticket) == is_known
    with pytest.raises(TicketRefused) as caught:
        judge(view, show(epoch), N1, ASKED, 11.0)
    assert caught.value.refusal is refusal


def test_who_has_left_is_not_let_in():
    world = world_of(n2=PUBLIC)
    world.then(NodeLeft(node=N2, epoch=Epoch(2)))
    with pytest.raises(TicketRefused) as caught:
        judge(world.view, show(), N1, ASKED, 11.0)
    assert caught.value.refusal is Refusal.FENCED
