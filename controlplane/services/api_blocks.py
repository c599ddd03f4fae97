"""Verbs about KV blocks: what nodes hold, who holds one block, and what happened."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_history import page_of
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.api import (
    LIST_MAX,
    Ask,
    BlockCount,
    BlockHolder,
    BlockInfo,
    BlockMention,
    BlockQuery,
    BlockShow,
    EventInfo,
    NodeBlocks,
    SpaceBlocks,
)
from tensorcast.schema.block_events import BLOCK_EVENT_TYPES
from tensorcast.schema.blocks import unpack_key
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.ids import NodeId, Tier

SHOWN_MAX = 100


async def block_stats(desk: Desk, request: Ask) -> tuple[NodeBlocks, ...]:
    """The KV blocks of each node that is up, and of others that were not forgotten."""
    view = desk.follower.view
    held = await desk.blocks.holdings()
    counts: dict[str, dict[Tier, BlockCount]] = {}
    for (node, tier, _), one in live(view, held).items():
        tiers = counts.setdefault(node, {})
        tiers[Tier(tier)] = _more(tiers.get(Tier(tier)), one)
    up = [node for node in view.nodes.values() if node.status is NodeStatus.UP]
    return tuple(
        NodeBlocks(
            node=node.id,
            state=node.status.value,
            epoch=node.epoch,
            tiers=counts.get(node.id, {}),
            counters=_counters(desk, node.id),
        )
        for node in sorted(up, key=lambda node: node.id)
    )


def _counters(desk: Desk, node: NodeId) -> dict[str, int]:
    heard = desk.heartbeats.nodes.get(node)
    return heard.heartbeat.blocks if heard is not None else {}


async def block_spaces(desk: Desk, request: Ask) -> tuple[SpaceBlocks, ...]:
    """The spaces of which nodes that are up hold blocks, the largest first."""
    held = live(desk.follower.view, await desk.blocks.holdings())
    spaces: dict[str, dict[NodeId, dict[Tier, BlockCount]]] = {}
    for (node, tier, space), one in sorted(held.items()):
        tiers = spaces.setdefault(space, {}).setdefault(NodeId(node), {})
        tiers[Tier(tier)] = _more(None, one)
    found = [_space(space, nodes) for space, nodes in spaces.items()]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.space)))


def _space(space: str, nodes: dict[NodeId, dict[Tier, BlockCount]]) -> SpaceBlocks:
    counts = [count for tiers in nodes.values() for count in tiers.values()]
    return SpaceBlocks(
        space=space,
        blocks=sum(count.blocks for count in counts),
        bytes=sum(count.bytes for count in counts),
        nodes=nodes,
    )


def live(view: ClusterView, held: Mapping[Place, Holding]) -> dict[Place, Holding]:
    """What nodes hold that are up, in the life that said so."""
    return {place: one for place, one in held.items() if _is_live(view, place[0], one.epoch)}


def _is_live(view: ClusterView, node: str, epoch: int) -> bool:
    found = view.nodes.get(NodeId(node))
    return found is not None and found.status is NodeStatus.UP and found.epoch == epoch


def _more(count: BlockCount | None, one: Holding) -> BlockCount:
    blocks, size_bytes = (count.blocks, count.bytes) if count else (0, 0)
    return BlockCount(blocks=blocks + one.blocks, bytes=size_bytes + one.size_bytes)


async def show_block(desk: Desk, request: BlockShow) -> BlockInfo:
    """One block: who holds it, and the last events that named it. Raises NotFound when no event
    that is still there did."""
    try:
        key = unpack_key(request.key)
    except Corrupt as error:
        raise InvalidArgument(error.message, hint="Pack it as blocks.pack_key does.") from error
    mentions = await desk.blocks.find_mentions(key, request.node)
    if not mentions:
        raise NotFound(
            f"No node has told of block {key}.",
            hint="`tcctl kv ls` shows the spaces; old events are forgotten.",
        )
    return BlockInfo(
        space=key.space,
        prefix=key.prefix.hex(),
        layer_group=key.layer_group,
        rank=key.rank,
        holders=holders_of(desk.follower.view, mentions),
        events=tuple(map(_describe, reversed(mentions[:SHOWN_MAX]))),
    )


def holders_of(view: ClusterView, mentions: tuple[Mention, ...]) -> tuple[BlockHolder, ...]:
    """Who holds the block that is mentioned, the newest mention first, by node and tier."""
    last: dict[tuple[NodeId, Tier], Mention] = {}
    for one in mentions:
        if one.counts and _is_live(view, one.node, one.epoch):
            last.setdefault((one.node, one.tier), one)
    return tuple(
        BlockHolder(node=node, tier=tier, bytes=one.size_bytes, since=one.at, seq=one.seq)
        for (node, tier), one in sorted(last.items())
        if one.size_bytes
    )


def _describe(one: Mention) -> BlockMention:
    return BlockMention(
        seq=one.seq,
        at=one.at,
        type=one.type,
        node=one.node,
        epoch=one.epoch,
        tier=one.tier,
        bytes=one.size_bytes,
    )


async def block_events(desk: Desk, request: BlockQuery) -> tuple[EventInfo, ...]:
    """The KV events that match, in the order of the KV log."""
    if request.limit < 1:
        raise InvalidArgument(
            f"A limit of {request.limit} makes no sense.", hint="Ask for 1 or more."
        )
    if request.type is not None and request.type not in BLOCK_EVENT_TYPES:
        raise InvalidArgument(
            f"No KV event is of type {request.type!r}.",
            hint=f"The types are {', '.join(BLOCK_EVENT_TYPES)}.",
        )
    query = msgspec.structs.replace(request, limit=min(request.limit, LIST_MAX))
    return page_of(await desk.blocks.find_block_events(query), newest=query.newest)
