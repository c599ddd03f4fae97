import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import artifact_id
from strategies import TEXT
from tensorcast.schema import subjects
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import AggregateKind, ArtifactPinned, KeyRemoved, SignalEmitted
from tensorcast.schema.ids import Key, LeaseId, NodeId
from tensorcast.schema.signals import Topic, parse_pattern

IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.sampled_from([kind for kind in AggregateKind if kind is not AggregateKind.SIGNAL]), IDS)
def test_a_log_subject_stands_for_its_aggregate(kind, aggregate_id):
    subject = subjects.log_subject("default", kind, aggregate_id)
    assert subjects.parse_log_subject(subject) == (kind, aggregate_id)


@given(IDS)
def test_any_id_is_one_safe_token(text):
    """NATS splits at '.', and gives '*', '>' and white space a meaning."""
    token = subjects.renewal("c", LeaseId(text)).removeprefix("tc.c.renewal.")
    assert re.fullmatch(r"[A-Za-z0-9_:@=+%-]+", token)


@given(TEXT.filter(bool), TEXT.filter(bool))
def test_different_ids_have_different_subjects(a, b):
    one, other = (subjects.renewal("c", LeaseId(text)) for text in (a, b))
    assert (one == other) == (a == b)


def test_the_subject_of_an_event_follows_from_the_event():
    a = artifact_id("a")
    assert subjects.subject_of("c", ArtifactPinned(artifact=a)) == f"tc.c.log.artifact.{a}"
    moved = KeyRemoved(key=Key("llama@1.2"), previous=a, version=2)
    assert subjects.subject_of("c", moved) == "tc.c.log.key.llama@1%2E2"


def test_a_topic_keeps_its_tokens_so_that_patterns_choose_among_them():
    said = SignalEmitted(topic=Topic("engine.load.e1"))
    subject = subjects.subject_of("c", said)
    assert subject == "tc.c.log.signal.engine.load.e1"
    assert subjects.parse_log_subject(subject) == (AggregateKind.SIGNAL, "engine.load.e1")
    chosen = subjects.signal_subjects("c", parse_pattern("engine.*.>"))
    assert chosen == "tc.c.log.signal.engine.*.>"
    assert subjects.kind_subjects("c", AggregateKind.SIGNAL) == "tc.c.log.signal.>"
    for text in ("a.*", "a.>", "a b", ""):
        with pytest.raises(InvalidArgument):
            subjects.log_subject("c", AggregateKind.SIGNAL, text)


def test_an_empty_id_has_no_subject():
    with pytest.raises(InvalidArgument, match="empty"):
        subjects.log_subject("c", AggregateKind.KEY, "")


@pytest.mark.parametrize(
    "subject",
    ["", "tc.c.log.key", "tc.c.log.key.a.b", "x.c.log.key.a", "tc.c.api.key.a", "tc.c.log.frog.a"],
)
def test_other_subjects_are_not_of_the_log(subject):
    with pytest.raises(ValueError, match=r"not a"):
        subjects.parse_log_subject(subject)


def test_names_are_fixed():
    """Other processes, of other releases, listen on these."""
    assert subjects.log_name("c") == "TC_c_LOG"
    assert subjects.cursor_bucket("c") == "TC_c_CURSORS"
    assert subjects.log_subjects("c") == "tc.c.log.>"
    assert subjects.kind_subjects("c", AggregateKind.NODE) == "tc.c.log.node.*"
    assert subjects.api_subject("c", "status") == "tc.c.api.status"
    assert subjects.api_queue("c") == "tc-c-api"
    assert subjects.heartbeat("c", NodeId("n1")) == "tc.c.heartbeat.n1"
    assert subjects.heartbeats("c") == "tc.c.heartbeat.*"
    assert subjects.renewals("c") == "tc.c.renewal.*"
    assert subjects.kv_log_name("c") == "TC_c_KV"
    assert subjects.kv_subjects("c") == "tc.c.kv.>"
    assert subjects.kv_changed("c", NodeId("n1")) == "tc.c.kv.n1.changed"
    assert subjects.kv_cleared("c", NodeId("n1")) == "tc.c.kv.n1.cleared"


def test_the_subject_of_a_request_says_who_asks():
    for user, verb in (("", "artifact.show"), ("ada", "artifact.show")):
        subject = (
            subjects.user_subject("c", user, verb) if user else subjects.api_subject("c", verb)
        )
        assert subjects.parse_request_subject("c", subject) == (user, verb)
