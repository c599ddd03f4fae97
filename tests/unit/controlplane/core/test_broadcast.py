"""Plans by table, and what is true of every plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.controlplane.core.broadcast import (
    DEPTH_MAX,
    FAN_MAX,
    SOURCES_MAX,
    Feed,
    Member,
    choose_fan,
    place_of,
    plan_broadcast,
)

MANY = 256


def node(name, bandwidth=0.0, *place, **more):
    return Member(node=name, bandwidth=bandwidth, place=place, **more)


def nodes(names, bandwidth=0.0, *place):
    return [node(name, bandwidth, *place) for name in names.split()]


def plan(targets, holders, feeds=(), chunks=MANY, **more):
    found = plan_broadcast(targets, holders, feeds, chunks=chunks, **more)
    return {name: " ".join(sources) for name, sources in found.items()}


TABLE = {
    "alike nodes form a chain": (
        nodes("a b c d"),
        nodes("s"),
        {"a": "s", "b": "a", "c": "b", "d": "c"},
    ),
    "as many chains as nodes that have it": (
        nodes("a b c d"),
        nodes("s t"),
        {"a": "s", "b": "t", "c": "a", "d": "b"},
    ),
    "holders that feed nobody help": (nodes("a"), nodes("s t u"), {"a": "s t u"}),
    "and do so in turns": (nodes("a b"), nodes("s t u"), {"a": "s u", "b": "t"}),
    "a fast source is the root of a tree": (
        nodes("a b c d", 1.0),
        nodes("s", 3.0),
        {"a": "s", "b": "s", "c": "s", "d": "a"},
    ),
    "a fast target gets from several": (
        nodes("a", 10.0),
        nodes("s t u", 4.0),
        {"a": "s t u"},
    ),
    "but not from more than it can take": (
        nodes("a", 8.0),
        nodes("s t u", 4.0),
        {"a": "s t"},
    ),
    "fast nodes come first, so that nobody waits behind a slow one": (
        [*nodes("slow", 1.0), *nodes("a b", 4.0)],
        nodes("s", 4.0),
        {"a": "s", "b": "a", "slow": "b"},
    ),
    "nobody to pull from": (nodes("a b"), [], {"a": "", "b": ""}),
    "a rack is entered once": (
        [node("a", 0, "r1"), node("b", 0, "r2"), node("c", 0, "r1"), node("d", 0, "r2")],
        [node("s", 0, "r1")],
        {"a": "s", "c": "a", "b": "c", "d": "b"},
    ),
    "each rack that has it feeds itself": (
        [node("a", 0, "r1"), node("b", 0, "r2")],
        [node("s", 0, "r1"), node("t", 0, "r2")],
        {"a": "s", "b": "t"},
    ),
    "nodes of a host follow each other": (
        [node("a", 0, "r", "h1"), node("b", 0, "r", "h2"), node("c", 0, "r", "h1")],
        [node("s", 0, "r", "h0")],
        {"a": "s", "c": "a", "b": "c"},
    ),
}


@pytest.mark.parametrize(("targets", "holders", "wanted"), TABLE.values(), ids=list(TABLE))
def test_plans(targets, holders, wanted):
    assert plan(targets, holders) == wanted


def test_an_artifact_of_few_chunks_goes_down_a_tree():
    assert plan(nodes("a b c d e f"), nodes("s"), chunks=1) == {
        "a": "s",
        "b": "s",
        "c": "a",
        "d": "b",
        "e": "a",
        "f": "b",
    }


@pytest.mark.parametrize(
    ("count", "chunks", "fan"),
    [(1, 1, 1), (4, 256, 1), (8, 256, 1), (200, 256, 1), (1000, 256, 2), (8, 1, 2), (1000, 1, 2)],
)
def test_how_many_a_node_feeds(count, chunks, fan):
    assert choose_fan(count, chunks) == fan <= FAN_MAX


def feed(name, *sources, place=(), **more):
    return Feed(member=node(name, 0.0, *place, **more), sources=sources)


def test_a_late_joiner_attaches_to_the_end_of_the_chain():
    feeds = [feed("b", "a"), feed("a", "s"), feed("c", "b")]
    assert plan(nodes("late"), nodes("s"), feeds) == {"late": "c"}


def test_what_is_fed_by_nobody_known_is_taken_for_a_source():
    assert plan(nodes("late"), [], [feed("b", "gone")]) == {"late": ""}
    assert plan(nodes("late"), nodes("s"), [feed("b")]) == {"late": "b"}


def test_feeds_that_wait_for_each_other_do_not_stop_the_plan():
    assert plan(nodes("late"), nodes("s"), [feed("a", "b"), feed("b", "a")]) == {"late": "s"}


def test_a_node_that_does_not_relay_is_a_leaf():
    first = [node("a", relays=False), *nodes("b c")]
    assert plan(first, nodes("s", 2.0)) == {"a": "s", "b": "s", "c": "b"}


def test_a_node_that_feeds_others_already_has_no_uplink_left():
    targets = [node("a", children=1), node("b")]
    assert plan(targets, nodes("s")) == {"a": "s", "b": "s"}


def test_no_chain_is_longer_than_allowed():
    found = plan_broadcast(nodes("a b c d e f"), nodes("s"), chunks=MANY, depth_max=2)
    assert max(depths(found, {"s"}).values()) <= 2


def test_places_are_labels_in_order():
    labels = {"host": "h1", "rack": "r1", "zone": "z"}
    assert place_of(labels) == ("r1", "h1")
    assert place_of(labels, ["zone", "floor"]) == ("z", "")


def depths(found, holders):
    """Steps of each node from a holder. A cycle, or a source that is nowhere, is an error."""
    known = dict.fromkeys(holders, 0)
    rest = dict(found)
    while rest:
        ready = [name for name, sources in rest.items() if all(s in known for s in sources)]
        assert ready, f"these wait for each other: {rest}"
        for name in ready:
            known[name] = 1 + max((known[source] for source in rest.pop(name)), default=0)
    return known


@st.composite
def clusters(draw):
    members = draw(
        st.lists(
            st.builds(
                Member,
                node=st.uuids().map(str),
                bandwidth=st.sampled_from([0.0, 1.0, 2.5, 10.0]),
                place=st.tuples(st.sampled_from("xyz"), st.sampled_from("12")),
                relays=st.booleans(),
                children=st.integers(0, 2),
            ),
            min_size=1,
            max_size=24,
            unique_by=lambda member: member.node,
        )
    )
    holders = [as_holder(m) for m in members[: draw(st.integers(1, 3))]]
    return members[len(holders) :], holders, draw(st.integers(1, 300))


def as_holder(member):
    """A holder serves, whatever else it does."""
    return Member(node=member.node, bandwidth=member.bandwidth, place=member.place)


@given(clusters())
def test_every_plan_brings_the_bytes_to_everybody(cluster):
    targets, holders, chunks = cluster
    found = plan_broadcast(targets, holders, chunks=chunks)
    assert found.keys() == {target.node for target in targets}
    leaves = {target.node for target in targets if not target.relays}
    for name, sources in found.items():
        assert 1 <= len(sources) <= SOURCES_MAX
        assert len(set(sources)) == len(sources)
        assert not leaves.intersection(sources)
        assert name not in sources
    assert max(depths(found, {h.node for h in holders}).values(), default=0) <= DEPTH_MAX
    assert plan_broadcast(targets, holders, chunks=chunks) == found


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 3))
def test_racks_of_alike_nodes_are_entered_once(count, racks, holders):
    """Each rack but those that have it is crossed into exactly once."""
    where = {f"n{i}": f"r{i % racks}" for i in range(count)}
    have = {f"s{i}": f"r{i % racks}" for i in range(holders)}
    found = plan_broadcast(
        [node(name, 1.0, rack) for name, rack in where.items()],
        [node(name, 1.0, rack) for name, rack in have.items()],
        chunks=MANY,
    )
    places = {**where, **have}
    crossings = sum(
        places[name] != places[source] for name, sources in found.items() for source in sources
    )
    assert crossings == len(set(where.values()) - set(have.values()))
