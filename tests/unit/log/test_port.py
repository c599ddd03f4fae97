from __future__ import annotations

import pytest

from conformance.log import cordoned, draft
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored, read_records
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq


async def test_records_are_decoded_batches():
    log = MemoryLog()
    await log.append([draft(cordoned("n1")), draft(cordoned("n2"))])
    batch = await anext(read_records(log, after=Seq(1)))
    assert [(one.seq, one.event) for one in batch] == [(2, cordoned("n2"))]


async def test_bytes_that_are_no_event_are_refused():
    log = MemoryLog()
    log._stored.append(Stored(Seq(1), "tc.c.log.node.n1", b"junk"))
    with pytest.raises(Corrupt, match="position 1"):
        await anext(read_records(log, after=Seq(0)))
