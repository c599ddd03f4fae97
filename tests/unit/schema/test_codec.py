import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import BEGIN, artifact_id, event_id
from strategies import MOMENTS, TEXT, values
from tensorcast.schema import codec, upcast
from tensorcast.schema.codec import decode, decode_event, encode, encode_data
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import EVENT_TYPES, ArtifactPinned, UnknownEvent

EVENTS = st.sampled_from(sorted(EVENT_TYPES)).flatmap(lambda name: values(EVENT_TYPES[name]))
PINNED = ArtifactPinned(artifact=artifact_id("a"))


@pytest.mark.parametrize("name", EVENT_TYPES)
@given(data=st.data())
def test_every_type_survives_a_round_trip(name, data):
    event = data.draw(values(EVENT_TYPES[name]))
    draft = Draft(id=event_id(7), at=BEGIN, actor="policy:replicate", event=event)
    recorded = decode(encode(draft), 7)
    assert recorded.event == event
    assert (recorded.type, recorded.seq, recorded.id) == (name, 7, event_id(7))
    assert decode_event(name, recorded.v, encode_data(event)) == event


@given(EVENTS, MOMENTS, TEXT, st.none() | TEXT, st.none() | TEXT)
def test_the_envelope_survives_a_round_trip(event, at, actor, cause, trace):
    draft = Draft(id=event_id(1), at=at, actor=actor, cause=cause, trace=trace, event=event)
    recorded = decode(encode(draft), 1)
    assert (recorded.at, recorded.actor) == (at, actor)
    assert (recorded.cause, recorded.trace) == (cause, trace)


def test_the_bytes_never_change():
    """A golden line: `psql`, `nats` and every older log hold events in this form."""
    draft = Draft(id=event_id(1), at=BEGIN, actor="user:ada@desk", event=PINNED)
    assert encode(draft).decode() == (
        '{"id":"00000000-0000-7000-8000-000000000001","type":"artifact.pinned","v":1,'
        '"at":"2030-01-01T00:00:00Z","actor":"user:ada@desk","cause":null,"trace":null,'
        f'"data":{{"artifact":"{PINNED.artifact}"}}}}'
    )


def wire(**changes):
    fields = {
        "id": "x",
        "type": "artifact.pinned",
        "v": 1,
        "at": "2030-01-01T00:00:00Z",
        "actor": "timers",
        "data": {"artifact": "a"},
    }
    return json.dumps({**fields, **changes}).encode()


@pytest.mark.parametrize(
    ("event_type", "version"), [("artifact.melted", 1), ("artifact.pinned", 2), ("plan.applied", 9)]
)
def test_what_a_newer_release_wrote_is_kept_as_it_is(event_type, version):
    data = {"artifact": "a", "heat": [1, 2.5, None, {"deep": "yes"}]}
    recorded = decode(wire(type=event_type, v=version, data=data), 3)
    assert isinstance(recorded.event, UnknownEvent)
    assert (recorded.event.type, recorded.event.v) == (event_type, version)
    assert json.loads(encode_data(recorded.event)) == data
    assert decode_event(event_type, version, encode_data(recorded.event)) == recorded.event


def test_fields_of_a_newer_release_are_ignored():
    assert decode(wire(data={"artifact": "a", "colour": "red"}, spin=1), 1).event.artifact == "a"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        wire(data={}),
        wire(data={"artifact": 7}),
        wire(v=0),
        wire(v=-1),
        wire(at="yesterday"),
        wire(at="2030-01-01T00:00:00"),
        wire(type="replica.filled", data={"replica": "r", "epoch": 1, "chunks": {"ranges": [[2]]}}),
        wire().replace(b'{"artifact": "a"}', b"[" * 100_000),
        wire().replace(b'{"artifact": "a"}', b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_other_bytes_are_corrupt(payload):
    with pytest.raises(Corrupt, match="position 9"):
        decode(payload, 9)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_event_or_corrupt(payload):
    with pytest.raises(Corrupt):
        decode(payload, 1)


def test_an_impossible_chunk_set_is_corrupt():
    data = {"replica": "r", "epoch": 1, "chunks": {"ranges": [[5, 2]]}}
    with pytest.raises(Corrupt, match="chunk range"):
        decode(wire(type="replica.filled", data=data), 1)


def test_an_older_version_is_brought_up(monkeypatch):
    """The tables are data, so a test may add a step to them."""
    monkeypatch.setitem(upcast.CURRENT, "artifact.pinned", 2)
    step = {("artifact.pinned", 1): lambda data: {"artifact": f"{data['name']}!"}}
    monkeypatch.setattr(upcast, "STEPS", step)
    recorded = decode(wire(data={"name": "a"}), 1)
    assert recorded.event == ArtifactPinned(artifact="a!")
    assert recorded.v == 1


def test_decode_event_refuses_what_it_cannot_read():
    with pytest.raises(msgspec.MsgspecError):
        decode_event("artifact.pinned", 0, b"{}")
    with pytest.raises(msgspec.MsgspecError):
        decode_event("artifact.pinned", 1, b"{}")


def test_an_event_fits_into_a_message_of_the_server():
    assert codec.EVENT_BYTES_MAX < 8 << 20
