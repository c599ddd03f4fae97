"""One end of a rail that sends and receives messages; the two kinds of ends build on it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

from tensorcast.movers.transports.rdma.endpoint import Done, Endpoint
from tensorcast.movers.transports.rdma.line import Wake, is_gone
from tensorcast.movers.transports.rdma.mailbox import Credit
from tensorcast.movers.transports.rdma.statuses import SUCCESS, Meaning, meaning
from tensorcast.movers.transports.rdma.wire import (
    BUFFERS,
    Credits,
    Message,
    Push,
    pack,
    pack_push,
    parse,
    parse_push,
)
from tensorcast.schema.errors import Corrupt

SENDS: Final = 1 << 16
REQUESTS: Final = 1 << 32
PUSHES: Final = 1 << 48
"""Numbers of completions: below SENDS receive buffers, below REQUESTS send buffers, from PUSHES on
pushes."""

GLANCES_MAX: Final = 16
"""So often in a row it looks at the completions alone, for which the kernel need not be asked,
before it looks at its other descriptors too."""

LAST_WORDS_S: Final = 0.1
"""So long the adapter has to say why, when the peer has closed the connection."""


class RailError(Exception):
    """The rail is of no more use; `meaning` says why."""

    def __init__(self, meaning: Meaning) -> None:
        super().__init__(meaning.text)
        self.meaning = meaning


class Talk:
    """Owns an endpoint, the connection over TCP and a wake-up call until `close`. For one thread;
    `wake.ring` for all. `on_message` takes what the peer says, `on_push` what it has
    pushed (low bits of the grant, size), `on_done` what else has ended."""

    def __init__(
        self,
        connected: socket.socket,
        endpoint: Endpoint,
        on_message: Callable[[Message], None],
        on_done: Callable[[Done], None],
        on_push: Callable[[int, int], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.wake = Wake()
        self._line = connected
        self._credit = Credit()
        self._free = list(range(BUFFERS))
        self._on_message = on_message
        self._on_done = on_done
        self._on_push = on_push
        self._glances = 0

    def say(self, message: Message | Push) -> None:
        """Sends a message as soon as the peer can take it."""
        self._credit.add(message)

    def send(self) -> None:
        """Sends what can be sent."""
        while self._free and (found := self._credit.next()) is not None:
            credits_, message = found
            if isinstance(message, Push):
                self.endpoint.post_push(message, pack_push(credits_, message.grant))
                continue
            slot = self._free.pop()
            self.endpoint.post_message(SENDS + slot, slot, pack(credits_, message))

    def turn(self, timeout_s: float) -> None:
        """Waits until something happens, and takes it in. Raises RailError, Corrupt."""
        self._glances += 1
        if self._glances < GLANCES_MAX and self.take_in():
            return
        self._glances = 0
        ready = self.endpoint.wait((self._line.fileno(), self.wake.fd), timeout_s)
        if self.wake.fd in ready:
            self.wake.hear()
        self.take_in()
        if self._line.fileno() in ready and is_gone(self._line):
            self.endpoint.wait((), LAST_WORDS_S)
            self.take_in()
            raise RailError(Meaning(text="it closed the connection"))

    def take_in(self) -> bool:
        """Takes in what has ended by now; whether anything had."""
        ended = self.endpoint.poll()
        for done in ended:
            if done.status != SUCCESS:
                raise RailError(meaning(done.status))
            if done.number >= REQUESTS:
                self._on_done(done)
            elif done.number >= SENDS:
                self._free.append(done.number - SENDS)
            else:
                self._receive(done)
        return bool(ended)

    def _receive(self, done: Done) -> None:
        if done.pushed is not None:
            credits_, grant = parse_push(done.pushed)
            self.endpoint.post_buffer(done.number)
            self._credit.received(credits_)
            if self._on_push is None:
                raise Corrupt("The peer pushes what nobody asked for.")
            self._on_push(grant, done.size_bytes)
            return
        credits_, message = parse(self.endpoint.message(done.number, done.size_bytes))
        self.endpoint.post_buffer(done.number)
        self._credit.received(credits_)
        if not isinstance(message, Credits):
            self._on_message(message)

    def close(self) -> None:
        """When it returns, the adapter neither reads nor writes for this rail any more. Safe to
        repeat."""
        with contextlib.ExitStack() as closing:
            closing.callback(self.wake.close)
            closing.callback(self._line.close)
            closing.callback(self.endpoint.close)
