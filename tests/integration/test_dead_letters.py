"""Events that a projection cannot take: parked, shown, and tried again."""

from __future__ import annotations

import asyncio
import random

import pytest
from sqlalchemy import text

from conformance.log import cordoned, draft
from controlplanes import CLUSTER, ControlPlane, open_hand
from histories import Dice
from stores import committed, database, engine, folded, persisting, stored_view, until
from tensorcast.client import Context, connect_async
from tensorcast.controlplane.store import dead_queries
from tensorcast.controlplane.store.load import fold, rebuild
from tensorcast.controlplane.store.write import load_position
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.api_store import DeadQuery
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.events import NodeJoined, NodeUncordoned
from tensorcast.schema.ids import Epoch, NodeId, Seq

__all__ = ["database", "engine"]  # fixtures


def joined(node: str) -> NodeJoined:
    return NodeJoined(
        node=NodeId(node), epoch=Epoch(1), address="a:1", tiers={}, transports=("tcp",)
    )


def uncordoned(node: str) -> NodeUncordoned:
    return NodeUncordoned(node=NodeId(node))


async def grow(log: MemoryLog, seed: int, count: int) -> None:
    dice, view = Dice(seed), await folded(log)
    goal = view.at + count
    while view.at < goal:
        await log.append(dice.drafts(view))
        view = fold(view, tuple(log._stored[view.at :]))


async def run(engine, *statements: str) -> None:
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def letters_of(engine) -> list[tuple[int, str]]:
    page = await dead_queries.find_letters(engine, DeadQuery())
    assert page.total == len(page.letters)
    return [(one.seq, one.fault) for one in page.letters]


async def rebuilt(engine) -> ClusterView:
    async with engine.connect() as connection:
        return await rebuild(connection, await load_position(connection))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_what_postgres_refuses_is_parked_and_taken_after_a_mend(database, engine, seed):
    """For any history and any moments: with a constraint that refuses some states the rest goes on;
    without it, tried again, everything is as the log says and as a rebuild gives."""
    log, chance = MemoryLog(), random.Random(seed)
    table = ("replicas", "operations")[seed]
    forbid = f"ALTER TABLE {table} ADD CONSTRAINT picky CHECK (hashtext(id) % 2 = 0)"
    await run(engine, forbid)
    await grow(log, seed, chance.randrange(50, 200))
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
        await grow(log, seed + 50, 150)
        await committed(progress, await log.last_seq())
        parked = await letters_of(engine)
        assert any(fault == "postgres" for _, fault in parked)
        view, whole = await stored_view(engine), await folded(log)
        assert view.skipped == len(parked)
        assert view.artifacts == whole.artifacts
        assert getattr(view, table) != getattr(whole, table)
        assert await rebuilt(engine) == view == await stored_view(engine)
        await run(engine, f"ALTER TABLE {table} DROP CONSTRAINT picky")
        assert await dead_queries.want_retry(engine) == len(parked)
        await until_none_wanted(engine)
        assert await letters_of(engine) == []
        await grow(log, seed + 90, 50)
        await committed(progress, await log.last_seq())
    assert await stored_view(engine) == await folded(log) == await rebuilt(engine)


async def until_none_wanted(engine) -> None:
    async with asyncio.timeout(60):
        while await dead_queries.count_wanted(engine):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)


async def test_what_still_cannot_be_taken_stays_and_says_when_it_was_tried(database, engine):
    log = MemoryLog()
    await log.append([draft(joined("n1")), draft(cordoned("n1"))])
    log._stored.append(Stored(Seq(3), "tc.default.log.node.n1", b"junk"))
    await log.append([draft(uncordoned("n1")), draft(joined("n2"))])
    async with persisting(log, database) as progress:
        await committed(progress, 5)
        assert await letters_of(engine) == [(3, "unreadable"), (4, "follows")]
        await dead_queries.want_retry(engine)
        await until_none_wanted(engine)
        page = await dead_queries.find_letters(engine, DeadQuery(seq=Seq(4)))
        [letter] = page.letters
        assert (letter.kind, letter.id, letter.type) == ("node", "n1", "node.uncordoned")
        assert letter.reason == "it waits for event 3"
        assert letter.tried_at is not None
    view = await stored_view(engine)
    assert view == await folded(log)
    assert view.nodes["n1"].cordoned
    assert "n2" in view.nodes
    async with persisting(log, database) as progress:
        await until(lambda: progress.is_active)
    assert await letters_of(engine) == [(3, "unreadable"), (4, "follows")]


async def test_read_models_of_another_fold_are_made_anew(database, engine):
    log = MemoryLog()
    await grow(log, 4, 80)
    async with persisting(log, database) as progress:
        await committed(progress, await log.last_seq())
    await run(engine, "UPDATE cursors SET fold = 'older'", "DELETE FROM replicas")
    async with persisting(log, database) as progress:
        await until(lambda: progress.is_active)
    assert await stored_view(engine) == await folded(log)


@pytest.mark.slow
async def test_a_cluster_goes_on_and_says_what_stands_still(tmp_path, nats_server, postgres_url):
    plane = ControlPlane(tmp_path, nats_server.url, postgres_url)
    await plane.start()
    try:
        async with open_hand(nats_server.url) as hand:
            await hand.join("n1", "n2")
            last = await hand.log.last_seq()
            await hand.log.nats.publish(f"tc.{CLUSTER}.log.node.n1", b"junk")
            await hand.until(lambda view: view.at > last)
            await hand.put("a", "n2")
            context = Context(cluster=CLUSTER, nats_url=nats_server.url)
            async with connect_async(context) as client, asyncio.timeout(60):
                while not (await client.api.dead_letters()).total:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
                page = await client.api.dead_letters()
                assert [(one.seq, one.id) for one in page.letters] == [(last + 1, "n1")]
                status = await client.api.status()
                assert any("node/n1 stands still" in one for one in status.problems)
                assert (await client.api.retry_dead_letters()).total == 1
                [job] = await client.api.start_job("rebuild")
                while job.ended_at is None:
                    await asyncio.sleep(0.05)
                    [job] = await client.api.jobs()
                assert (job.phase, job.problem) == ("done", None)
                assert job.done >= page.letters[0].seq
                assert (await client.api.dead_letters()).letters[0].seq == last + 1
    finally:
        plane.end()
