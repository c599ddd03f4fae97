"""Who can be asked for an artifact, in which order."""

from __future__ import annotations

import pytest

from tensorcast.movers.core.health import Standing
from tensorcast.movers.core.supply import (
    DEMAND,
    DOUBTED,
    FILLING,
    PLANNED,
    READY,
    Peer,
    choose_sources,
    nearness,
    peers_with,
    plan_demands,
    plan_of,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.events import NodeCordoned, NodeLost, OperationRerouted, ReplicaFilled
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Load, Materialize
from worlds import World

N1, N2, N3, N4 = (NodeId(f"n{n}") for n in range(1, 5))
ONE = Epoch(1)
ALL = ChunkSet.full(4)


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name)
    return world


def places(peers) -> list[tuple[str, int]]:
    return [(peer.node, peer.rank) for peer in peers]


def test_the_complete_ones_come_first_and_lost_nodes_are_no_peers(world: World):
    a = world.artifact("a", "n3", "n1")
    world.filling(a, "n2")
    world.then(ReplicaFilled(replica=world.replica(a, "n2"), epoch=ONE, chunks=ChunkSet.of([1])))
    n3, n2 = peers_with(world.view, a, N1)
    assert (n3.node, n3.is_filling, n3.chunks, n3.address) == (N3, False, ALL, "n3:1")
    assert (n2.node, n2.is_filling, n2.chunks) == (N2, True, ChunkSet.of([1]))
    world.then(NodeLost(node=N3, epoch=ONE, silent_s=9.0))
    assert [p.node for p in peers_with(world.view, a, N1)] == [N2]


def test_what_only_a_gpu_has_only_adapters_reach(world: World):
    world.node("n5", transports=("rdma", "tcp"))
    a = world.artifact("a", "n2", "n5", tier=Tier.GPU)
    (peer,) = peers_with(world.view, a, N1)
    assert (peer.node, peer.transports) == ("n5", ("rdma",))
    world.ready(a, "n5", Tier.DISK)
    (peer,) = peers_with(world.view, a, N1)
    assert peer.transports == ("rdma", "tcp")


def test_a_disk_and_a_memory_count_as_one_peer(world: World):
    a = world.artifact("a")
    world.filling(a, "n2")
    world.ready(a, "n2", Tier.DISK)
    (peer,) = peers_with(world.view, a, N1)
    assert (peer.is_filling, peer.chunks) == (False, ALL)


def test_a_plan_ranks_its_sources_first(world: World):
    a = world.artifact("a", "n1")
    world.filling(a, "n2")
    world.filling(a, "n3")
    assert places(peers_with(world.view, a, N4)) == [(N1, 0), (N2, 0), (N3, 0)]
    planned = peers_with(world.view, a, N4, (N3,))
    assert places(planned) == [(N3, PLANNED), (N1, READY), (N2, FILLING)]


def test_a_planned_node_counts_before_it_has_begun(world: World):
    a = world.artifact("a", "n1")
    assert places(peers_with(world.view, a, N3, (N2,))) == [(N1, READY)]
    world.issue("op-1", "n2", Materialize(artifact=a))
    first, _ = peers_with(world.view, a, N3, (N2,))
    assert (first.node, first.rank, first.is_filling, first.is_coming) == (N2, PLANNED, True, True)
    world.filling(a, "n2")
    first, _ = peers_with(world.view, a, N3, (N2,))
    assert not first.is_coming
    assert places(peers_with(world.view, a, N2, (N2,))) == [(N1, READY)], "never itself"


def peer(node: str, chunks: ChunkSet = ALL, **more) -> Peer:
    return Peer(
        node=NodeId(node), epoch=ONE, address="h:1", transports=("tcp",), chunks=chunks, **more
    )


def choose(*peers: Peer, **standings: Standing) -> list[tuple[str, int, bool]]:
    found = choose_sources(
        peers,
        ALL,
        lambda *_: ("rdma", "tcp"),
        lambda node, _: standings.get(node, Standing.GOOD),
        lambda node, _: {"n1": 5.0}.get(node, 0.0),
    )
    return [(s.node, s.rank, s.is_trusted) for s in found]


def test_sources_know_the_last_rate_and_are_reached_by_the_transport():
    far = Peer(node=N2, epoch=ONE, address="h:1", transports=("pigeon",), chunks=ALL)
    (source,) = choose_sources(
        [peer("n1"), far], ALL, lambda *_: ("tcp",), lambda *_: Standing.GOOD, lambda *_: 5.0
    )
    assert (source.node, source.pace.rate, source.chunks) == (N1, 5.0, ALL)


def test_a_source_is_reached_over_the_best_transport_that_both_have():
    both = Peer(node=N2, epoch=ONE, address="h:1", transports=("tcp", "rdma"), chunks=ALL)
    one, other = choose_sources(
        [peer("n1"), both],
        ALL,
        lambda *_: ("rdma", "tcp"),
        lambda *_: Standing.GOOD,
        lambda *_: 0.0,
    )
    assert (one.transport, one.fallbacks) == ("tcp", ())
    assert (other.transport, other.fallbacks) == ("rdma", ("tcp",))


def test_a_quarantined_peer_is_left_out_when_others_have_everything():
    bad = {"n2": Standing.QUARANTINED}
    assert choose(peer("n1"), peer("n2"), **bad) == [("n1", 0, True)]
    some = peer("n1", ChunkSet.of([0]))
    assert choose(some, peer("n2"), **bad) == [("n1", 0, True), ("n2", DOUBTED, True)]
    filling = peer("n1", ChunkSet(), is_filling=True)
    assert choose(filling, peer("n2"), **bad) == [("n1", 0, True)]


def test_one_on_probation_is_relied_on_only_when_nobody_else_can_do_it():
    bad = {"n2": Standing.PROBATION}
    assert choose(peer("n1"), peer("n2"), **bad) == [("n1", 0, True), ("n2", 0, False)]
    assert choose(peer("n2"), **bad) == [("n2", 0, True)]


def test_the_plan_is_that_of_the_open_operation(world: World):
    a = world.artifact("a", "n1")
    assert plan_of(world.view, a, N2) == ()
    operation = world.issue("op-1", "n2", Materialize(artifact=a, sources=(N1,)))
    assert plan_of(world.view, a, N2) == (N1,)
    world.then(OperationRerouted(operation=operation, sources=(N3, N4)))
    assert plan_of(world.view, a, N2) == (N3, N4)
    world.issue("op-2", "n4", Load(artifact=a))
    assert plan_of(world.view, a, N4) == ()


def demand(world: World, artifact, *nodes: str) -> None:
    for node in nodes:
        world.issue(f"op-{node}", node, Materialize(artifact=artifact), policy=DEMAND)


def test_readers_form_a_chain_and_all_movers_see_the_same_one(world: World):
    a = world.artifact("a", "n1")
    demand(world, a, "n2", "n3", "n4")
    assert plan_demands(world.view, a) == {N2: (N1,), N3: (N2,), N4: (N3,)}
    assert [plan_of(world.view, a, node) for node in (N2, N3, N4)] == [(N1,), (N2,), (N3,)]


def test_a_chain_closes_when_one_of_it_has_gone(world: World):
    a = world.artifact("a", "n1")
    demand(world, a, "n2", "n3", "n4")
    world.then(NodeLost(node=N3, epoch=ONE, silent_s=9.0))
    assert plan_of(world.view, a, N4) == (N2,)


def test_a_planned_pull_counts_and_keeps_its_plan(world: World):
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", Materialize(artifact=a, sources=(N1,)))
    demand(world, a, "n3", "n4")
    assert plan_demands(world.view, a) == {N2: (N1,), N3: (N2,), N4: (N3,)}
    assert plan_of(world.view, a, N2) == (N1,)


def test_a_holder_that_serves_nobody_is_better_than_a_chain(world: World):
    a = world.artifact("a", "n1", "n4")
    world.issue("op-1", "n2", Materialize(artifact=a, sources=(N1,)))
    demand(world, a, "n3")
    assert plan_of(world.view, a, N3) == (N4,)


def test_the_nearest_of_those_that_serve_nobody(world: World):
    for name, rack in (("n2", "r1"), ("n3", "r2"), ("n4", "r1")):
        world.node(name, epoch=2, labels={"rack": rack})
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", Materialize(artifact=a, sources=(N1,)))
    world.issue("op-2", "n3", Materialize(artifact=a, sources=(N1,)))
    demand(world, a, "n4")
    assert (nearness(world.view, N4, N2), nearness(world.view, N4, N3)) == (1, 0)
    assert plan_of(world.view, a, N4) == (N2,)
    world.then(NodeCordoned(node=N2))
    assert plan_of(world.view, a, N4) == (N3,)
