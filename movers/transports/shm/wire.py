"""What the two ends say: a message each way, JSON, in packets. Pure; nothing is used unchecked."""

from __future__ import annotations

from typing import Final

import msgspec
import xxhash

from tensorcast.schema.chunks import CHUNKS_MAX, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import ArtifactId, NodeId

PACKET_BYTES_MAX: Final = 1 << 15
RUNS_MAX: Final = 512
WAIT_S_MAX: Final = 0.25


class Look(msgspec.Struct, frozen=True):
    """Which chunks of an artifact are there? Answered at once if they are others than `known` many,
    else after `wait_s`. `wants`: and its descriptor."""

    artifact: ArtifactId
    known: int
    wait_s: float
    wants: bool


class Seen(msgspec.Struct, frozen=True):
    """They are `runs` (None: all). `why`: there is nothing to read, because it is not here
    (`is_lacking`), not yet (`is_later`), or cannot be read so."""

    runs: tuple[tuple[int, int], ...] | None = ()
    size_bytes: int = 0
    why: str = ""
    is_lacking: bool = False
    is_later: bool = False


_looks = msgspec.json.Decoder(Look)
_sights = msgspec.json.Decoder(Seen)


def name_of(cluster: str, node: NodeId) -> str:
    """The address of a node's socket, in the abstract namespace."""
    return f"\0tensorcast/{cluster}/{node}/shm"


def name_machine(boot: str, network: int) -> str:
    """The transport's name where sockets of these names are seen: one boot of one machine, one
    network namespace."""
    return f"shm-{xxhash.xxh3_64_hexdigest(f'{boot}/{network}'.encode())[:8]}"


def pack(message: Look | Seen) -> bytes:
    """A packet."""
    return msgspec.json.encode(message)


def parse_look(packet: bytes) -> Look:
    """Raises Corrupt."""
    try:
        found = _looks.decode(packet)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"A request over shm cannot be read: {error}.") from error
    if not 0 <= found.wait_s <= WAIT_S_MAX:
        raise Corrupt(f"A request over shm would wait for {found.wait_s} s.")
    return found


def parse_seen(packet: bytes) -> Seen:
    """Raises Corrupt."""
    try:
        found = _sights.decode(packet)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"An answer over shm cannot be read: {error}.") from error
    runs = found.runs or ()
    if len(runs) > RUNS_MAX or any(not 0 <= a < b <= CHUNKS_MAX for a, b in runs):
        raise Corrupt("The peer claims to hold chunks that cannot be.")
    return found


def runs_of(chunks: ChunkSet, total: int) -> tuple[tuple[int, int], ...] | None:
    """What is told of the chunks that are there; None when all are."""
    return None if len(chunks) >= total else chunks.ranges[:RUNS_MAX]
