from __future__ import annotations

import pytest

from conformance.log import cordoned, draft
from tensorcast.log.batch import prepare, stale
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq


def test_an_entry_has_the_subject_and_the_bytes_of_its_draft():
    one = draft(cordoned("n1"), 7)
    (entry,) = prepare("blue", [one])
    assert (entry.id, entry.at, entry.expected) == (one.id, one.at, 7)
    assert entry.subject == "tc.blue.log.node.n1"
    assert decode(entry.payload, Seq(1)).event == one.event


def test_only_the_first_event_of_an_aggregate_states_what_is_expected():
    drafts = [draft(cordoned("a"), 7), draft(cordoned("b"), 0), draft(cordoned("a"), 7)]
    assert [entry.expected for entry in prepare("c", drafts)] == [7, 0, None]


@pytest.mark.parametrize("later", [3, 8])
def test_two_expectations_of_one_aggregate_make_no_sense(later):
    with pytest.raises(InvalidArgument, match="at 7 and at"):
        prepare("c", [draft(cordoned("a"), 7), draft(cordoned("a"), later)])


def test_the_limit_of_bytes_is_the_callers():
    one = draft(cordoned("a"))
    (entry,) = prepare("c", [one])
    prepare("c", [one], bytes_max=len(entry.payload))
    with pytest.raises(InvalidArgument, match="NodeCordoned"):
        prepare("c", [one], bytes_max=len(entry.payload) - 1)


def test_a_stale_append_is_told_which_aggregate_has_changed():
    assert "tc.c.log.node.a has changed since position 7" in str(stale("tc.c.log.node.a", Seq(7)))
