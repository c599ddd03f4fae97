"""One thing at a time for each artifact."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tensorcast.schema.ids import ArtifactId


class Locks:
    """A lock for each artifact that somebody wants, and none for the others."""

    def __init__(self) -> None:
        self._locks: dict[ArtifactId, asyncio.Lock] = {}
        self._wanted: Counter[ArtifactId] = Counter()

    def wanted(self, artifact: ArtifactId) -> int:
        """How many hold the artifact's lock or wait for it."""
        return self._wanted[artifact]

    @asynccontextmanager
    async def alone(self, artifact: ArtifactId) -> AsyncIterator[None]:
        """The context of one at a time, in the order of asking."""
        lock = self._locks.setdefault(artifact, asyncio.Lock())
        self._wanted[artifact] += 1
        try:
            async with lock:
                yield
        finally:
            self._wanted[artifact] -= 1
            if not self._wanted[artifact]:
                del self._wanted[artifact], self._locks[artifact]
