"""Puts that were accepted: each is sealed in the background, whatever happens to the application.

An accepted put is as safe as the memory it lies in. The journal knows it, and the descriptor store
keeps its segment: the next life of a mover that was killed carries it out. A stop in good order
waits for it, or writes its bytes to the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.digesting import Digester
from tensorcast.movers.memory.hibernate import read_bytes, remove_image, write_bytes
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.sealing import Sealing
from tensorcast.movers.seals import AcceptedSeal, SealOutcome
from tensorcast.movers.threads import in_thread
from tensorcast.schema.errors import (
    Corrupt,
    NotFound,
    OutOfCapacity,
    TensorCastError,
    from_body,
    to_body,
)
from tensorcast.schema.socket import PutSealed

FINISH_S_MAX: Final = 3.0
DIGEST_BYTES_PER_S_MIN: Final = 1 << 30
LOOK_AGAIN_S: Final = 0.02

_logger = logging.getLogger(__name__)


class _Work(msgspec.Struct):
    """An accepted put under way."""

    seal: AcceptedSeal
    segment: Segment
    task: asyncio.Task[None]


class Pending:
    """The accepted puts of a node. `images` is the folder for bytes whose seal a stop could not
    wait for: it does so for `finish_s`, and for as long as digests may take."""

    def __init__(
        self,
        sealing: Sealing,
        pool: Pool,
        journal: Journal,
        images: Path,
        *,
        finish_s: float = FINISH_S_MAX,
    ) -> None:
        self._sealing = sealing
        self._pool = pool
        self._journal = journal
        self._images = images
        self._finish_s = finish_s
        self._works: dict[str, _Work] = {}
        self._kept: dict[str, Segment] = {}
        self._absent: list[AcceptedSeal] = []

    @property
    def total(self) -> int:
        """How many accepted puts are not sealed yet."""
        return len(self._journal.seals)

    @property
    def size_bytes(self) -> int:
        """The bytes of those puts."""
        return sum(seal.request.manifest.size_bytes for seal in self._journal.seals.values())

    async def check_room(self) -> None:
        """Raises OutOfCapacity when the disk has been too full for the journal for a while."""
        await self._journal.check_room()

    async def accept(self, seal: AcceptedSeal, segment: Segment, digester: Digester) -> None:
        """Takes the segment over; when this returns the put is safe. Raises OutOfCapacity."""
        try:
            await self._journal.keep_seal(seal)
        except BaseException:
            self._journal.seals.pop(seal.ticket, None)
            digester.stop()
            self._pool.release(segment)
            raise
        self._begin(seal, segment, digester)

    async def wait(self, ticket: str) -> PutSealed:
        """Waits for the seal. Raises what it failed with, NotFound for an unknown ticket."""
        while ticket in self._journal.seals:
            await self._wait_for([ticket])
        outcome = self._journal.find_outcome(ticket)
        if outcome is None:
            raise NotFound(
                f"Nothing is known of a put {ticket!r}.", hint="Look whether its key is set."
            )
        if outcome.sealed is not None:
            return outcome.sealed
        assert outcome.error is not None
        raise from_body(outcome.error)

    def is_awaited(self, key: str | None) -> bool:
        """Whether a put of this key is accepted and not sealed yet."""
        return key is not None and bool(self._tickets(key))

    async def settle_key(self, key: str | None) -> None:
        """Waits until no accepted put of this key is open, however they end."""
        while key is not None and (tickets := self._tickets(key)):
            await self._wait_for(tickets)

    def _tickets(self, key: str) -> list[str]:
        seals = self._journal.seals.values()
        return [seal.ticket for seal in seals if seal.request.key == key]

    async def _wait_for(self, tickets: Sequence[str]) -> None:
        """Until something has become of them; those that an earlier life left begin soon."""
        tasks = [self._works[ticket].task for ticket in tickets if ticket in self._works]
        if tasks:
            await asyncio.wait(tasks)
        else:
            await asyncio.sleep(LOOK_AGAIN_S)

    async def finish(self) -> None:
        """Waits for the seals; what the log does not take in time is written to the disk."""
        tasks = [work.task for work in self._works.values()]
        if tasks:
            sizes = [work.seal.request.manifest.size_bytes for work in self._works.values()]
            await asyncio.wait(tasks, timeout=self._finish_s + sum(sizes) / DIGEST_BYTES_PER_S_MIN)
        for work in list(self._works.values()):
            work.task.cancel()
            await asyncio.wait([work.task])
            await self._save(work)

    # ---- after a restart -----------------------------------------------------------------------

    def wanted(self) -> Mapping[str, AcceptedSeal]:
        """By the names of their segments, the puts that an earlier life had accepted."""
        return {seal.segment: seal for seal in self._journal.seals.values()}

    def adopt(self, name: str, fd: int) -> bool:
        """Takes over the descriptor of a segment that was kept for such a put. False: it is no
        segment."""
        try:
            self._kept[name] = self._pool.adopt(name, fd, is_touched=False)
        except Corrupt as error:
            _logger.warning("%s", error)
            return False
        return True

    async def reconcile(self) -> None:
        """Goes on with the puts of an earlier life, once this life has its epoch: those whose
        segment was kept, and later (`restore`) those that a stop wrote to the disk. Those whose
        replica is here were sealed."""
        for seal in list(self._journal.seals.values()):
            segment = self._kept.pop(seal.segment, None)
            sealed = self._sealing.is_registered(seal.segment)
            if segment is not None:
                self._begin(seal, segment, Digester(segment, seal.request.manifest.size_bytes))
            elif sealed is not None:
                await self._journal.settle_seal(seal.ticket, SealOutcome(sealed=sealed))
            else:
                self._absent.append(seal)

    async def restore(self, status: Callable[[str], None]) -> None:
        """Reads back what a stop wrote to the disk. Blocks nobody else."""
        for seal in self._absent:
            status("reading puts that were not sealed back into memory")
            try:
                await self._restore(seal)
            except TensorCastError as error:
                _logger.error("an accepted put of %s is lost: %s", seal.actor, error)
                await self._journal.settle_seal(seal.ticket, SealOutcome(error=to_body(error)))
        self._absent = []

    async def _restore(self, seal: AcceptedSeal) -> None:
        size_bytes = seal.request.manifest.size_bytes
        lent = await in_thread(self._pool.allocate, size_bytes)
        try:
            with lent.segment.memory[:size_bytes] as target:
                await in_thread(read_bytes, self._images, seal.ticket, target)
        except NotFound as error:
            self._pool.release(lent.segment)
            raise NotFound(
                "The bytes of the put were lost with the memory of the machine.",
                hint="Put them again.",
            ) from error
        except BaseException:
            self._pool.release(lent.segment)
            raise
        self._begin(seal, lent.segment, Digester(lent.segment, size_bytes))

    # ---- the work ------------------------------------------------------------------------------

    def _begin(self, seal: AcceptedSeal, segment: Segment, digester: Digester) -> None:
        task = asyncio.ensure_future(self._carry_out(seal, segment, digester))
        self._works[seal.ticket] = _Work(seal, segment, task)

    async def _carry_out(self, seal: AcceptedSeal, segment: Segment, digester: Digester) -> None:
        request, actor = seal.request, seal.actor
        try:
            sealed = await self._sealing.seal_patiently(segment, digester, request, actor)
            outcome = SealOutcome(sealed=sealed)
        except TensorCastError as error:
            _logger.warning("an accepted put of %s failed: %s", actor, error)
            outcome = SealOutcome(error=to_body(error))
        await self._journal.settle_seal(seal.ticket, outcome)
        del self._works[seal.ticket]
        await in_thread(remove_image, self._images, seal.ticket)

    async def _save(self, work: _Work) -> None:
        if work.seal.ticket not in self._works:  # it was sealed in the last moment
            return
        size_bytes = work.seal.request.manifest.size_bytes
        try:
            with work.segment.memory[:size_bytes] as content:
                await in_thread(write_bytes, self._images, work.seal.ticket, content)
        except OutOfCapacity as error:
            _logger.error("an accepted put of %s is not kept: %s", work.seal.actor, error)
