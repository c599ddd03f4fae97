"""What happens to a world, by dice: kills, stops, steps of clocks, full and slow disks, cut and
slow connections, several at once, never two for one target."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from chaos.world import World

TARGETS = ("nats", "postgres", "plane1", "plane2", "m1")
PAUSE_S = (0.2, 2.5)
LANES = 3
STEPS_S = (-86_400, -3_600, -30, -2, 2, 30, 3_600, 86_400)
FSYNC_S = (0.02, 0.4)


class Torment:
    """Runs until it is cancelled; `heal` makes everything well again."""

    def __init__(self, world: World, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._world = world
        self._dice = random.Random(seed)
        self._busy: set[str] = set()
        # Servers die with the thread that started them: it must outlive them.
        self._hand = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(LANES):
                tasks.create_task(self._lane())

    async def _lane(self) -> None:
        faults: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (4, self._kill),
            (3, self._stop),
            (2, self._step_clock),
            (2, self._cut),
            (2, self._delay),
            (2, self._slow_disk),
            (1, self._fill_disk),
        )
        weights = [weight for weight, _ in faults]
        while True:
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
            (_, fault), *_ = self._dice.choices(faults, weights)
            await fault()

    async def heal(self) -> None:
        """All that was done is undone; what is dead is started."""
        world = self._world
        for target in TARGETS:
            world.signal(target, signal.SIGCONT)
            if (shim := world.shim(target)) is not None:
                shim.set()
        for wire in world.wires.values():
            wire.mend()
        for disk in world.disks.values():
            disk.free()
        for target in TARGETS:
            await self._do(world.revive, target)

    def close(self) -> None:
        self._hand.shutdown()

    async def _do(self, what: Callable[..., None], *arguments: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self._hand, what, *arguments)

    def _claim(self, *choices: str) -> str | None:
        free = [name for name in choices if name not in self._busy]
        if not free:
            return None
        chosen = self._dice.choice(free)
        self._busy.add(chosen)
        return chosen

    # ---- the faults ------------------------------------------------------------------------

    async def _kill(self) -> None:
        if (target := self._claim(*TARGETS)) is None:
            return
        self.done[f"kill {target}"] += 1
        await self._do(self._world.kill, target)
        await asyncio.sleep(self._dice.choice((0.0, 0.2, 1.0, 3.0)))
        await self._do(self._world.revive, target)
        self._busy.discard(target)

    async def _stop(self) -> None:
        if (target := self._claim(*TARGETS)) is None:
            return
        self.done[f"stop {target}"] += 1
        self._world.signal(target, signal.SIGSTOP)
        await asyncio.sleep(self._dice.choice((0.1, 0.5, 2.0, 6.0)))
        self._world.signal(target, signal.SIGCONT)
        self._busy.discard(target)

    async def _step_clock(self) -> None:
        target = self._dice.choice([one for one in TARGETS if one != "nats"])
        shim = self._world.shim(target)
        if shim is None or not shim.is_there:
            return
        self.done[f"clock of {target}"] += 1
        shim.set(step_s=self._dice.choice(STEPS_S))
        await asyncio.sleep(self._dice.uniform(0.5, 5.0))
        shim.set()

    async def _cut(self) -> None:
        if (name := self._claim(*self._world.wires)) is None:
            return
        self.done["cut"] += 1
        self._world.wires[name].is_cut = True
        await asyncio.sleep(self._dice.choice((0.2, 1.0, 5.0, 12.0)))
        self._world.wires[name].mend()
        self._busy.discard(name)

    async def _delay(self) -> None:
        if (name := self._claim(*self._world.wires)) is None:
            return
        self.done["delay"] += 1
        self._world.wires[name].delay_s = self._dice.uniform(0.005, 0.2)
        await asyncio.sleep(self._dice.uniform(0.5, 4.0))
        self._world.wires[name].mend()
        self._busy.discard(name)

    async def _slow_disk(self) -> None:
        """Postgres syncs slowly. NATS does not ask the C library: it stops and goes instead."""
        if (target := self._claim("nats", "postgres")) is None:
            return
        self.done[f"slow disk of {target}"] += 1
        shim = self._world.shim(target)
        if shim is not None:
            shim.set(fsync_s=self._dice.uniform(*FSYNC_S))
            await asyncio.sleep(self._dice.uniform(0.5, 4.0))
            shim.set()
        else:
            for _ in range(self._dice.randrange(5, 20)):
                self._world.signal(target, signal.SIGSTOP)
                await asyncio.sleep(self._dice.uniform(*FSYNC_S) / 2)
                self._world.signal(target, signal.SIGCONT)
                await asyncio.sleep(0.02)
        self._busy.discard(target)

    async def _fill_disk(self) -> None:
        """What an operator does then: makes room, and starts the server anew."""
        if (target := self._claim("nats", "postgres")) is None:
            return
        disk = self._world.disks[target]
        if disk.is_small:
            self.done[f"full disk of {target}"] += 1
            await self._do(disk.fill)
            await asyncio.sleep(self._dice.uniform(0.5, 3.0))
            disk.free()
            await self._do(self._world.kill, target)
            await self._do(self._world.revive, target)
        self._busy.discard(target)
