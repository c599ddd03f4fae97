import msgspec
import pytest

from samples import BEGIN, artifact_id
from tensorcast.controlplane.services.api_history import PAGE_BYTES_MAX, identify, page_of
from tensorcast.controlplane.store.event_infos import About
from tensorcast.schema.api import EventInfo
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import AggregateKind, KeyMoved, KeyRemoved
from tensorcast.schema.ids import EventId, Key, Seq
from tensorcast.schema.work import Materialize
from worlds import World

A = artifact_id("a")


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.artifact("a", "n1")
    world.then(KeyMoved(key=Key("k"), artifact=A, previous=None, version=1))
    world.then(KeyRemoved(key=Key("k"), previous=A, version=2))
    world.issue("op-0123456789", "n1", Materialize(artifact=A))
    world.lease(A, name="l1")
    world.engine("e1")
    return world


@pytest.mark.parametrize(
    ("what", "kind", "name"),
    [
        ("k", AggregateKind.KEY, "k"),
        (A, AggregateKind.ARTIFACT, A),
        (A[:6], AggregateKind.ARTIFACT, A),
        ("op-0123456789", AggregateKind.OPERATION, "op-0123456789"),
        ("012345", AggregateKind.OPERATION, "op-0123456789"),
        ("n1", AggregateKind.NODE, "n1"),
        ("l1", AggregateKind.LEASE, "l1"),
        ("e1", AggregateKind.ENGINE, "e1"),
        (f"{A}:n1:dram", AggregateKind.REPLICA, f"{A}:n1:dram"),
    ],
)
def test_whatever_has_a_name_has_a_history(world, what, kind, name):
    assert identify(world.view, what) == About(kind, name)


def test_what_nobody_knows_has_none(world):
    with pytest.raises(NotFound, match="Nothing is called 'x'"):
        identify(world.view, "x")
    world.issue("op-0123450000", "n1", Materialize(artifact=A))
    with pytest.raises(InvalidArgument):
        identify(world.view, "012345")


def events(count, size_bytes):
    data = msgspec.Raw(b'"' + b"x" * (size_bytes - 2) + b'"')
    return [
        EventInfo(
            seq=Seq(n), id=EventId(""), type="t", v=1, at=BEGIN, actor="a", cause=None, data=data
        )
        for n in range(1, count + 1)
    ]


def test_an_answer_carries_what_fits():
    few = events(3, 100)
    assert page_of(few, newest=False) == page_of(few, newest=True) == tuple(few)
    large = events(5, PAGE_BYTES_MAX // 3)
    assert [event.seq for event in page_of(large, newest=False)] == [1, 2]
    assert [event.seq for event in page_of(large, newest=True)] == [4, 5]
    huge = events(2, 2 * PAGE_BYTES_MAX)
    assert [event.seq for event in page_of(huge, newest=False)] == [1]
    assert page_of([], newest=False) == ()
