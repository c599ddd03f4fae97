from datetime import timedelta

from samples import BEGIN
from tensorcast.controlplane.store.block_rows import block_event_row, fold_holdings
from tensorcast.controlplane.store.engine_block_rows import fold_engines
from tensorcast.schema.block_events import BlockDraft, decode_blocks, encode_blocks
from tensorcast.schema.engine_blocks import (
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.ids import EngineId, Seq, derive_event_id


def record(*events, first=1):
    found = []
    for seq, event in enumerate(events, first):
        at = BEGIN + timedelta(seconds=seq)
        name = derive_event_id("test", str(seq), 0)
        draft = BlockDraft(id=name, at=at, actor="engine:e", event=event)
        found.append(decode_blocks(encode_blocks(draft), Seq(seq)))
    return found


def common(life, batch, held):
    return {
        "engine": EngineId("e1"),
        "life": life,
        "batch": batch,
        "medium": "gpu",
        "group": 0,
        "hash_bytes": 1,
        "held_blocks": held,
    }


def stored(*names, life="one", batch=1, held=9):
    return EngineBlocksStored(
        **common(life, batch, held),
        hashes=b"".join(names),
        prefixes=b"".join(name * 16 for name in names),
        block_tokens=4,
    )


def evicted(*names, life="one", batch=2, held=8):
    return EngineBlocksEvicted(**common(life, batch, held), hashes=b"".join(names))


def cleared(life="one", is_exact=True, reason=""):
    return EngineBlocksCleared(
        engine=EngineId("e1"), life=life, batch=0, is_exact=is_exact, reason=reason
    )


def held(fold):
    return {place[3] for place, row in fold.blocks.items() if row is not None}


def test_blocks_come_and_go():
    fold = fold_engines({}, record(cleared(), stored(b"a", b"b"), evicted(b"a"), stored(b"c")))
    assert fold.cleared == {"e1"}
    assert held(fold) == {b"b", b"c"}
    assert fold.blocks["e1", "gpu", 0, b"a"] is None
    told = fold.views["e1"]
    assert (told.life, told.is_exact, told.batch, told.blocks, told.seq) == ("one", True, 1, 9, 4)
    assert fold.blocks["e1", "gpu", 0, b"b"] == ("e1", "gpu", 0, b"b", b"b" * 16, 4, 2)


def test_what_was_known_goes_on_in_the_next_batch():
    first = fold_engines({}, record(cleared(is_exact=False, reason="lost"), stored(b"a")))
    later = fold_engines(first.views, record(evicted(b"a"), first=3))
    assert later.cleared == frozenset()
    told = later.views["e1"]
    assert (told.is_exact, told.reason, told.blocks, told.seq) == (False, "lost", 8, 3)


def test_another_life_counts_once_it_has_begun():
    fold = fold_engines({}, record(stored(b"x"), cleared(), stored(b"y", life="two"), stored(b"a")))
    assert held(fold) == {b"a"}
    fold = fold_engines(fold.views, record(cleared("two"), stored(b"b"), stored(b"c", life="two")))
    assert held(fold) == {b"c"}
    assert fold.views["e1"].life == "two"


def test_a_clearing_takes_what_came_before_it():
    fold = fold_engines({}, record(cleared(), stored(b"a"), cleared(), stored(b"b")))
    assert held(fold) == {b"b"}
    assert ("e1", "gpu", 0, b"a") not in fold.blocks


def test_what_nodes_hold_is_not_touched():
    assert fold_holdings({}, record(cleared(), stored(b"a"))).holdings == {}


def test_an_event_row_has_the_hashes_and_the_rest():
    rows = [block_event_row(1, one) for one in record(cleared(), stored(b"a", b"b"))]
    assert rows[0][3] == "engine_blocks.cleared"
    assert rows[1][-4:-1] == (2, 1, b"ab")
    assert '"engine":"e1"' in rows[1][-1]
    assert '"prefixes"' in rows[1][-1]
