from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from block_samples import SIZE, key, keys
from tensorcast.movers.core.block_changes import EVENT_KEYS, BlockLedger, Teller
from tensorcast.schema.block_events import (
    BlockEvent,
    BlocksCleared,
    BlocksEvicted,
    BlocksStored,
    iterate_keys,
    iterate_sizes,
)
from tensorcast.schema.blocks import name_key
from tensorcast.schema.ids import Epoch, NodeId, Tier

EPOCH = Epoch(1)
DRAM, DISK = Tier.DRAM, Tier.DISK


class Listener:
    """Believes what a node says; checks its totals."""

    def __init__(self) -> None:
        self.held: dict[Tier, dict[bytes, int]] = {tier: {} for tier in Tier}

    def hear(self, events: list[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlocksCleared():
                    self.held = {tier: {} for tier in Tier}
                case BlocksStored():
                    sizes = iterate_sizes(event)
                    self.held[event.tier].update(zip(iterate_keys(event), sizes, strict=True))
                    self._check_totals(event)
                case BlocksEvicted():
                    for one in iterate_keys(event):
                        del self.held[event.tier][one]
                    self._check_totals(event)

    def _check_totals(self, event: BlocksStored | BlocksEvicted) -> None:
        of_space = [
            size
            for one, size in self.held[event.tier].items()
            if one[1 : 1 + one[0]].decode() == event.space
        ]
        assert (event.held_blocks, event.held_bytes) == (len(of_space), sum(of_space))


def tell(ledger: BlockLedger, teller: Teller) -> list[BlockEvent]:
    return list(teller.events(ledger.take(), EPOCH))


def make() -> tuple[BlockLedger, Teller]:
    return BlockLedger(), Teller(NodeId("n1"))


def test_many_blocks_are_one_event():
    ledger, teller = make()
    ledger.stored(DRAM, [(one, SIZE) for one in keys(1000)])
    (event,) = tell(ledger, teller)
    assert isinstance(event, BlocksStored)
    assert (event.node, event.epoch, event.tier, event.space) == ("n1", 1, DRAM, "llama")
    assert list(iterate_keys(event)) == keys(1000)
    assert event.sizes == (SIZE,)
    assert (event.held_blocks, event.held_bytes) == (1000, 1000 * SIZE)
    assert teller.told == 1000
    assert tell(ledger, teller) == []
    assert not ledger.is_dirty


def test_what_ends_as_it_began_is_not_told():
    ledger, teller = make()
    ledger.stored(DRAM, [(key(1), SIZE), (key(2), SIZE)])
    ledger.evicted(DRAM, [key(1), key(9)])
    ledger.stored(DRAM, [(key(2), SIZE)])
    (event,) = tell(ledger, teller)
    assert list(iterate_keys(event)) == [key(2)]
    ledger.evicted(DRAM, [key(2)])
    ledger.stored(DRAM, [(key(2), SIZE)])
    assert tell(ledger, teller) == []
    ledger.stored(DRAM, [(key(2), SIZE)])
    assert not ledger.is_dirty


def test_damage_is_told_with_the_key_also_when_the_block_is_back_at_once():
    listener = Listener()
    ledger, teller = make()
    ledger.stored(DRAM, [(key(number), SIZE) for number in range(4)])
    listener.hear(tell(ledger, teller))
    ledger.damaged(DRAM, [key(1), key(2), key(9)])
    ledger.evicted(DRAM, [key(3)])
    ledger.stored(DRAM, [(key(1), SIZE)])
    events = tell(ledger, teller)
    listener.hear(events)
    assert listener.held[DRAM] == {key(0): SIZE, key(1): SIZE}
    reasons = [event.reason for event in events if isinstance(event, BlocksEvicted)]
    assert sorted(reasons)[0] == ""
    assert len(reasons) == 2
    assert sorted(reasons)[1] in {f"damaged: {name_key(key(n))} and 1 more" for n in (1, 2)}
    assert tell(ledger, teller) == []


def test_another_size_is_told():
    ledger, teller = make()
    ledger.stored(DRAM, [(key(1), 10)])
    tell(ledger, teller)
    ledger.evicted(DRAM, [key(1)])
    ledger.stored(DRAM, [(key(1), 12)])
    (event,) = tell(ledger, teller)
    assert (event.sizes, event.held_blocks, event.held_bytes) == ((12,), 1, 12)


def test_tiers_spaces_and_lengths_have_events_of_their_own():
    ledger, teller = make()
    longer = bytes((5,)) + b"llama" + bytes(4 + 32)
    blocks = [(key(1), 1), (key(2, "qwen"), 2), (longer, 3)]
    ledger.stored(DRAM, blocks)
    ledger.stored(DISK, blocks[:1])
    ledger.evicted(DISK, [])
    events = tell(ledger, teller)
    assert [(one.tier, one.space, one.key_bytes) for one in events] == [
        (DRAM, "llama", 20),
        (DRAM, "qwen", 20),
        (DRAM, "llama", 36),
        (DISK, "llama", 20),
    ]
    Listener().hear(events)


def test_an_event_has_a_limit():
    ledger, teller = make()
    ledger.stored(DRAM, [(one, SIZE) for one in keys(EVENT_KEYS + 1)])
    assert [event.count for event in tell(ledger, teller)] == [EVENT_KEYS, 1]


def test_beginning_anew_tells_everything():
    ledger, teller = make()
    ledger.stored(DRAM, [(key(1), SIZE), (key(2), SIZE)])
    tell(ledger, teller)
    ledger.evicted(DRAM, [key(1)])
    ledger.begin_anew("asked")
    ledger.stored(DISK, [(key(3), SIZE)])
    events = tell(ledger, teller)
    assert events[0] == BlocksCleared(node=NodeId("n1"), epoch=EPOCH, reason="asked")
    listener = Listener()
    listener.hear(events)
    assert listener.held == ledger.held
    assert (ledger.held[DRAM], ledger.held[DISK]) == ({key(2): SIZE}, {key(3): SIZE})
    assert teller.told == 2
    ledger.cleared()
    assert tell(ledger, teller) == [BlocksCleared(node=NodeId("n1"), epoch=EPOCH, reason="cleared")]


def test_too_many_changes_become_a_new_beginning():
    ledger, teller = BlockLedger(changes_max=10), Teller(NodeId("n1"))
    ledger.stored(DRAM, [(one, SIZE) for one in keys(8)])
    tell(ledger, teller)
    for number in range(100, 400):
        ledger.stored(DRAM, [(key(number), SIZE)])
        ledger.evicted(DRAM, [key(number)])
        assert ledger.waiting <= 11
    assert ledger.is_dirty
    events = tell(ledger, teller)
    assert isinstance(events[0], BlocksCleared)
    listener = Listener()
    listener.hear(events)
    assert listener.held == ledger.held


def test_what_is_no_key_is_told_to_nobody():
    ledger, teller = make()
    wrong = [
        b"\x05llama",
        b"\x05l\xffama" + bytes(20),
        bytes(30),
        b"\x40" + bytes(20),
        b"\x01x" * 60,
    ]
    ledger.stored(DRAM, [(one, SIZE) for one in (*wrong, key(1))])
    (event,) = tell(ledger, teller)
    assert list(iterate_keys(event)) == [key(1)]
    ledger.evicted(DRAM, wrong)
    assert tell(ledger, teller) == []


STEP = st.one_of(
    st.tuples(
        st.just("stored"),
        st.sampled_from(Tier),
        st.lists(st.tuples(st.integers(0, 12), st.integers(1, 2)), max_size=6),
    ),
    st.tuples(st.just("evicted"), st.sampled_from(Tier), st.lists(st.integers(0, 12), max_size=6)),
    st.tuples(st.just("tell"), st.just(DRAM), st.just([])),
    st.tuples(st.just("anew"), st.just(DRAM), st.just([])),
    st.tuples(st.just("cleared"), st.just(DRAM), st.just([])),
)


@given(st.lists(STEP, max_size=30), st.integers(1, 8))
def test_who_listens_knows_what_is_held(steps, changes_max):
    """For any history, told in pieces anyhow: the fold of the events is the model."""
    ledger, teller = BlockLedger(changes_max=changes_max), Teller(NodeId("n1"))
    listener = Listener()
    model: dict[Tier, dict[bytes, int]] = {tier: {} for tier in Tier}
    for verb, tier, what in steps:
        match verb:
            case "stored":
                blocks = [(key(number, f"s{number % 2}"), size) for number, size in what]
                ledger.stored(tier, blocks)
                model[tier].update(blocks)
            case "evicted":
                gone = [key(number, f"s{number % 2}") for number in what]
                ledger.evicted(tier, gone)
                for one in gone:
                    model[tier].pop(one, None)
            case "tell":
                listener.hear(tell(ledger, teller))
                assert listener.held == model
            case "anew":
                ledger.begin_anew("test")
            case "cleared":
                ledger.cleared()
                model = {tier: {} for tier in Tier}
        assert ledger.held == model
    listener.hear(tell(ledger, teller))
    assert listener.held == model
    assert tell(ledger, teller) == []
