"""The servers that other tests stand on."""

from __future__ import annotations

import asyncpg

from samples import artifact_id
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.jetstream import connect_log
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import OperationIssued, OperationRetried, OperationStarted
from tensorcast.schema.ids import Epoch, NodeId, OperationId, Seq, Tier
from tensorcast.schema.work import Evict


async def test_the_last_issue_of_an_operation_is_found(nats_server):
    log = await connect_log(nats_server.url, "c", name="test")
    operation = OperationId("op-1")
    events = (
        OperationIssued(
            operation=operation,
            node=NodeId("n1"),
            work=Evict(artifact=artifact_id("a"), tier=Tier.DRAM, reason="room"),
            policy="evict",
        ),
        OperationStarted(operation=operation, epoch=Epoch(1), attempt=1),
        OperationRetried(operation=operation, attempt=2),
        OperationStarted(operation=operation, epoch=Epoch(1), attempt=2),
    )
    drafts = [
        Draft(id=new_event_id(), at=now(), actor="test", event=event, expected=Seq(seq))
        for seq, event in enumerate(events)
    ]
    for one in drafts:
        await log.append([one])
    found = [await log.find_issue(operation, Seq(until)) for until in range(5)]
    ids = [one.id for one in drafts]
    assert found == [None, ids[0], ids[0], ids[2], ids[2]]
    assert await log.find_issue(OperationId("op-2"), Seq(4)) is None
    await log.aclose()


async def test_both_servers_answer_and_come_back_after_a_crash(
    nats_server, postgres_server, postgres_url
):
    log = await connect_log(nats_server.url, "c", name="test")
    assert await log.last_seq() == 0
    await log.aclose()
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT 1") == 1
    postgres_server.kill()
    nats_server.kill()
    connection.terminate()
    nats_server.start()
    postgres_server.start()
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
