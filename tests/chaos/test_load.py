"""What a client of the fault tests writes down."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from chaos.load import KEYS, Client, Record
from chaos.registers import Kind


class Silent:
    """An API that never answers."""

    actor = ""

    async def execute(self, command: object) -> None:
        await asyncio.Event().wait()


async def test_a_change_that_is_under_way_when_the_test_ends_may_have_happened():
    record = Record()
    client = Client(1, SimpleNamespace(nats=SimpleNamespace(url="nats://127.0.0.1:1")), record, 1)
    client._api = Silent()
    for change in (client._move, client._clear):
        calling = asyncio.create_task(change(KEYS[0]))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert calling.cancelled()
    noted = [(one.kind, one.is_sure) for _, one in record.operations[KEYS[0]]]
    assert noted == [(Kind.MOVED, False), (Kind.CLEARED, False)]
