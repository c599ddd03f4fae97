import pytest

from samples import BEGIN
from tensorcast.engines.vllm import telling
from tensorcast.engines.vllm.kv_tracking import Anew, Gone, Held
from tensorcast.engines.vllm.telling import KvLogChanged, Teller, pack_changes
from tensorcast.schema.api_engine_blocks import REPORT_EVENTS_MAX, EngineView, Reported
from tensorcast.schema.engine_blocks import (
    ENGINE_EVENT_BLOCKS_MAX,
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.errors import InvalidArgument, Rejected, Unavailable
from tensorcast.schema.ids import EngineId, Seq

E1 = EngineId("e1")


class Cluster:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.reports = []

    async def report_blocks(self, events):
        self.reports.append(events)
        answer = self.answers.pop(0) if self.answers else "log"
        if isinstance(answer, Exception):
            raise answer
        return Reported(seq=Seq(1), created=answer)


def held(count, first=0, width=8):
    hashes = tuple(n.to_bytes(width, "big") for n in range(first, first + count))
    return Held("gpu", 0, 4, hashes, tuple(h.rjust(16, b"p") for h in hashes))


def pack(*changes):
    return list(pack_changes(E1, "life", changes, 7, 9))


def test_changes_as_events():
    cleared, stored, evicted = pack(Anew(False, "x" * 300), held(2), Gone("cpu", 1, (b"h" * 8,)))
    assert isinstance(cleared, EngineBlocksCleared)
    assert (cleared.is_exact, cleared.reason, cleared.batch) == (False, "x" * 200, 7)
    assert isinstance(stored, EngineBlocksStored)
    assert (stored.count, stored.block_tokens, stored.held_blocks) == (2, 4, 9)
    assert tuple(stored.iterate_prefixes()) == held(2).prefixes
    assert isinstance(evicted, EngineBlocksEvicted)
    assert (evicted.medium, evicted.group, evicted.hashes) == ("cpu", 1, b"h" * 8)


def test_an_event_has_so_many_blocks_at_most():
    events = pack(held(ENGINE_EVENT_BLOCKS_MAX + 1))
    assert [one.count for one in events] == [ENGINE_EVENT_BLOCKS_MAX, 1]
    assert list(events[1].iterate_prefixes()) == [held(ENGINE_EVENT_BLOCKS_MAX + 1).prefixes[-1]]


def test_hashes_of_several_lengths_go_apart():
    mixed = Gone("gpu", 0, (b"a" * 8, b"b" * 32, b"c" * 32))
    assert [(one.hash_bytes, one.count) for one in pack(mixed)] == [(8, 1), (32, 2)]


async def test_a_report_is_repeated_with_the_same_ids(monkeypatch):
    monkeypatch.setattr(telling, "RETRY_S", 0.001)
    cluster = Cluster(Unavailable("away"), Unavailable("away"))
    await Teller(cluster, E1).tell([held(1)], 1, 1)
    assert len(cluster.reports) == 3
    assert cluster.reports[0] == cluster.reports[2]


async def test_what_makes_no_sense_is_not_repeated():
    with pytest.raises(InvalidArgument):
        await Teller(Cluster(InvalidArgument("no")), E1).tell([held(1)], 1, 1)


async def test_another_kv_log_is_noticed():
    teller = Teller(Cluster("one", "one", "two", "two"), E1)
    await teller.tell([held(1)], 1, 1)
    await teller.tell([held(1)], 2, 1)
    with pytest.raises(KvLogChanged):
        await teller.tell([held(1)], 3, 1)
    await teller.tell([held(1)], 3, 1)


async def test_reports_are_bounded_and_nothing_is_no_report():
    cluster = Cluster()
    await Teller(cluster, E1).tell([Gone("gpu", n, (b"h" * 8,)) for n in range(100)], 1, 1)
    assert [len(report) for report in cluster.reports] == [REPORT_EVENTS_MAX, 36]
    await Teller(cluster, E1).tell([], 1, 1)
    assert len(cluster.reports) == 2


def view(life, seq, engine=E1):
    return EngineView(
        engine=engine,
        state="exact",
        reason="",
        blocks=1,
        block_tokens=(4,),
        batch=1,
        at=BEGIN,
        heard_at=None,
        seq=Seq(seq),
        life=life,
    )


async def test_a_teller_that_was_replaced_is_told():
    teller = Teller(Cluster(), E1)
    teller.check_alone([view("other", 99)])  # it has not begun yet
    await teller.tell([held(1)], 1, 1)  # at position 1
    teller.check_alone([view("other", 1), view(teller.life, 9), view("x", 9, EngineId("e2"))])
    with pytest.raises(Rejected, match="Another watcher"):
        teller.check_alone([view("other", 2)])


def test_each_teller_has_a_life_of_its_own():
    assert Teller(Cluster(), E1).life != Teller(Cluster(), E1).life
