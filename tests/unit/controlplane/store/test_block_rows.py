from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_samples import SIZE, block_draft, cleared, evicted, key, keys, stored, tails
from tensorcast.controlplane.store.block_queries import find_key
from tensorcast.controlplane.store.block_rows import (
    Speaker,
    block_event_row,
    fold_holdings,
    read_block_event,
)
from tensorcast.controlplane.store.block_tables import kv_events
from tensorcast.log.identity import now
from tensorcast.log.port import Stored
from tensorcast.schema.block_events import encode_blocks
from tensorcast.schema.ids import Seq, Tier


def recorded(*events, start: int = 1) -> list:
    return [
        read_block_event(Stored(Seq(seq), "tc.c.kv.n1", encode_blocks(block_draft(event))), now())
        for seq, event in enumerate(events, start)
    ]


def held(fold) -> dict:
    return {place: (one.blocks, one.size_bytes) for place, one in fold.holdings.items()}


def test_what_a_node_holds_is_what_it_last_said():
    fold = fold_holdings(
        {},
        recorded(
            cleared(),
            stored(keys(3)),
            stored([key(1, "qwen")], tier=Tier.DISK),
            evicted([key(0)], held_blocks=2, held_bytes=2 * SIZE),
        ),
    )
    assert held(fold) == {
        ("n1", "dram", "llama"): (2, 2 * SIZE),
        ("n1", "disk", "qwen"): (1, SIZE),
    }
    assert fold.speakers == {"n1": Speaker(1, 1)}
    assert fold.cleared == {"n1"}


def test_a_node_that_begins_anew_holds_only_what_it_says_then():
    known = {"n1": Speaker(1, 4)}
    fold = fold_holdings(known, recorded(stored(keys(2)), cleared(), stored([key(5, "qwen")])))
    assert held(fold) == {("n1", "dram", "qwen"): (1, SIZE)}
    assert fold.cleared == {"n1"}
    fold = fold_holdings(known, recorded(stored(keys(2))))
    assert fold.cleared == frozenset()
    assert fold.speakers == {}


def test_an_older_life_is_not_heard_and_a_newer_one_begins_with_nothing():
    known = {"n1": Speaker(2, 9)}
    assert held(fold_holdings(known, recorded(stored(keys(2)), cleared()))) == {}
    fold = fold_holdings(known, recorded(stored(keys(2), epoch=3)))
    assert fold.cleared == {"n1"}
    assert fold.speakers == {"n1": Speaker(3, 0)}


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", b'{"type":"blocks.moved"}'])
def test_what_cannot_be_read_has_a_row_too(payload):
    (one,) = [read_block_event(Stored(Seq(3), "s", payload), now())]
    row = dict(zip(kv_events.columns.keys(), block_event_row(1, one), strict=True))
    assert (row["seq"], row["type"], row["node"]) == (3, "unreadable", None)
    assert held(fold_holdings({}, [one])) == {}


@pytest.mark.parametrize("event", [cleared(), stored(keys(3), sizes=(1, 2, 3)), evicted(keys(1))])
def test_a_row_has_a_value_for_each_column(event):
    (one,) = recorded(event)
    row = dict(zip(kv_events.columns.keys(), block_event_row(7, one), strict=True))
    assert (row["log_epoch"], row["seq"], row["node"], row["epoch"]) == (7, 1, "n1", 1)
    assert row["blocks"] == getattr(event, "count", None)
    assert row["keys"] == getattr(event, "keys", None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 3))
def test_a_key_is_found_where_it_begins(numbers, wanted):
    """Also when the same bytes stand across two keys."""
    letters = [bytes((number, wanted, number)) for number in numbers]
    sought = bytes((wanted, wanted, wanted))
    place = find_key(b"".join(letters), sought)
    expected = letters.index(sought) * 3 if sought in letters else None
    assert place == expected


def test_the_bytes_of_a_key_are_those_of_the_event():
    assert stored(keys(2)).keys == tails(keys(2))
