"""A lease for the time of a `with` block."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from types import TracebackType
from typing import Self

from tensorcast.client.api import ControlPlane
from tensorcast.client.naming import What
from tensorcast.schema.commands import AcquireLease, ReleaseLease
from tensorcast.schema.errors import TensorCastError, Timeout, Unavailable
from tensorcast.schema.ids import ArtifactId, LeaseId, parse_node

RENEWALS_PER_TTL = 3


class AsyncLease:
    """Keeps an artifact's replicas from eviction between enter and exit. `artifact` is known once
    it is entered. It is renewed thrice per `ttl_s`; a process that dies lets it expire."""

    def __init__(
        self, api: ControlPlane, what: What, *, ttl_s: float, node: str | None, holder: str
    ) -> None:
        self.id = LeaseId(f"lease-{uuid.uuid4().hex}")
        self.artifact: ArtifactId | None = None
        self.ttl_s = ttl_s
        self._api = api
        self._what = what
        self._node = parse_node(node) if node else None
        self._holder = holder
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Acquires it. Raises NotFound, InvalidArgument for a ttl that is out of range."""
        self.artifact = await self._api.artifact_id(self._what)
        await self._api.execute(
            AcquireLease(
                lease=self.id,
                artifact=self.artifact,
                node=self._node,
                holder=self._holder,
                ttl_s=self.ttl_s,
            )
        )
        self._renewing = asyncio.create_task(self._renew(), name=f"renew {self.id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Releases it. If that fails it expires by itself; only a success is told as a failure."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        try:
            await self._api.execute(ReleaseLease(lease=self.id))
        except TensorCastError:
            if error is None:
                raise

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.ttl_s / RENEWALS_PER_TTL)
            with contextlib.suppress(Unavailable, Timeout):  # the next one makes up for it
                await self._api.renew(self.id)
