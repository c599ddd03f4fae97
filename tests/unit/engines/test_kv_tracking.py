import pytest

from kv_publishers import CLEARED, batch, removed, stored, tokens
from tensorcast.engines.vllm.kv_batches import decode_batch, pack_hash
from tensorcast.engines.vllm.kv_tracking import (
    Anew,
    Gone,
    Held,
    Tracker,
    Verdict,
    merge_changes,
)
from tensorcast.schema.engine_blocks import UNNAMED
from tensorcast.schema.prefixes import name_prefixes


def apply(tracker, *events, ts=None):
    one = decode_batch(batch(*events, ts=float(tracker.expected + 1) if ts is None else ts))
    return tracker.apply(tracker.expected, one)


def hashes(*numbers):
    return tuple(map(pack_hash, numbers))


def test_blocks_get_the_names_of_their_prefixes():
    tracker = Tracker()
    (first,) = apply(tracker, stored(1, 2))
    (second,) = apply(tracker, stored(3, 1, parent=2))
    names = name_prefixes(tokens(1, 3), 4)
    assert first.prefixes + second.prefixes == tuple(names)
    assert tracker.count == 3


def test_a_salt_and_an_adapter_are_part_of_the_name():
    tracker = Tracker()
    (salted,) = apply(tracker, stored(1, 2, extra_keys=[["s"], None]))
    assert salted.prefixes == tuple(name_prefixes(tokens(1, 2), 4, salt="s"))
    (adapted,) = apply(tracker, stored(5, 2, extra_keys=[["a", "s"], ["a"]], lora_name="a"))
    assert adapted.prefixes == tuple(name_prefixes(tokens(5, 2), 4, lora="a", salt="s"))
    assert salted.prefixes[0] != name_prefixes(tokens(1, 2), 4)[0]


def test_a_parent_that_was_evicted_still_names_its_children():
    tracker = Tracker()
    apply(tracker, stored(1, 1), removed(1))
    (child,) = apply(tracker, stored(2, 1, parent=1))
    assert child.prefixes == (name_prefixes(tokens(1, 2), 4)[1],)


def test_blocks_of_an_unknown_parent_have_no_name():
    (held,) = apply(Tracker(), stored(2, 2, parent=1))
    assert held.prefixes == (UNNAMED, UNNAMED)


def test_tokens_that_cannot_be_have_no_name():
    (held,) = apply(Tracker(), stored(1, 1) | {"token_ids": [-1, 0, 0, 0]})
    assert held.prefixes == (UNNAMED,)


def test_what_is_removed_and_cleared_is_held_no_more():
    tracker = Tracker()
    apply(tracker, stored(1, 3), stored(1, 2, medium="CPU"))
    assert tracker.count == 5
    assert apply(tracker, removed(2, 9)) == [Gone("gpu", 0, hashes(2, 9))]
    assert tracker.count == 4
    held = {one.medium: one.hashes for one in tracker.held()}
    assert held == {"gpu": hashes(1, 3), "cpu": hashes(1, 2)}
    (cleared,) = apply(tracker, CLEARED)
    assert isinstance(cleared, Anew)
    assert cleared.is_exact
    assert (tracker.count, list(tracker.held())) == (0, [])


def test_a_block_that_is_stored_again_counts_once():
    tracker = Tracker()
    apply(tracker, stored(1, 2), stored(1, 2))
    assert tracker.count == 2


@pytest.mark.parametrize(
    ("seq", "ts", "verdict"),
    [
        (2, 9.0, Verdict.NEXT),
        (3, 9.0, Verdict.GAP),
        (1, 2.0, Verdict.OLD),
        (0, 1.0, Verdict.OLD),
        (0, 9.0, Verdict.RESTARTED),
        (1, 2.5, Verdict.RESTARTED),
    ],
)
def test_what_a_batch_is_follows_from_its_number_and_time(seq, ts, verdict):
    tracker = Tracker()
    apply(tracker, ts=1.0)
    apply(tracker, ts=2.0)
    assert tracker.judge(seq, ts) is verdict


def test_what_is_lost_leaves_nothing_that_could_be_wrong():
    tracker = Tracker()
    apply(tracker, stored(1, 2))
    anew = tracker.lose(5, "forgotten.")
    assert not anew.is_exact
    assert anew.reason == "Batches 1 to 4 are lost: forgotten."
    assert (tracker.count, tracker.expected) == (0, 5)
    (child,) = apply(tracker, stored(3, 1, parent=2))
    assert child.prefixes == (name_prefixes(tokens(1, 3), 4)[2],), "names are true for ever"


def test_another_life_begins_at_its_first_batch():
    tracker = Tracker()
    apply(tracker, stored(1, 2))
    assert tracker.begin() == Anew(is_exact=True, reason="")
    assert (tracker.expected, tracker.count) == (0, 0)
    (child,) = apply(tracker, stored(3, 1, parent=2))
    assert child.prefixes == (UNNAMED,), "hashes of another life may be others"


def test_names_are_forgotten_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr("tensorcast.engines.vllm.kv_tracking.NAMES_MAX", 4)
    tracker = Tracker()
    apply(tracker, stored(1, 2), removed(1), stored(11, 2), stored(21, 2))
    assert len(tracker._names) <= 5
    (child,) = apply(tracker, stored(3, 1, parent=2))
    assert child.prefixes != (UNNAMED,)


def test_neighbours_are_told_as_one():
    one, two = (
        Held("gpu", 0, 4, hashes(1), (b"a" * 16,)),
        Held("gpu", 0, 4, hashes(2), (b"b" * 16,)),
    )
    gone, cpu = Gone("gpu", 0, hashes(1)), Held("cpu", 0, 4, hashes(2), (b"b" * 16,))
    assert merge_changes([one, two, gone, gone, cpu]) == [
        Held("gpu", 0, 4, hashes(1, 2), (b"a" * 16, b"b" * 16)),
        Gone("gpu", 0, hashes(1, 1)),
        cpu,
    ]
    anew = Anew(is_exact=True, reason="")
    assert merge_changes([one, anew, two, anew, gone]) == [anew, gone]
