"""Readers of signals: a durable one is resumed where it stopped, by whoever gives its name."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from tensorcast.client.signal_feed import (
    NANOSECONDS,
    ConsumerInfo,
    Feed,
    drop_consumer,
    list_consumers,
    make_consumer,
    read_consumer,
)
from tensorcast.schema import subjects
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    Timeout,
    Unavailable,
)
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import EventId, Seq, derive_event_id
from tensorcast.schema.signals import (
    DATA_BYTES_MAX,
    Pattern,
    Signal,
    Topic,
    parse_pattern,
    parse_reader,
)
from tensorcast.schema.system_signals import DEAD

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats
    from nats.aio.msg import Msg

    from tensorcast.client.api import ControlPlane

ACK_S: Final = 30.0
ACK_S_MAX: Final = 3600.0
READ_AHEAD: Final = 32
UNACKNOWLEDGED_MAX: Final = 1000
IDLE_S_MAX: Final = 60
DEAD_AGAIN_S: Final = 5.0
PREFIX: Final = "signals_"
"""Durable readers have it before their names: other consumers of the log are none of them."""
NEW, FIRST, LAST = "new", "first", "last"
Start = str | int | datetime
_logger = logging.getLogger(__name__)


class Reader(NamedTuple):
    """A durable reader: what it reads, the position up to which all is acknowledged, how many
    signals wait for it and how many it has and has not acknowledged."""

    name: str
    pattern: str
    seq: int
    waiting: int
    unacknowledged: int
    redelivered: int
    made_at: str


class AsyncSignal:
    """A signal that a reader was given. A durable reader acknowledges it, or gets it again."""

    def __init__(
        self,
        signal: Signal,
        nats: Nats | None,
        reply: str,
        bury: Callable[[Signal, str], Awaitable[None]] | None = None,
        *,
        dead_after: int | None = None,
    ) -> None:
        self.signal = signal
        self._bury = bury
        self._dead_after = dead_after
        self._nats = nats
        self._reply = reply

    @property
    def seq(self) -> Seq:
        """Its position in the log."""
        return self.signal.seq

    @property
    def topic(self) -> Topic:
        return self.signal.topic

    @property
    def data(self) -> dict[str, object]:
        """What it says."""
        return self.signal.data

    @property
    def at(self) -> datetime:
        return self.signal.at

    @property
    def actor(self) -> str:
        """Who emitted it."""
        return self.signal.actor

    @property
    def id(self) -> EventId:
        """The id of its event."""
        return self.signal.id

    @property
    def delivery(self) -> int:
        """How often it was given to this reader, this time included."""
        return self.signal.delivery

    async def ack(self) -> None:
        """It is done with: a durable reader does not get it again. If that word gets lost, it comes
        again all the same. Safe to repeat; nothing to do for a reader that is not durable."""
        await self._say(b"+ACK")

    async def retry(self, *, after: float = 0.0) -> None:
        """Gives it back: it comes again, `after` so many seconds. Where that was the last of its
        tries (`dead_after`) it is buried instead."""
        if self._dead_after is not None and self.delivery >= self._dead_after:
            try:
                await self.bury(f"it was given {self._dead_after} times and not acknowledged")
            except (Unavailable, Timeout) as error:
                _logger.warning("signal %d cannot be buried yet: %s", self.seq, error)
                after = DEAD_AGAIN_S
            else:
                return
        await self._say(b'-NAK {"delay": %d}' % int(max(0.0, after) * NANOSECONDS))

    async def extend(self) -> None:
        """Work on it goes on: the time to acknowledge it begins anew."""
        await self._say(b"+WPI")

    async def bury(self, reason: str) -> None:
        """Gives it up: it is said on `dead.<reader>`, with the reason, and comes no more. Nothing
        to do for a reader that is not durable. Raises Unavailable; then it comes again."""
        if self._bury is not None:
            await self._bury(self.signal, reason)
            await self._say(b"+TERM")

    async def _say(self, word: bytes) -> None:
        if self._nats is not None and self._reply:
            await self._nats.publish(self._reply, word)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} at {self.seq}>"


class AsyncSignals:
    """Signals as they come: `async for signal in client.signals("weights.*")`.

    Without a durable name it begins where `start` says and forgets everything when it ends. With
    one, the cluster keeps which signals were acknowledged: each is given until it is, at least
    once, whoever was killed or restarted meanwhile; `start` counts only when the name is new, and
    several readers with one name share its signals.
    """

    def __init__(
        self,
        api: ControlPlane,
        pattern: str,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
        idle_s_max: float | None = None,
    ) -> None:
        """`idle_s_max`: the cluster forgets a durable reader that nobody reads for so long, and
        whoever still has it makes it anew where it was."""
        if not 0.1 <= ack_within <= ACK_S_MAX:
            raise InvalidArgument(
                f"A signal cannot be acknowledged within {ack_within} s.",
                hint=f"Give a time of 0.1 to {ACK_S_MAX:g} seconds.",
            )
        self.pattern = parse_pattern(pattern)
        self.durable = None if durable is None else parse_reader(durable)
        if dead_after is not None and dead_after < 1:
            raise InvalidArgument(f"A signal cannot be dead after {dead_after} times.")
        if dead_after is not None and durable is None:
            raise InvalidArgument(
                "Only a durable reader gives signals up: nobody counts how often another gets one.",
                hint="Name it: durable=..., or --durable NAME.",
            )
        self._dead_after = dead_after
        self._api = api
        self._start = check_start(start)
        self._ack_s = ack_within
        self._log = subjects.log_name(api.cluster)
        self._after = Seq(0)
        self._nats: Nats | None = None
        self._extended_s = 0.0
        self._idle_s_max = idle_s_max
        self._is_open = False
        # What it fetches counts as given: with a limit to that it fetches nothing ahead.
        batch = READ_AHEAD if dead_after is None else 1
        self._feed = Feed(api.connect, self._ensure, self._log, batch=batch)

    async def open(self) -> Self:
        """Takes its place: from now on no signal is missed. Safe to repeat. Raises Conflict when
        the durable name reads another pattern, Unavailable."""
        if not self._is_open:
            await self._feed.open()
            self._is_open = True
        return self

    async def next(self, timeout: float | None = None) -> AsyncSignal | None:
        """The next signal; None when none came within `timeout` seconds (None: for ever). It waits
        through restarts of the servers. Raises NotFound when the durable name was forgotten."""
        await self.open()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            message = await self._feed.take(left)
            if message is None:
                return None
            await self._keep_waiting()
            signal = await self._read(message)
            if signal is not None and not await self._is_dead(signal):
                return signal

    async def _is_dead(self, signal: AsyncSignal) -> bool:
        """Whether it was given too often; then it is buried, or comes again to be buried."""
        if self.durable is None or self._dead_after is None:
            return False
        if signal.delivery <= self._dead_after:
            return False
        await signal.retry()
        return True

    async def _say_dead(self, signal: Signal, reason: str) -> None:
        """On the topic of the dead; the same word has the same id, so it is said once."""
        said: dict[str, object] = {
            "topic": signal.topic,
            "seq": signal.seq,
            "id": signal.id,
            "delivery": signal.delivery,
            "reason": reason,
        }
        whole = {**said, "data": signal.data}
        fits = len(msgspec.json.encode(whole)) <= DATA_BYTES_MAX
        topic = f"{DEAD}.{self.durable}"
        id = derive_event_id(topic, signal.id, 0)
        await self._api.emit(topic, whole if fits else said, id=id)

    async def aclose(self) -> None:
        """Ends it; where a durable reader stands is kept, and what it has fetched ahead is there
        for the next one at once. Safe to repeat."""
        await self._feed.aclose(give_back=self.durable is not None)
        self._is_open = False

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncSignal:
        signal = await self.next()
        assert signal is not None, "without a time limit it waits"
        return signal

    async def _ensure(self, nats: Nats) -> str:
        """Makes its consumer, when it is not there."""
        self._nats = nats
        if self.durable is not None:
            return await self._ensure_durable(nats, self.durable)
        # The server forgets it soon after we are gone; a new one goes on where we are.
        name = "s" + secrets.token_hex(8)
        start: Start = self._after + 1 if self._after else self._start
        config = consumer_config(name, self._subjects, start, ack_s=None)
        info = await make_consumer(nats, self._log, config)
        if self._start == NEW:  # which means another place for the next consumer
            self._start = info.delivered.stream_seq + 1
        return info.name

    async def _ensure_durable(self, nats: Nats, durable: str) -> str:
        name = PREFIX + durable
        try:
            info = await read_consumer(nats, self._log, name)
        except NotFound:
            if self._is_open and self._idle_s_max is None:
                raise NotFound(
                    f"The reader {durable!r} was forgotten.", hint="Open it anew."
                ) from None
            start: Start = self._after + 1 if self._after else self._start
            config = consumer_config(
                name, self._subjects, start, ack_s=self._ack_s, idle_s_max=self._idle_s_max
            )
            info = await make_consumer(nats, self._log, config)
        if info.config.filter_subject != self._subjects:
            raise Conflict(
                f"The reader {durable!r} reads other topics than {self.pattern!r}.",
                hint="Choose another name, or forget it: `tcctl signal forget`.",
            )
        return info.name

    @property
    def _subjects(self) -> str:
        return subjects.signal_subjects(self._api.cluster, self.pattern)

    async def _keep_waiting(self) -> None:
        """Signals that wait here because the one before takes long are not to be given to others
        for that."""
        now_s = asyncio.get_running_loop().time()
        if self._nats is None or now_s - self._extended_s < self._ack_s / 3:
            return
        self._extended_s = now_s
        if self.durable is not None:
            for message in self._feed.waiting:
                if message.reply.startswith("$JS.ACK."):
                    await self._nats.publish(message.reply, b"+WPI")

    async def _read(self, message: Msg) -> AsyncSignal | None:
        """The signal in a message; None for bytes that are none, which nobody shall get again."""
        seq, delivery = parse_reply(message.reply)
        self._after = max(self._after, seq)
        try:
            recorded = decode(message.data, seq)
        except Corrupt as error:
            _logger.warning("%s", error)
            recorded = None
        if recorded is None or not isinstance(recorded.event, SignalEmitted):
            if self.durable is not None and self._nats is not None:
                await self._nats.publish(message.reply, b"+TERM")
            return None
        signal = Signal(
            seq=seq,
            topic=recorded.event.topic,
            at=recorded.at,
            actor=recorded.actor,
            data=recorded.event.data,
            id=recorded.id,
            delivery=delivery,
        )
        if self.durable is None:
            return AsyncSignal(signal, self._nats, "")
        return AsyncSignal(
            signal, self._nats, message.reply, self._say_dead, dead_after=self._dead_after
        )


def check_start(start: Start) -> Start:
    """`start` as it is. Raises InvalidArgument for what says no place in the log."""
    is_moment = isinstance(start, datetime) and start.tzinfo is not None
    is_position = isinstance(start, int) and not isinstance(start, bool) and start > 0
    if start not in (NEW, FIRST, LAST) and not is_moment and not is_position:
        raise InvalidArgument(
            f"Signals cannot be read from {start!r}.",
            hint="Say 'new', 'first', 'last' (of each topic), a position, or a time with a zone.",
        )
    return start


def consumer_config(
    name: str,
    filter_subject: str,
    start: Start,
    *,
    ack_s: float | None,
    idle_s_max: float | None = None,
) -> dict[str, object]:
    """How a consumer of signals is made; with `ack_s` a durable one. Pure."""
    config: dict[str, object] = {
        "name": name,
        "filter_subject": filter_subject,
        "replay_policy": "instant",
        **_deliver_policy(start),
    }
    if ack_s is None:
        return config | {
            "ack_policy": "none",
            "inactive_threshold": IDLE_S_MAX * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
    forgotten = {} if idle_s_max is None else {"inactive_threshold": int(idle_s_max * NANOSECONDS)}
    return (
        config
        | forgotten
        | {
            "durable_name": name,
            "ack_policy": "explicit",
            "ack_wait": int(ack_s * NANOSECONDS),
            "max_ack_pending": UNACKNOWLEDGED_MAX,
            "max_deliver": -1,
        }
    )


def _deliver_policy(start: Start) -> dict[str, object]:
    if isinstance(start, datetime):
        return {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"deliver_policy": {NEW: "new", FIRST: "all", LAST: "last_per_subject"}[start]}


def parse_reply(reply: str) -> tuple[Seq, int]:
    """The position of a message in the log and how often it was delivered, from the subject on
    which it is acknowledged."""
    parts = reply.split(".")
    first = 4 if len(parts) == 9 else 6
    return Seq(int(parts[first + 1])), int(parts[first])


async def list_readers(nats: Nats, cluster: str) -> tuple[Reader, ...]:
    """The durable readers of signals, by name."""
    found = await list_consumers(nats, subjects.log_name(cluster))
    readers = [
        _describe(info, cluster) for info in found if info.config.durable_name.startswith(PREFIX)
    ]
    return tuple(sorted(readers))


def _describe(info: ConsumerInfo, cluster: str) -> Reader:
    everything = subjects.signal_subjects(cluster, Pattern(""))
    return Reader(
        name=info.name.removeprefix(PREFIX),
        pattern=info.config.filter_subject.removeprefix(everything),
        seq=info.ack_floor.stream_seq,
        waiting=info.num_pending,
        unacknowledged=info.num_ack_pending,
        redelivered=info.num_redelivered,
        made_at=info.created,
    )


async def forget_reader(nats: Nats, cluster: str, durable: str) -> None:
    """Forgets a durable reader and where it stands. Raises NotFound."""
    try:
        await drop_consumer(nats, subjects.log_name(cluster), PREFIX + parse_reader(durable))
    except NotFound as error:
        raise NotFound(
            f"There is no reader {durable!r}.", hint="`tcctl signal readers` shows them."
        ) from error
