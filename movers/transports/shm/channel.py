"""The asking end: a thread that copies chunks out of the peer's segment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.reading import Reading
from tensorcast.movers.core.transfer import Broken, Completion, Pull
from tensorcast.movers.transports.base import (
    Capabilities,
    MemoryKind,
    Region,
    TakesAnyMemory,
)
from tensorcast.movers.transports.shm import wire
from tensorcast.movers.transports.shm.server import check_same_user
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, Unavailable
from tensorcast.schema.ids import ArtifactId, NodeId

STEP_BYTES: Final = 4 << 20
ANSWER_S: Final = 10.0
_CLOSED: Final = "the channel is closed"


class ShmChannel:
    """Satisfies `base.Channel`. Made, used and closed in the event loop that runs then."""

    def __init__(self, peer: NodeId, connected: socket.socket, *, verify: bool) -> None:
        self._peer = peer
        self._connected = connected
        self._verify = verify
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._posted: list[tuple[Reading, Region]] = []
        self._completed: list[Completion] = []
        self._arrived = asyncio.Event()
        self._why_lost = ""
        self.is_closed = False
        self._thread = threading.Thread(target=self._run, name="shm-pull", daemon=True)
        self._thread.start()

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Starts pulls. Never blocks."""
        now = time.monotonic()
        new = [(Reading(pull, now, target.share, way="shm"), target) for pull in pulls]
        with self._changed:
            if not self._why_lost:
                self._posted.extend(new)
                self._changed.notify()
                return
        self._deliver([reading.lose(self._why_lost) for reading, _ in new])

    async def completions(self) -> Sequence[Completion]:
        """As promised by the port; () once the channel is closed."""
        await self._arrived.wait()
        with self._changed:
            if self.is_closed:
                return ()
            completed, self._completed = self._completed, []
            self._arrived.clear()
        return completed

    async def aclose(self) -> None:
        """As promised by the port."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        with contextlib.suppress(OSError):
            self._connected.shutdown(socket.SHUT_RDWR)
        self._arrived.set()
        await asyncio.shield(self._loop.run_in_executor(None, self._thread.join))

    def _deliver(self, completions: Sequence[Completion]) -> None:
        if not completions:
            return
        with self._changed:
            self._completed.extend(completions)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(self._arrived.set)

    # ---- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        copying = _Copying(self._connected, self._verify, self)
        why = _CLOSED
        try:
            while (new := self._take(block=not copying.work)) is not None:
                copying.work += new
                self._deliver(copying.turn())
        except (OSError, EOFError, Corrupt) as error:
            why = str(error).rstrip(".") or "it closed the connection"
        finally:
            copying.close()
            with self._changed:
                self._why_lost = why
                lost = [*copying.work, *self._posted]
                self._posted = []
            self._deliver([reading.lose(why) for reading, _ in lost])

    def _take(self, *, block: bool) -> list[tuple[Reading, Region]] | None:
        """What was posted; None once the channel is closed."""
        with self._changed:
            while block and not self._posted and not self.is_closed:
                self._changed.wait()
            posted, self._posted = self._posted, []
            return None if self.is_closed else posted


class _Copying:
    """The pulls under way, and the segments that they read: their descriptors, by artifact."""

    def __init__(self, connected: socket.socket, verify: bool, channel: ShmChannel) -> None:
        self._connected = connected
        self._verify = verify
        self._channel = channel
        self.work: list[tuple[Reading, Region]] = []
        self._fds: dict[ArtifactId, int] = {}
        self._known: dict[ArtifactId, int] = {}
        self._arrived_at = 0.0

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def turn(self) -> list[Completion]:
        """Asks once for each artifact, copies what is there, ends what is done or too late."""
        done: list[Completion] = []
        wait_s = self._wait_s()
        for artifact in dict.fromkeys(reading.pull.artifact for reading, _ in self.work):
            mine = [one for one in self.work if one[0].pull.artifact == artifact]
            seen = self._look(artifact, wait_s)
            for reading, region in mine:
                end = self._advance(reading, region, seen)
                if end is not None:
                    done.append(end)
                if isinstance(end, Broken) or reading.is_done:
                    self.work.remove((reading, region))
        return done

    def _wait_s(self) -> float:
        """How long the peer may wait for a change: not at all for what has not been asked yet."""
        now = time.monotonic()
        if not self.work or not all(reading.is_granted for reading, _ in self.work):
            return 0.0
        rests = [reading.wait_s(now, self._arrived_at) for reading, _ in self.work]
        return max(0.0, min(wire.WAIT_S_MAX, *rests))

    def _look(self, artifact: ArtifactId, wait_s: float) -> wire.Seen:
        """Raises OSError, EOFError, Corrupt."""
        wants = artifact not in self._fds
        known = -1 if wants else self._known.get(artifact, -1)
        self._connected.sendall(wire.pack(wire.Look(artifact, known, wait_s, wants)))
        packet, fds, _, _ = socket.recv_fds(self._connected, wire.PACKET_BYTES_MAX, 1)
        for fd in fds[1:] if wants else fds:
            os.close(fd)
        if wants and fds:
            self._fds[artifact] = fds[0]
        if not packet:
            raise EOFError("it closed the connection")
        seen = wire.parse_seen(packet)
        if seen.why:
            self._forget(artifact)
        elif artifact not in self._fds or os.fstat(self._fds[artifact]).st_size < seen.size_bytes:
            raise Corrupt("The peer lends a segment that is none.")
        else:
            self._known[artifact] = sum(b - a for a, b in seen.runs or ())
        return seen

    def _forget(self, artifact: ArtifactId) -> None:
        if (fd := self._fds.pop(artifact, None)) is not None:
            os.close(fd)

    def _advance(self, reading: Reading, region: Region, seen: wire.Seen) -> Completion | None:
        if seen.is_lacking:
            return reading.lack()
        if seen.why and not seen.is_later:
            return reading.refuse(seen.why)
        reading.is_granted = True
        reading.holds = None if seen.runs is None else ChunkSet.merge(seen.runs)
        if reading.pull.source_range.end <= seen.size_bytes:
            self._copy(reading, region)
        if reading.is_done:
            return reading.end()
        now = time.monotonic()
        if reading.wait_s(now, self._arrived_at) <= 0:
            return reading.miss()
        return reading.take_progress()

    def _copy(self, reading: Reading, region: Region) -> None:
        fd = self._fds[reading.pull.artifact]
        while not self._channel.is_closed and (read := reading.next_read(STEP_BYTES)) is not None:
            with region.memory[read.target : read.target + read.size_bytes] as part:
                if os.preadv(fd, [part], read.source) != read.size_bytes:
                    raise Corrupt("The peer's segment is shorter than it said.")
            self._arrived_at = time.monotonic()
            where = reading.arrive(read)
            if where is None:
                continue
            with region.memory[slice(*where)] as content:
                digest = chunk_digest(content) if self._verify else None
            reading.settle(read.chunk, digest)


class ShmTransport(TakesAnyMemory):
    """Satisfies `base.Transport`: pulls from the movers of this machine. `address` says nothing.
    `name` is another one on each machine, so that none is asked that cannot be reached so."""

    capabilities = Capabilities(
        sources=frozenset({MemoryKind.DRAM}),
        targets=frozenset({MemoryKind.DRAM}),
        crosses_nodes=False,
        pulls_in_flight_max=8,
    )

    def __init__(self, cluster: str, *, verify: bool = True, name: str = "shm") -> None:
        self.name = name
        self._cluster = cluster
        self._verify = verify
        self._channels: list[ShmChannel] = []

    async def connect(
        self, peer: NodeId, address: str, artifact: ArtifactId | None = None
    ) -> ShmChannel:
        """Raises Unavailable when no mover of that name is on this machine, PermissionDenied when
        it is another user's."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.settimeout(ANSWER_S)
            connected.connect(wire.name_of(self._cluster, peer))
            check_same_user(connected)
        except OSError as error:
            connected.close()
            raise Unavailable(f"Node {peer} is not on this machine.", node=peer) from error
        except BaseException:
            connected.close()
            raise
        channel = ShmChannel(peer, connected, verify=self._verify)
        self._channels = [c for c in self._channels if not c.is_closed]
        self._channels.append(channel)
        return channel

    async def aclose(self) -> None:
        """Closes its channels. Safe to repeat."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.aclose()
