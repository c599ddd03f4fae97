"""Who hears of a put that was accepted and failed."""

from __future__ import annotations

import gc
import logging

import pytest

from tensorcast.client.accepted import Accepted
from tensorcast.schema.errors import Conflict, InvalidArgument


class FailingClient:
    """Its mover refuses every seal; it is its own mover and position."""

    def __init__(self) -> None:
        self.mover = self.position = self

    async def ask(self, *_: object, timeout: float) -> object:
        raise Conflict("Another put of the key came first.")

    def expect(self, done: object) -> None:
        self.done = done


async def test_who_waited_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    accepted = Accepted(FailingClient(), "ticket")
    for _ in range(2):
        with pytest.raises(Conflict, match="came first"):
            await accepted.wait()
    with caplog.at_level(logging.WARNING):
        del accepted
        gc.collect()
    assert caplog.messages == []


async def test_who_never_waits_hears_of_it(caplog: pytest.LogCaptureFixture) -> None:
    client = FailingClient()
    accepted = Accepted(client, "ticket")
    await client.done
    with caplog.at_level(logging.WARNING):
        del accepted
        gc.collect()
    assert caplog.messages == ["A put that was accepted failed: Another put of the key came first."]


async def test_a_timeout_is_a_number_of_seconds() -> None:
    with pytest.raises(InvalidArgument, match="The timeout is -1"):
        await Accepted(FailingClient(), "ticket").wait(-1)
