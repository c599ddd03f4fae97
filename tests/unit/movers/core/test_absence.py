import pytest

from samples import manifest
from tensorcast.movers.core.absence import (
    explain_absence,
    explain_end,
    remember_damage,
    worse_of,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Fault, FaultKind

SOME = ChunkSet.of([1, 2])


def test_all_or_some_chunks_are_nowhere():
    everything = explain_absence("a", ChunkSet.full(4), manifest(4))
    assert everything.detail == "The bytes of artifact a are nowhere: no node that is up has them."
    assert "2 of the 4 chunks" in explain_absence("a", SOME, manifest(4)).detail


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (None, FaultKind.UNAVAILABLE),
        (FaultKind.NOT_FOUND, FaultKind.UNAVAILABLE),
        (FaultKind.TIMED_OUT, FaultKind.UNAVAILABLE),
        (FaultKind.CORRUPT, FaultKind.CORRUPT),
    ],
)
def test_the_last_fault_decides_what_follows(last, kind):
    fault = Fault(kind=last, detail="b fell silent.") if last else None
    found = explain_end("a", SOME, manifest(4), fault)
    assert found.kind is kind
    assert found.retryable
    assert found.detail.endswith("Last: b fell silent.") == (last is not None)


DAMAGE = Fault(kind=FaultKind.CORRUPT, detail="Node b sent chunk 1 damaged.")
ABSENT = Fault(kind=FaultKind.NOT_FOUND, detail="Node b does not have all chunks.")
LOST = Fault(kind=FaultKind.UNAVAILABLE, detail="No node has it.")


def test_a_peer_that_drops_what_it_sent_damaged_has_damaged_bytes():
    assert worse_of(DAMAGE, ABSENT) is DAMAGE
    assert worse_of(DAMAGE, None) is DAMAGE
    assert worse_of(DAMAGE, LOST) is LOST
    assert worse_of(None, ABSENT) is ABSENT
    assert worse_of(ABSENT, DAMAGE) is DAMAGE


def test_damage_of_an_earlier_try_is_told_once():
    again = remember_damage(DAMAGE, LOST)
    third = remember_damage(again, LOST)
    assert again == third
    assert again.kind is FaultKind.CORRUPT
    assert again.retryable
    assert again.detail == f"No node has it. What came before was damaged: {DAMAGE.detail}"
    assert remember_damage(None, LOST) is LOST
    assert remember_damage(LOST, LOST) is LOST
    full = Fault(kind=FaultKind.OUT_OF_CAPACITY, detail="Full.")
    assert remember_damage(DAMAGE, full) is full
