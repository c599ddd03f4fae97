"""The asking end of a rail: asks for pulls, READs their chunks, checks each as it is whole.

Made for a thread of its own. Several READs are on their way at a time, of one pull or of several;
they end in the order in which they were posted, so of all that is on its way when the rail fails
one chunk at most has come in part.
"""

from __future__ import annotations

import itertools
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from tensorcast.movers.core.digests import chunk_digest
from tensorcast.movers.core.reading import Read, Reading
from tensorcast.movers.core.transfer import Completion
from tensorcast.movers.transports.rdma.endpoint import Done, Endpoint
from tensorcast.movers.transports.rdma.statuses import Meaning
from tensorcast.movers.transports.rdma.talk import REQUESTS, RailError, Talk
from tensorcast.movers.transports.rdma.verbs import PyverbsError
from tensorcast.movers.transports.rdma.wire import (
    LANDINGS,
    PUSH_BYTES,
    Ask,
    Grant,
    Holds,
    Later,
    Message,
    Refuse,
    Release,
    chunks_of,
    low_bits,
)
from tensorcast.movers.transports.rdma.work import Posted, Work
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, TensorCastError

READ_BYTES: Final = 1 << 20
"""The size of a READ: long enough that what is around it costs little."""

PULLS_MAX: Final = 32
AHEAD_BYTES: Final = 16 << 20
"""A rail takes another pull when it has less than this to ask for."""

PROGRESS_S: Final = 0.03
"""What has come is told at most so often, but before anything is waited for."""

STALL_S: Final = 10.0
"""A peer that does not answer for so long is lost."""

READ_STALL_S: Final = 5.0
"""And so is the way when READs are under way and none ends for so long: adapters give up earlier,
but Soft-RoCE says nothing when its link goes down."""

ADDRESSES: Final = 1 << 64
IDLE_S: Final = 60.0
MOMENT_S: Final = 0.002

Deliver = Callable[[Sequence[Completion]], None]

_logger = logging.getLogger(__name__)


class _Asked:
    """A pull that the peer was asked for, and where it may be read."""

    def __init__(self, posted: Posted, number: int, now: float) -> None:
        self.posted = posted
        self.number = number
        self.asked_at = now
        self.told_at = now
        self.is_answered = False
        self.address = 0
        self.key = 0
        self.slot: int | None = None

    @property
    def reading(self) -> Reading:
        return self.posted.reading


class Rail:
    """Takes work until it is stopped or fails. Owns its end of the rail until `run` returns."""

    def __init__(
        self,
        connected: socket.socket,
        endpoint: Endpoint,
        work: Work,
        deliver: Deliver,
        *,
        verify: bool,
    ) -> None:
        self._talk = Talk(connected, endpoint, self._hear, self._end_read, self._land)
        self._slots = list(range(LANDINGS))
        self._endpoint = endpoint
        self._work = work
        self._deliver = deliver
        self._verify = verify
        self._polls = endpoint.device.settings.polls
        self._grants = itertools.count(1)
        self._numbers = itertools.count(REQUESTS)
        self._asked: dict[int, _Asked] = {}
        self._reads: dict[int, tuple[_Asked, Read]] = {}
        self._arrived_at = self._moved_at = 0.0
        self._is_stopping = False
        self.read_bytes = 0

    def stop(self) -> None:
        """Ends `run` soon. From any thread."""
        self._is_stopping = True
        self._talk.wake.ring()

    def run(self) -> Meaning | None:
        """Serves the work; why the rail failed, or None when it was stopped. What it had taken is
        in `left` then."""
        self._work.serve(self._talk.wake.ring)
        try:
            while not self._is_stopping:
                self._turn()
        except RailError as error:
            return error.meaning
        except (TensorCastError, PyverbsError, OSError) as error:
            return Meaning(text=str(error).rstrip("."))
        except Exception as error:  # nobody may wait for ever for what this thread was to bring
            _logger.exception("a rail ended by an error of its own")
            return Meaning(text=f"{type(error).__name__}: {error}".rstrip("."), is_path=True)
        finally:
            self._work.leave(self._talk.wake.ring)
            self._talk.close()
        return None

    def left(self) -> list[Posted]:
        """The pulls that had not ended when the rail did, ready to be asked for on another one."""
        for asked in self._asked.values():
            asked.reading.restart()
        return [asked.posted for asked in self._asked.values()]

    def close(self) -> None:
        """Instead of `run`, when there is nothing to be served any more."""
        self._talk.close()

    # ---- one turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic()
        self._take(now)
        self._start_reads()
        self._talk.send()
        self._tell(now)
        self._expire(now)
        self._talk.send()
        if self._polls and self._asked:
            time.sleep(0)  # lets other threads run
            self._talk.take_in()
        self._talk.turn(0.0 if self._polls and self._asked else self._rest_s(time.monotonic()))

    def _take(self, now: float) -> None:
        ahead = sum(a.reading.left_bytes for a in self._asked.values() if not a.reading.is_waiting)
        while len(self._asked) < PULLS_MAX and ahead < AHEAD_BYTES:
            posted = self._work.take()
            if posted is None:
                return
            asked = _Asked(posted, next(self._grants), now)
            self._asked[asked.number] = asked
            pull = posted.reading.pull
            where = pull.source_range
            landing = self._offer(asked, where.size)
            self._talk.say(
                Ask(asked.number, pull.artifact, where.offset, where.end, pull.wait_s > 0, landing)
            )
            ahead += where.size

    def _offer(self, asked: _Asked, size_bytes: int) -> tuple[int, int] | None:
        """A place where the peer may push a small pull to."""
        is_small = size_bytes <= PUSH_BYTES and asked.posted.region.is_host
        if not is_small or not self._slots or not self._endpoint.device.settings.pushes:
            return None
        asked.slot = self._slots.pop()
        return self._endpoint.landing(asked.slot)

    def _start_reads(self) -> None:
        """Posts READs in the order of the pulls, as many as may be on their way."""
        for asked in self._asked.values():
            while len(self._reads) < self._endpoint.reads_max:
                read = asked.reading.next_read(READ_BYTES)
                if read is None:
                    break
                self._post(asked, read)

    def _post(self, asked: _Asked, read: Read) -> None:
        region = asked.posted.region
        ours = region.register(self._endpoint.device)
        target = ours.base + read.target, ours.lkey
        skipped = read.source - asked.reading.pull.source_range.offset
        if not self._reads:
            self._moved_at = time.monotonic()
        number = next(self._numbers)
        self._reads[number] = asked, read
        self._endpoint.post_read(
            number, target, read.size_bytes, (asked.address + skipped, asked.key)
        )

    def _tell(self, now: float) -> None:
        """Tells of what has come, of each pull now and then."""
        news: list[Completion] = []
        for asked in self._asked.values():
            if asked.reading.is_stuck or now - asked.told_at >= PROGRESS_S:
                if (progress := asked.reading.take_progress()) is not None:
                    news.append(progress)
                asked.told_at = now
        if news:
            self._deliver(news)

    def _expire(self, now: float) -> None:
        """Ends the pulls whose next chunk has been waited for long enough. Raises RailError for a
        peer that does not answer, or a queue pair that does nothing."""
        if self._reads and now - self._moved_at > READ_STALL_S:
            raise RailError(Meaning(text="its READs do not end", is_path=True))
        for asked in list(self._asked.values()):
            if not asked.is_answered:
                if now - asked.asked_at > STALL_S:
                    raise RailError(Meaning(text="it does not answer", is_path=True))
            elif asked.reading.is_stuck and asked.reading.wait_s(now, self._arrived_at) <= 0:
                self._end(asked, asked.reading.miss())

    def _rest_s(self, now: float) -> float:
        """How long nothing needs to be done by itself."""
        if not self._asked:
            return IDLE_S
        rests = [STALL_S]
        for asked in self._asked.values():
            if not asked.is_answered:
                rests.append(asked.asked_at + STALL_S - now)
            elif asked.reading.is_stuck:
                rests.append(asked.reading.wait_s(now, self._arrived_at))
            else:
                rests.append(PROGRESS_S)
        return max(0.0, min(rests) + MOMENT_S)

    # ---- what the peer says ----------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        """Raises Corrupt for what cannot be."""
        if not isinstance(message, Grant | Later | Refuse | Holds):
            raise Corrupt("The peer asks where it should answer.")
        asked = self._asked.get(message.grant)
        if asked is None:
            return  # it was given up meanwhile
        asked.is_answered = True
        if not isinstance(message, Later):
            self._take_back(asked)
        match message:
            case Grant():
                if message.address + asked.reading.pull.source_range.size > ADDRESSES:
                    raise Corrupt("The peer lends memory beyond the last address.")
                asked.address, asked.key = message.address, message.key
                asked.reading.is_granted = True
                asked.reading.holds = chunks_of(message.runs)
            case Holds():
                asked.reading.holds = chunks_of(message.runs)
            case Refuse():
                why = asked.reading
                self._end(asked, why.lack() if message.is_lacking else why.refuse(message.why))
            case Later():
                asked.reading.holds = ChunkSet()

    def _take_back(self, asked: _Asked) -> None:
        """Nothing will be pushed there any more. (The slot of a pull that was given up before its
        peer has answered is not used again: the push may yet come.)"""
        if asked.slot is not None:
            self._slots.append(asked.slot)
            asked.slot = None

    # ---- what has come ---------------------------------------------------------------------

    def _end_read(self, done: Done) -> None:
        asked, read = self._reads.pop(done.number)
        reading = asked.reading
        self.read_bytes += read.size_bytes
        self._moved_at = self._arrived_at = time.monotonic()
        where = reading.arrive(read)
        if where is None:
            return
        self._start_reads()  # the adapter works on while this thread checks
        region = asked.posted.region
        digest = chunk_digest(region.content(*where)) if self._verify else None
        reading.settle(read.chunk, digest)
        if reading.is_done:
            self._end(asked, reading.end())

    def _land(self, grant: int, size_bytes: int) -> None:
        """The peer has pushed all of a pull. Raises Corrupt for what cannot be."""
        found = [one for one in self._asked.values() if low_bits(one.number) == grant]
        if not found:
            return  # it was given up meanwhile
        asked, reading = found[0], found[0].reading
        target = reading.pull.target_range
        if asked.slot is None or size_bytes != target.size:
            raise Corrupt("The peer pushes what nobody asked for.")
        self.read_bytes += size_bytes
        self._arrived_at = time.monotonic()
        content = self._endpoint.landed(asked.slot, size_bytes)
        asked.is_answered = reading.is_granted = True
        reading.holds = None
        # Chunks that an earlier rail brought were checked, and may be served already: these bytes
        # are others.
        while (read := reading.next_read(PUSH_BYTES)) is not None:
            skipped = read.target - target.offset
            part = content[skipped : skipped + read.size_bytes]
            asked.posted.region.memory[read.target : read.target + read.size_bytes] = part
            where = reading.arrive(read)
            assert where is not None, "no chunk is in two of them"
            digest = chunk_digest(asked.posted.region.content(*where)) if self._verify else None
            reading.settle(read.chunk, digest)
        self._take_back(asked)
        self._end(asked, reading.end(), is_lent=False)

    def _end(self, asked: _Asked, completion: Completion, *, is_lent: bool = True) -> None:
        del self._asked[asked.number]
        if is_lent:
            self._talk.say(Release(asked.number))
        self._deliver([completion])
