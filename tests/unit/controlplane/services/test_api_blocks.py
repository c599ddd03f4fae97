"""What the API answers about KV blocks."""

from __future__ import annotations

import msgspec
import pytest

from block_samples import SIZE, key
from cli_samples import event
from rigs import running_rig
from samples import BEGIN
from tensorcast.controlplane.services.api import answer
from tensorcast.controlplane.services.api_blocks import holders_of
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding
from tensorcast.schema import api
from tensorcast.schema.api import parse_reply
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import NodeLost
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier
from worlds import World

N1, N2 = NodeId("n1"), NodeId("n2")


def holding(blocks: int, epoch: int = 1) -> Holding:
    return Holding(epoch=epoch, blocks=blocks, size_bytes=blocks * SIZE, seq=1, at=BEGIN)


def mention(seq: int, node: NodeId = N1, **changes) -> Mention:
    one = Mention(Seq(seq), BEGIN, "blocks.stored", node, 1, Tier.DRAM, SIZE, True)
    return msgspec.structs.replace(one, **changes)


@pytest.fixture
async def rig():
    """Two nodes that are up, and one that is lost."""
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    async with running_rig() as rig:
        await rig.replay(world.events)
        await rig.append(NodeLost(node=NodeId("n3"), epoch=Epoch(1), silent_s=9.0))
        rig.blocks.held = {
            ("n1", "dram", "llama"): holding(3),
            ("n1", "dram", "qwen"): holding(2),
            ("n1", "disk", "llama"): holding(9),
            ("n2", "dram", "llama"): holding(7, epoch=5),
            ("n3", "dram", "llama"): holding(8),
        }
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


async def test_stats_count_nodes_that_are_up_in_the_life_that_spoke(rig):
    rig.heartbeats.hear_node(N1, b'{"epoch":1,"blocks":{"hits":4}}')
    found = await ask(rig, "blocks.stats", api.Ask(), tuple[api.NodeBlocks, ...])
    assert [one.node for one in found] == ["n1", "n2"]
    first, second = found
    assert first.tiers == {
        Tier.DRAM: api.BlockCount(blocks=5, bytes=5 * SIZE),
        Tier.DISK: api.BlockCount(blocks=9, bytes=9 * SIZE),
    }
    assert first.counters == {"hits": 4}
    assert (second.tiers, second.counters) == ({}, {})


async def test_spaces_come_with_the_largest_first(rig):
    found = await ask(rig, "blocks.spaces", api.Ask(), tuple[api.SpaceBlocks, ...])
    assert [(one.space, one.blocks) for one in found] == [("llama", 12), ("qwen", 2)]
    assert found[0].nodes == {
        "n1": {
            Tier.DRAM: api.BlockCount(blocks=3, bytes=3 * SIZE),
            Tier.DISK: api.BlockCount(blocks=9, bytes=9 * SIZE),
        }
    }


async def test_a_block_is_shown_with_its_holders_and_its_past(rig):
    rig.blocks.mentions = (mention(9, N2), mention(7))
    shown = await ask(rig, "blocks.show", api.BlockShow(key=key(7)), api.BlockInfo)
    assert (shown.space, shown.prefix) == ("llama", (7).to_bytes(16, "big").hex())
    assert [(one.node, one.seq) for one in shown.holders] == [("n1", 7), ("n2", 9)]
    assert [one.seq for one in shown.events] == [7, 9]
    only = api.BlockShow(key=key(7), node=N2)
    assert len((await ask(rig, "blocks.show", only, api.BlockInfo)).events) == 1


@pytest.mark.parametrize(
    ("mentions", "holders"),
    [
        ((), []),
        ((mention(5), mention(3)), [("n1", 5)]),
        ((mention(5, type="blocks.evicted", size_bytes=0), mention(3)), []),
        ((mention(5, counts=False), mention(3, counts=False)), []),
        ((mention(5, epoch=2),), []),
        ((mention(5, NodeId("n3")),), []),
        ((mention(5, NodeId("n9")),), []),
        ((mention(5, tier=Tier.DISK), mention(4, size_bytes=0)), [("n1", 5)]),
    ],
)
async def test_who_holds_a_block_follows_from_what_was_said_last(rig, mentions, holders):
    assert [(one.node, one.seq) for one in holders_of(rig.view, mentions)] == holders


async def test_what_nobody_told_of_is_not_found(rig):
    with pytest.raises(NotFound, match=f"llama/0/0/{(7).to_bytes(16, 'big').hex()}"):
        await ask(rig, "blocks.show", api.BlockShow(key=key(7)), api.BlockInfo)
    for wrong in (b"", b"x", bytes(200)):
        with pytest.raises(InvalidArgument, match="key"):
            await ask(rig, "blocks.show", api.BlockShow(key=wrong), api.BlockInfo)


async def test_events_are_answered_and_nonsense_is_refused(rig):
    rig.blocks.events = tuple(event(seq, "blocks.stored", {"node": "n1"}) for seq in (1, 2, 3))
    shape = tuple[api.EventInfo, ...]
    found = await ask(rig, "blocks.events", api.BlockQuery(since=Seq(1)), shape)
    assert [one.seq for one in found] == [2, 3]
    for wrong in (api.BlockQuery(limit=0), api.BlockQuery(type="node.joined")):
        with pytest.raises(InvalidArgument):
            await ask(rig, "blocks.events", wrong, shape)


async def test_trouble_with_the_copy_is_told_by_the_status(rig):
    rig.desk.block_progress.problem = "Postgres is away."
    status = await ask(rig, "status", api.Ask(), api.ClusterStatus)
    assert "KV events are not copied: Postgres is away." in status.problems
