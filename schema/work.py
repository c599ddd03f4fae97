"""What a mover can be asked to do. Every kind of work is about one artifact."""

from __future__ import annotations

import msgspec

from tensorcast.schema.ids import ArtifactId, NodeId, Tier


class _Work(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", gc=False):
    artifact: ArtifactId


class Materialize(_Work, frozen=True, kw_only=True, tag="materialize"):
    """Pull the artifact into a tier of this node from other replicas. `sources` is the plan: all of
    them are asked at once, also those that are only being filled, and others only for what these
    cannot give; () leaves it to the mover. To DISK it goes through a small window of memory,
    however large it is. To GPU it goes straight where adapters reach the device, else through
    DRAM."""

    sources: tuple[NodeId, ...] = ()
    tier: Tier = Tier.DRAM


class Load(_Work, frozen=True, kw_only=True, tag="load"):
    """Read the artifact from this node's disk, or (tier OBJECT) from the store that all nodes
    share, or (tier GPU) from a device's memory, into its DRAM. `if_room`: only as long as nothing
    has to go for it."""

    if_room: bool = False
    tier: Tier = Tier.DISK


class Persist(_Work, frozen=True, kw_only=True, tag="persist"):
    """Write the artifact from this node's DRAM to its disk, or (tier OBJECT) to the store that all
    nodes share, or (tier GPU) to a device's memory."""

    tier: Tier = Tier.DISK


class Evict(_Work, frozen=True, kw_only=True, tag="evict"):
    """Drop this node's replica in a tier."""

    tier: Tier
    reason: str = ""


class Verify(_Work, frozen=True, kw_only=True, tag="verify"):
    """Check every chunk of this node's replica in a tier against its digest."""

    tier: Tier


Work = Materialize | Load | Persist | Evict | Verify


def kind_of(work: Work) -> str:
    """The name of the kind of work, as in `op show`."""
    return str(work.__struct_config__.tag)


def target_tier(work: Work) -> Tier | None:
    """The tier in which the work makes a replica; None if it makes none."""
    match work:
        case Materialize(tier=tier):
            return tier
        case Load():
            return Tier.DRAM
        case Persist(tier=tier):
            return tier
        case Evict() | Verify():
            return None
