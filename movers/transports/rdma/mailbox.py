"""Who may send a message, and when: the credits of the two ends of a rail. Pure.

A message that finds no posted buffer makes the queue pair fail, so an end sends only as many as the
other one has emptied. The last credit is kept for a message that gives credits back: or both ends
could wait for each other.
"""

from __future__ import annotations

from collections import deque

from tensorcast.movers.transports.rdma.wire import BUFFERS, Credits, Message, Push
from tensorcast.schema.errors import Corrupt

MESSAGES_MAX = 4096
"""Most messages that wait for credits: beyond it the other end is broken."""


class Credit:
    """The messages of one end that have not been sent, and the buffers of both ends."""

    def __init__(self, buffers: int = BUFFERS) -> None:
        self._buffers = buffers
        self._left = buffers
        self._emptied = 0
        self._waiting: deque[Message | Push] = deque()

    def add(self, message: Message | Push) -> None:
        """It will be sent in turn. Raises Corrupt when the other end lets too many pile up."""
        if len(self._waiting) >= MESSAGES_MAX:
            raise Corrupt("The peer takes no messages.")
        self._waiting.append(message)

    def received(self, credits_: int) -> None:
        """A message came: its buffer is posted again by the caller, and the other end has emptied
        so many. Raises Corrupt when that cannot be."""
        self._left += credits_
        self._emptied += 1
        if self._left > self._buffers or self._emptied > self._buffers:
            raise Corrupt("The peer counts its messages wrongly.")

    def next(self) -> tuple[int, Message | Push] | None:
        """What to send now, with the credits that go with it; None: nothing can or need be."""
        is_due = self._emptied >= self._buffers // 2
        if self._waiting and self._left > 1:
            message: Message | Push = self._waiting.popleft()
        elif is_due and self._left > 0:
            message = Credits()
        else:
            return None
        given, self._emptied = self._emptied, 0
        self._left -= 1
        return given, message
