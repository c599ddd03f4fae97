"""What the conformance checks do not say about the log in memory."""

from __future__ import annotations

from conformance.log import cordoned, draft
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.ids import Seq


async def test_its_subjects_are_those_of_its_cluster():
    log = MemoryLog("blue")
    await log.append([draft(cordoned("n1"))])
    stored = await log.read_one(Seq(1))
    assert stored is not None
    assert stored.subject == "tc.blue.log.node.n1"
