from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories import Dice
from samples import BEGIN, N1, artifact_id, manifest
from strategies import values
from tensorcast.controlplane.store.load import all_states
from tensorcast.controlplane.store.rows import (
    STATE_TYPES,
    UNREADABLE,
    event_row,
    find_state,
    kind_of_state,
    read_event,
    state_id,
    state_row,
)
from tensorcast.controlplane.store.tables import READ_MODELS, events
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import encode, encode_data
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import AggregateKind, KeyRemoved, UnknownEvent, aggregate_of
from tensorcast.schema.ids import EventId, Key, Seq
from tensorcast.schema.subjects import subject_of

EVENT_COLUMNS = [column.name for column in events.columns]


def named(row: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(EVENT_COLUMNS, row, strict=True))


def stored(draft: Draft, seq: int) -> Stored:
    return Stored(Seq(seq), subject_of("c", draft.event), encode(draft))


@pytest.fixture(scope="module")
def history():
    """A view, and every event with the row made for it."""
    view, dice, told = ClusterView(), Dice(7), []
    while view.at < 600:
        for draft in dice.drafts(view):
            one = stored(draft, view.at + 1)
            recorded = read_event(one, BEGIN)
            view = project(view, recorded)
            told.append((recorded, named(event_row(1, one, recorded, view))))
    return view, told


def test_the_dice_throw_every_kind_of_event_state_and_status(history):
    view, told = history
    assert len({recorded.type for recorded, _ in told}) >= 28
    assert {kind_of_state(state) for state in all_states(view)} == set(AggregateKind)
    assert view.skipped == 0


def test_an_event_row_tells_the_event(history):
    for recorded, row in history[1]:
        assert (row["seq"], str(row["event_id"])) == (recorded.seq, recorded.id)
        assert (row["type"], row["actor"], row["at"]) == (
            recorded.type,
            recorded.actor,
            recorded.at,
        )
        assert (row["aggregate_kind"], row["aggregate_id"]) == aggregate_of(recorded.event)
        assert json.loads(row["data"]) == json.loads(encode_data(recorded.event))


ABOUT_NOTHING = (
    AggregateKind.SIGNAL,
    AggregateKind.PLAN,
    AggregateKind.NAMESPACE,
    AggregateKind.POLICY,
)


def test_events_of_replicas_operations_and_leases_know_their_artifact_and_node(history):
    view, told = history
    for recorded, row in told:
        kind, aggregate_id = aggregate_of(recorded.event)
        if kind in (AggregateKind.REPLICA, AggregateKind.OPERATION, AggregateKind.LEASE):
            state = find_state(view, kind, aggregate_id)
            artifact = state.work.artifact if kind is AggregateKind.OPERATION else state.artifact
            assert (row["artifact"], row["node"]) == (artifact, state.node)
        elif kind is AggregateKind.ENGINE:
            assert row["node"] == find_state(view, kind, aggregate_id).node
        elif kind is AggregateKind.NODE:
            assert (row["artifact"], row["node"]) == (None, aggregate_id)
        elif kind in ABOUT_NOTHING:
            assert (row["artifact"], row["node"]) == (None, None)
        else:
            assert row["artifact"] is not None


def test_a_removed_key_is_about_what_it_pointed_to():
    event = KeyRemoved(key=Key("k"), previous=artifact_id("a"), version=2)
    draft = Draft(id=EventId("x"), at=BEGIN, actor="a", event=event)
    one = stored(draft, 1)
    row = named(event_row(1, one, read_event(one, BEGIN), ClusterView()))
    assert row["artifact"] == artifact_id("a")


def test_bytes_that_are_no_event_still_have_a_row():
    one = Stored(Seq(3), "tc.c.log.artifact.abc", b"\xff\0junk")
    recorded = read_event(one, BEGIN)
    row = named(event_row(2, one, recorded, ClusterView()))
    assert (row["type"], row["at"], row["payload"]) == (UNREADABLE, BEGIN, one.payload)
    assert (row["aggregate_kind"], row["aggregate_id"]) == ("artifact", "abc")
    assert (row["log_epoch"], row["data"]) == (2, "null")
    assert recorded.id == read_event(one, BEGIN).id
    assert recorded.id != read_event(Stored(Seq(3), one.subject, b"other"), BEGIN).id
    assert project(ClusterView(), recorded) == ClusterView(at=Seq(3))


def test_a_message_on_a_foreign_subject_has_a_row():
    one = Stored(Seq(1), "tc.c.log.dream.x.y", b"{}")
    row = named(event_row(1, one, read_event(one, BEGIN), ClusterView()))
    assert (row["aggregate_kind"], row["aggregate_id"]) == ("unknown", one.subject)


def test_an_event_of_a_newer_release_is_kept():
    payload = (
        b'{"id":"0190f1a2-7c3d-7e4f-8a5b-6c7d8e9f0a1b","type":"plan.opened","v":3,'
        b'"at":"2030-01-01T00:00:00Z","actor":"user:x","data":{"plan":"p","n":1}}'
    )
    one = Stored(Seq(1), "tc.c.log.plan.p", payload)
    recorded = read_event(one, BEGIN)
    assert isinstance(recorded.event, UnknownEvent)
    row = named(event_row(1, one, recorded, ClusterView()))
    assert (row["type"], row["v"], json.loads(row["data"])) == (
        "plan.opened",
        3,
        {"plan": "p", "n": 1},
    )


def test_states_come_back_from_their_rows(history):
    for state in all_states(history[0]):
        table = READ_MODELS[kind_of_state(state)]
        row = dict(zip([column.name for column in table.columns], state_row(state), strict=True))
        assert msgspec.json.decode(row["state"], type=type(state)) == state
        assert (row["id"], row["status"], row["seq"]) == (
            state_id(state),
            state.status,
            state.version,
        )


@given(st.data())
def test_any_state_has_a_row(data):
    kind = data.draw(st.sampled_from(list(AggregateKind)))
    state = data.draw(values(STATE_TYPES[kind]))
    row = state_row(state)
    assert len(row) == len(READ_MODELS[kind].columns)
    assert "\\u0000" not in row[-1].replace("\\\\", "")


def test_columns_say_what_people_ask_for():
    view = ClusterView()
    dice = Dice(1)
    while artifact_id("a") not in view.artifacts or N1 not in view.nodes:
        for draft in dice.drafts(view):
            view = project(view, read_event(stored(draft, view.at + 1), BEGIN))
    row = state_row(view.artifacts[artifact_id("a")])
    assert row[3:5] == (manifest(6).size_bytes, 1)
