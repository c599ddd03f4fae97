"""An application that puts, reads, reads into memory and gives up at random, until it is killed.

`python worker.py NUMBER SEED SOCKET...` writes a line for each cycle: what it did and how it ended.
What a key of it holds follows from the key alone, so that every reader can check every byte.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mover_nodes import MIB, Application, Content, Reading
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.socket import AbortPut

WORKERS = 4
KEYS = 8
READINGS_MAX = 3
SIZES = (
    *(0, 1, 4096, 100_000, 700_000, 700_000, MIB, MIB, 3 * MIB, 3 * MIB),
    *(5 * MIB, 9 * MIB, 40 * MIB),
)
"""The largest fits into the memory of no node: it is refused."""
WRONG = 3


@lru_cache(maxsize=WORKERS * KEYS)
def content_of(worker: int, number: int) -> Content:
    """What the key of a worker always holds."""
    dice = random.Random(f"{worker} {number}")
    total = dice.choice(SIZES)
    if total > 20 * MIB:
        return Content([total], seed=7)  # one is enough
    cuts = sorted(dice.randrange(total + 1) for _ in range(dice.choice((0, 0, 2, 5))))
    edges = [0, *cuts, total]
    sizes = [b - a for a, b in pairwise(edges)]
    return Content(sizes, seed=1000 * worker + number)


def key_of(worker: int, number: int) -> str:
    return f"w{worker}-{number}"


class Worker:
    """One life. `readings` are artifacts that it keeps mapped."""

    def __init__(self, number: int, seed: int, sockets: list[Path]) -> None:
        self._number = number
        self._dice = random.Random(seed)
        self._sockets = sockets
        self._readings: list[Reading] = []

    def cycle(self) -> str:
        """Does one thing; returns what."""
        name = self._dice.choice(("put", "put", "put", "get", "get", "get", "into", "abort"))
        with Application(self._dice.choice(self._sockets), f"user:w{self._number}@soak") as app:
            getattr(self, f"_{name}")(app)
        return name

    def _put(self, app: Application) -> None:
        number = self._dice.randrange(KEYS)
        content = content_of(self._number, number)
        app.put(content, key=key_of(self._number, number))

    def _abort(self, app: Application) -> None:
        """Sometimes in order, and sometimes by hanging up."""
        opened, fd = app.open_put(self._dice.randrange(5 * MIB))
        os.close(fd)
        if self._dice.random() < 0.5:
            app.ask(AbortPut(session=opened.session))

    def _get(self, app: Application) -> None:
        """Keeps it mapped for some cycles."""
        self._readings.append(self._read(app))
        while len(self._readings) > self._dice.randrange(READINGS_MAX + 1):
            self._readings.pop(0).close()

    def _into(self, app: Application) -> None:
        self._read(app).close()

    def _read(self, app: Application) -> Reading:
        worker, number = self._dice.randrange(WORKERS), self._dice.randrange(KEYS)
        reading = app.get(key_of(worker, number), timeout_s=10.0)
        if reading.bytes() != content_of(worker, number).bytes:
            print(f"wrong bytes under {key_of(worker, number)}", flush=True)
            os._exit(WRONG)
        return reading

    def live(self) -> None:
        while True:
            try:
                said = self.cycle()
            except TensorCastError as error:
                said = error.code
            except OSError:  # the mover was killed
                said = "gone"
                time.sleep(0.05)
            print(said, flush=True)


if __name__ == "__main__":
    Worker(int(sys.argv[1]), int(sys.argv[2]), [Path(path) for path in sys.argv[3:]]).live()
