"""Tickets for an application that is on no node of its cluster: the mover that it asks for blocks
signs them itself, for who NATS knows the application as."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from tensorcast.client.api import ControlPlane
from tensorcast.schema import subjects
from tensorcast.schema.block_wire import TicketRequest
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

SIGN_S: Final = 5.0


class Tickets:
    """For any thread but that of the event loop in which `api` is used."""

    def __init__(self, api: ControlPlane) -> None:
        self._api = api

    def sign(self, source: NodeId, challenge: Challenge) -> bytes:
        """The ticket for the blocks of a source. Raises Unavailable, PermissionDenied."""
        loop = self._api.loop
        if loop is None:
            raise Unavailable("No connection to NATS was made yet.", hint="Ask for a node first.")
        asking = asyncio.run_coroutine_threadsafe(self._ask(source, challenge), loop)
        return asking.result()

    async def _ask(self, source: NodeId, challenge: Challenge) -> bytes:
        from nats.errors import Error

        subject = subjects.ticket_subject(self._api.cluster, source, self._api.user)
        payload = msgspec.json.encode(TicketRequest(source, challenge))
        nats = await self._api.connect()
        try:
            return (await nats.request(subject, payload, timeout=SIGN_S)).data
        except (Error, TimeoutError) as error:
            raise Unavailable(
                f"The mover of node {source} signs no ticket: {error or 'no answer in time'}.",
                hint="An application on one of the nodes gets it from its own mover.",
                node=source,
            ) from error
