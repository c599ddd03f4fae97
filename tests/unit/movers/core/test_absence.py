import pytest

from samples import manifest
from tensorcast.movers.core.absence import explain_absence, explain_end
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
