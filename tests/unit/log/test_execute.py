from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

import pytest

from conformance.log import draft
from samples import artifact_id, manifest
from tensorcast.log.execute import ATTEMPTS_MAX, Origin, execute, plan
from tensorcast.log.follower import Follower
from tensorcast.log.identity import new_event_id
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    CordonNode,
    JoinNode,
    MoveKey,
    PinArtifact,
    SealArtifact,
    UncordonNode,
    UnpinArtifact,
)
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, NotFound, Unavailable
from tensorcast.schema.events import NodeCordoned, NodeUncordoned
from tensorcast.schema.ids import Epoch, Key, NodeId, Seq

ADA = "user:ada@desk"
A, B = artifact_id("a"), artifact_id("b")
N1 = NodeId("n1")


def seal(artifact=A) -> SealArtifact:
    return SealArtifact(artifact=artifact, kind="weights", manifest=manifest(), labels={})


def join(epoch: int = 1) -> JoinNode:
    return JoinNode(
        node=N1, epoch=Epoch(epoch), address="a:1", tiers={}, transports=("tcp",), labels={}
    )


class Late(MemoryLog):
    """Its readers see nothing until they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()

    async def read(self, *, after, batch_max=1000):
        await self.open.wait()
        async for batch in super().read(after=after, batch_max=batch_max):
            yield batch

    async def last_seq(self) -> Seq:
        self.open.set()
        return await super().last_seq()


@asynccontextmanager
async def following(log: MemoryLog):
    follower = Follower(log)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_commands_become_one_append_that_the_follower_has_seen():
    log, cause = MemoryLog(), new_event_id()
    async with following(log) as follower:
        outcome = await execute(
            log,
            follower,
            [seal(), MoveKey(key=Key("k"), artifact=A, expect=None)],
            actor=ADA,
            cause=cause,
            trace="t",
        )
        assert outcome.seq == 2
        assert follower.view.keys[Key("k")].artifact == A
        assert {(one.actor, one.cause, one.trace) for one in outcome.events} == {(ADA, cause, "t")}
        assert [one.expected for one in outcome.events] == [0, 0]


async def test_what_is_so_already_appends_nothing():
    log = MemoryLog()
    async with following(log) as follower:
        await execute(log, follower, [seal(), PinArtifact(artifact=A)], actor=ADA)
        outcome = await execute(log, follower, [PinArtifact(artifact=A)], actor=ADA)
        assert (outcome.events, outcome.seq) == ((), 2)
        assert await log.last_seq() == 2


async def test_each_command_sees_what_the_ones_before_it_will_have_done():
    log = MemoryLog()
    async with following(log) as follower:
        commands = [
            join(),
            CordonNode(node=N1),
            CordonNode(node=N1),
            UncordonNode(node=N1),
            CordonNode(node=N1),
        ]
        outcome = await execute(log, follower, commands, actor=ADA)
        kinds = [type(one.event) for one in outcome.events]
        assert kinds[1:] == [NodeCordoned, NodeUncordoned, NodeCordoned]
        assert [one.expected for one in outcome.events] == [0, None, None, None]
        assert follower.view.nodes[N1].cordoned
        assert follower.view.skipped == 0


async def test_a_stale_decision_is_taken_again():
    log = Late()
    await log.append([draft(one.event) for one in plan(ClusterView(), [join()], ORIGIN)[0]])
    async with following(log) as follower:
        outcome = await execute(log, follower, [join(2)], actor=ADA)
        assert follower.view.nodes[N1].epoch == 2
        assert [one.expected for one in outcome.events] == [1]


async def test_nothing_is_refused_on_an_old_view():
    log = Late()
    await log.append([draft(one.event) for one in plan(ClusterView(), [seal()], ORIGIN)[0]])
    async with following(log) as follower:
        await execute(log, follower, [PinArtifact(artifact=A)], actor=ADA)
        assert follower.view.artifacts[A].pinned
        with pytest.raises(NotFound):
            await execute(log, follower, [PinArtifact(artifact=B)], actor=ADA)


async def test_nothing_is_called_done_on_an_old_view():
    """Pinned as far as this process knows, but somebody has unpinned it: it is pinned again."""
    log = MemoryLog()
    async with following(log) as follower:
        await execute(log, follower, [seal(), PinArtifact(artifact=A)], actor=ADA)
        elsewhere = plan(follower.view, [UnpinArtifact(artifact=A)], ORIGIN)[0]
        await log.append(elsewhere)
        assert follower.view.artifacts[A].pinned
        outcome = await execute(log, follower, [PinArtifact(artifact=A)], actor=ADA)
        assert len(outcome.events) == 1
        assert follower.view.artifacts[A].pinned


async def test_derived_ids_let_twins_append_once():
    log, cause = MemoryLog(), new_event_id()
    async with following(log) as one, following(log) as other:
        outcomes = await asyncio.gather(
            *(
                execute(log, follower, [join()], actor="policy:x", cause=cause, derived=True)
                for follower in (one, other)
            )
        )
        assert await log.last_seq() == 1
        assert {outcome.seq for outcome in outcomes} == {1}


def test_derived_ids_do_not_depend_on_what_is_left_to_do():
    origin = Origin(actor="policy:x", cause=new_event_id(), derived=True)
    both, _ = plan(ClusterView(), [seal(A), seal(B)], origin)
    assert both[0].id != both[1].id
    twice, _ = plan(ClusterView(), [seal(A), seal(A), seal(B)], origin)
    assert twice[0].id == both[0].id
    assert twice[1].id != both[1].id
    assert plan(ClusterView(), [seal(A), seal(B)], origin)[0][1].id == both[1].id


ORIGIN = Origin(actor=ADA)


class Contested(MemoryLog):
    """Somebody else is always faster."""

    tries = 0

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        self.tries += 1
        raise Conflict("too late")


async def test_a_fight_that_is_always_lost_ends():
    log = Contested()
    async with following(log) as follower:
        with pytest.raises(Conflict, match="too late"):
            await execute(log, follower, [seal()], actor=ADA)
        assert log.tries == ATTEMPTS_MAX


async def test_an_unreachable_log_is_not_hidden():
    log = MemoryLog()
    async with following(log) as follower:
        await log.aclose()
        with pytest.raises(Unavailable):
            await execute(log, follower, [seal()], actor=ADA)
