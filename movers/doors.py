"""The tickets of this mover: made for what it pulls, asked of those who pull from it.

The key is drawn at each start and is nowhere but in memory and in the mover's journal; the log has
its public half. So a ticket is checked against the log as this mover has seen it, also while the
control plane is away. A mover that starts while NATS is away too has no other key than the one that
the log knows: it goes on with that of its last life, in the name of that.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from tensorcast.log.follower import Follower
from tensorcast.movers.core.doors import is_expected, judge, needs_ticket
from tensorcast.movers.journal import LastLife
from tensorcast.movers.reports import Life, Reporter
from tensorcast.schema import subjects
from tensorcast.schema.block_wire import parse_ticket_request
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import NodeId
from tensorcast.schema.nats_rights import SECURITY_TOPIC
from tensorcast.schema.signals import parse_topic
from tensorcast.schema.tickets import (
    BLOCKS,
    NONCE_BYTES,
    TICKET_S,
    Challenge,
    Refusal,
    Ticket,
    TicketRefused,
    parse_ticket,
    sign_ticket,
)

LEARN_S: Final = 3.0
"""So long a source waits to hear of the life of a caller: its log may be a moment behind."""
LOOK_S: Final = 0.01
REPORT_S: Final = 5.0
"""Refusals are told in one signal at most so often."""
TICK_S: Final = 0.25
KINDS_MAX: Final = 64
"""So many callers and reasons are told apart in one signal; the rest is only counted."""
REFUSED_TOPIC: Final = parse_topic(f"{SECURITY_TOPIC}.ticket_refused")


class Seal:
    """Signs the tickets of one mover; as long as the log does not know its life, with the key of
    the `last` one and for that."""

    def __init__(self, life: Life, last: LastLife | None = None) -> None:
        self._life = life
        self._known = last.joined if last and last.seed else None
        self._key = (
            Ed25519PrivateKey.from_private_bytes(bytes.fromhex(last.seed))
            if last and last.seed
            else Ed25519PrivateKey.generate()
        )

    def begin(self) -> None:
        """The log knows this life: from now on tickets are signed for it."""
        self._known = None

    @property
    def seed(self) -> str:
        """The secret half, for the journal, hexadecimal."""
        return self._key.private_bytes_raw().hex()

    @property
    def public_key(self) -> str:
        """For the log, hexadecimal."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, source: NodeId, what: str, challenge: Challenge, user: str = "") -> bytes:
        """A ticket for what a source was asked for. Safe in any thread."""
        ticket = Ticket(
            node=self._life.node,
            epoch=self._life.epoch if self._known is None else self._known,
            source=source,
            what=what,
            nonce=challenge.nonce,
            until=challenge.at + TICKET_S,
            user=user,
        )
        return sign_ticket(ticket, self._key)

    def sign_blocks(self, source: NodeId, challenge: Challenge, user: str) -> bytes:
        """A ticket for the blocks of a source, for an application of this node."""
        return self.sign(source, BLOCKS, challenge, user)


async def sign_for_users(nats: Client, cluster: str, life: Life, seal: Seal) -> None:
    """From now on signs tickets to this node's own blocks for applications that are on no node.
    Who asks is in the subject, where only that user may send."""

    async def answer(message: Msg) -> None:
        with suppress(Corrupt, NatsError):
            wanted = parse_ticket_request(message.data)
            user = subjects.parse_ticket_subject(message.subject)
            if wanted.source == life.node:
                await message.respond(seal.sign_blocks(life.node, wanted.challenge, user))

    await nats.subscribe(subjects.ticket_subjects(cluster, life.node), cb=answer)


class RefusedCalls(msgspec.Struct, kw_only=True):
    """How often one caller was refused for one reason, and when (seconds since 1970)."""

    reason: Refusal
    caller: str
    host: str
    count: int
    first_at: float
    last_at: float


class Refusals:
    """Gathers what was refused, in any thread, and tells it in signals."""

    def __init__(self, reporter: Reporter, life: Life) -> None:
        self._reporter = reporter
        self._life = life
        self._lock = threading.Lock()
        self._calls: dict[tuple[Refusal, str, str], RefusedCalls] = {}
        self._others = 0

    def note(self, refused: TicketRefused, host: str) -> None:
        """One more. Never blocks."""
        now = time.time()
        name = (refused.refusal, refused.caller[:64], host)
        with self._lock:
            known = self._calls.get(name)
            if known is not None:
                known.count, known.last_at = known.count + 1, now
            elif len(self._calls) < KINDS_MAX:
                reason, caller, _ = name
                self._calls[name] = RefusedCalls(
                    reason=reason, caller=caller, host=host, count=1, first_at=now, last_at=now
                )
            else:
                self._others += 1

    async def run(self) -> None:
        """Tells of them, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            command = self._take()
            if command is not None:
                await self._reporter.report([command], None)
                await asyncio.sleep(REPORT_S)

    def _take(self) -> EmitSignal | None:
        with self._lock:
            calls, others = list(self._calls.values()), self._others
            self._calls, self._others = {}, 0
        if not calls:
            return None
        data = {"node": self._life.node, "refused": msgspec.to_builtins(calls), "others": others}
        return EmitSignal(topic=REFUSED_TOPIC, data=data)


class Door:
    """Asks for tickets and checks them, in the threads of servers. Satisfies
    `transports.base.Door`."""

    def __init__(
        self,
        node: NodeId,
        follower: Follower,
        refusals: Refusals,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._follower = follower
        self._refusals = refusals
        self._clock = clock

    def challenge(self, caller: NodeId | None) -> Challenge | None:
        """What a caller must sign; None when it needs no ticket."""
        if not needs_ticket(self._follower.view, caller):
            return None
        return Challenge(secrets.token_hex(NONCE_BYTES), self._clock())

    def admit(self, shown: bytes, challenge: Challenge, host: str) -> Ticket:
        """The ticket that answers a challenge; waits a moment for the log when it does not know
        the caller's life. Raises TicketRefused."""
        try:
            presented = parse_ticket(shown, self._node)
            view = self._await_life(presented.ticket)
            return judge(view, presented, self._node, challenge, self._clock())
        except TicketRefused as refused:
            self._refusals.note(refused, host)
            raise

    def _await_life(self, ticket: Ticket) -> ClusterView:
        deadline = time.monotonic() + LEARN_S
        while not is_expected(self._follower.view, ticket) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return self._follower.view

    def refuse(self, refusal: Refusal, caller: str, host: str) -> TicketRefused:
        """The error for a caller without a good ticket, which is noted."""
        refused = TicketRefused(refusal, self._node, caller)
        self._refusals.note(refused, host)
        return refused
