from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from block_samples import cleared, evicted, key, keys, stored
from samples import BEGIN
from tensorcast.movers.core.block_places import BlockPlaces
from tensorcast.schema.aggregates.node import Node, NodeStatus
from tensorcast.schema.ids import Epoch, NodeId, Tier

OWN = NodeId("n0")


def nodes(**epochs: int) -> Map[NodeId, Node]:
    """Nodes that are up in these lives."""
    return Map({NodeId(name): node(name, epoch) for name, epoch in epochs.items()})


def node(name: str, epoch: int, status: NodeStatus = NodeStatus.UP) -> Node:
    return Node(
        id=NodeId(name),
        status=status,
        epoch=Epoch(epoch),
        address=f"{name}:1",
        tiers={},
        transports=(),
        labels={},
        joined_at=BEGIN,
    )


def told(*events) -> BlockPlaces:
    places = BlockPlaces(OWN)
    for event in events:
        places.apply(event)
    return places


def sweep(places: BlockPlaces, count: int = 3) -> None:
    while places.needs_sweep:
        places.sweep(count)


UP = nodes(n0=1, n1=1, n2=1, n3=1)


def test_a_key_is_where_it_was_stored():
    places = told(stored(keys(3)), stored(keys(2, 2), "n2"), evicted([key(0)]))
    assert places.locate(keys(5), UP)[0:2] == [(), ("n1",)]
    assert set(places.locate([key(2)], UP)[0]) == {"n1", "n2"}
    assert places.locate(keys(2, 3), UP) == [("n2",), ()]
    assert len(places) == 3


def test_what_the_own_node_holds_is_not_elsewhere():
    places = told(stored(keys(3), OWN))
    assert places.locate(keys(3), UP) == [()] * 3
    assert len(places) == 0


def test_memory_comes_before_the_disk():
    places = told(
        stored([key(1)], "n1", tier=Tier.DISK),
        stored([key(1)], "n2", tier=Tier.DISK),
        stored([key(1)], "n2"),
        stored([key(1)], "n3", tier=Tier.DISK),
    )
    first, *others = places.locate([key(1)], UP)[0]
    assert first == "n2"
    assert set(others) == {"n1", "n3"}
    places.apply(evicted([key(1)], "n2"))
    assert set(places.locate([key(1)], UP)[0]) == {"n1", "n2", "n3"}


def test_not_all_nodes_ask_the_same_one_first():
    firsts = set()
    for number in range(20):
        places = BlockPlaces(NodeId(f"m{number}"))
        for name in ("n1", "n2", "n3"):
            places.apply(stored([key(1)], name))
        firsts.add(places.locate([key(1)], UP)[0][0])
    assert firsts == {"n1", "n2", "n3"}


def test_only_nodes_that_are_up_in_the_life_that_spoke_are_named():
    places = told(stored(keys(1), "n1", 3))
    assert places.locate(keys(1), nodes(n1=3)) == [("n1",)]
    assert places.locate(keys(1), nodes(n1=2)) == [()]
    assert places.locate(keys(1), nodes(n1=4)) == [()]
    assert places.locate(keys(1), Map()) == [()]
    for status in (NodeStatus.LOST, NodeStatus.LEFT):
        assert places.locate(keys(1), Map({NodeId("n1"): node("n1", 3, status)})) == [()]


def test_a_new_life_begins_with_nothing_and_an_older_one_is_not_heard():
    places = told(stored(keys(4)), stored(keys(1, 9), "n1", 2), stored(keys(4), "n1", 1))
    places.apply(evicted(keys(1, 9), "n1", 1))
    places.apply(cleared("n1", 1))
    assert places.locate([key(0), key(9)], nodes(n1=2)) == [(), ("n1",)]
    sweep(places)
    assert len(places) == 1


def test_beginning_anew_replaces_all_that_was_said():
    places = told(stored(keys(20)), stored(keys(20), "n2"), cleared(), stored(keys(5, 15)))
    assert places.locate([key(0)], UP) == [("n2",)]
    assert set(places.locate([key(16)], UP)[0]) == {"n1", "n2"}
    assert places.needs_sweep
    sweep(places)
    assert len(places) == 20
    assert places.locate([key(0)], UP) == [("n2",)]
    assert set(places.locate([key(16)], UP)[0]) == {"n1", "n2"}
    places.apply(cleared("n2"))
    sweep(places)
    assert len(places) == 5


def test_a_node_may_begin_anew_while_the_last_sweep_is_not_done():
    places = told(stored(keys(20)), cleared(), stored(keys(20, 10)))
    places.sweep(4)
    places.apply(cleared())
    places.apply(stored(keys(2, 18)))
    places.sweep(4)
    places.apply(stored(keys(1, 50)))
    sweep(places)
    assert places.locate([key(0), key(18), key(50), key(20)], UP) == [(), ("n1",), ("n1",), ()]
    assert len(places) == 3


STEP = st.tuples(
    st.sampled_from(["stored", "evicted", "cleared", "rises", "sweep"]),
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(Tier),
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
)


@given(st.lists(STEP, max_size=40))
def test_the_fold_of_the_events_is_the_model(steps):
    places = BlockPlaces(OWN)
    epochs = {"n1": 1, "n2": 1}
    model: dict[str, set[tuple[Tier, int]]] = {"n1": set(), "n2": set()}
    for verb, name, tier, numbers in steps:
        packed = [key(number) for number in numbers]
        match verb:
            case "stored":
                places.apply(stored(packed, name, epochs[name], tier=tier))
                model[name] |= {(tier, number) for number in numbers}
            case "evicted":
                places.apply(evicted(packed, name, epochs[name], tier=tier))
                model[name] -= {(tier, number) for number in numbers}
            case "cleared":
                places.apply(cleared(name, epochs[name]))
                model[name] = set()
            case "rises":
                epochs[name] += 1
                places.apply(cleared(name, epochs[name]))
                model[name] = set()
            case "sweep":
                places.sweep(3)
        found = places.locate(keys(10), nodes(**epochs))
        for number, holders in enumerate(found):
            expected = {n for n in model if {(tier, number) for tier in Tier} & model[n]}
            assert set(holders) == expected
            assert len(set(holders)) == len(holders)
    sweep(places)
    assert len(places) == len({number for held in model.values() for _, number in held})
