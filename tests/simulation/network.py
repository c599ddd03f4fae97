"""A log in memory as each process of a cluster sees it: late, and not always answering."""

from __future__ import annotations

import asyncio
from random import Random

from tensorcast.log.memory import MemoryLog
from tensorcast.schema.errors import Unavailable


class FarLog:
    """One process's way to a shared log. An append may take its time, never arrive, or arrive
    without an answer; reading lags behind."""

    def __init__(self, log: MemoryLog, random: Random, *, delay_s: float, loss: float) -> None:
        self.log = log
        self._random = random
        self._delay_s = delay_s
        self._loss = loss

    async def append(self, drafts):
        await self._travel("never arrived")
        seqs = await self.log.append(drafts)
        await self._travel("was not answered")
        return seqs

    async def read(self, *, after, batch_max=1000):
        async for batch in self.log.read(after=after, batch_max=batch_max):
            await asyncio.sleep(self._random.random() * self._delay_s)
            yield batch

    async def last_seq(self):
        await self._travel("was not answered")
        return await self.log.last_seq()

    async def read_one(self, seq):
        return await self.log.read_one(seq)

    async def aclose(self) -> None:
        return None

    async def _travel(self, fate: str) -> None:
        await asyncio.sleep(self._random.random() * self._delay_s)
        if self._random.random() < self._loss:
            raise Unavailable(f"The message {fate}.")
