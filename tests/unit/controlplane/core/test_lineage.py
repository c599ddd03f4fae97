"""When which key pointed to an artifact, and what it says that it was made from."""

import pytest

from samples import artifact_id
from tensorcast.controlplane.core.lineage import key_spans, made_by, named_sources
from tensorcast.controlplane.services.api_answers import describe_event
from tensorcast.schema.events import KeyMoved, KeyRemoved
from tensorcast.schema.ids import Key
from tensorcast.schema.work import Load
from worlds import World

A, B = artifact_id("a"), artifact_id("b")


def moved(key, artifact, version):
    return KeyMoved(key=Key(key), artifact=artifact, previous=None, version=version)


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        ([], []),
        ([moved("k", A, 1)], [("k", 1, None)]),
        ([moved("k", A, 1), moved("k", B, 2)], [("k", 1, 2)]),
        ([moved("k", A, 1), moved("k", A, 2)], [("k", 1, None)]),
        ([moved("k", B, 1)], []),
        (
            [moved("k", A, 1), moved("j", A, 1), KeyRemoved(key=Key("k"), previous=A, version=2)],
            [("k", 1, 3), ("j", 2, None)],
        ),
        ([moved("k", A, 1), moved("k", B, 2), moved("k", A, 3)], [("k", 1, 2), ("k", 3, None)]),
    ],
)
def test_keys_from_when_to_when(events, spans):
    world = World()
    for event in events:
        world.then(event)
    found = key_spans(A, map(describe_event, world.events))
    assert [(one.key, one.since_seq, one.until_seq) for one in found] == spans
    assert all((one.until is None) == (one.until_actor is None) for one in found)


@pytest.mark.parametrize(
    ("label", "names"),
    [(None, ()), ("", ()), ("base@1", ("base@1",)), (f" {A}, lora@2 ,", (A, "lora@2"))],
)
def test_what_it_says_it_was_made_from(label, names):
    assert named_sources({} if label is None else {"made-from": label}) == names


def test_work_is_about_an_artifact():
    world = World()
    world.node("n1")
    world.issue("op-1", "n1", Load(artifact=A))
    infos = list(map(describe_event, world.events))
    assert made_by(infos[0]) is None
    made = made_by(infos[1])
    assert (made.artifact, made.by, made.seq) == (A, "load", 2)
