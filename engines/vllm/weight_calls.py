"""What plans may ask of an engine about its weights: bring the new ones, and go over to them, as a
member of a roll-out does (docs/weights.md).

Two verbs, so that a plan can have every engine bring them before any goes over (`updates.py` is the
same without a plan). Both may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.engines.vllm.updates import (
    UPDATE_S,
    EngineServer,
    Pause,
    Session,
    Wanted,
    begin,
    bring,
    read_session,
    read_ticket,
    switch,
)
from tensorcast.engines.vllm.verbs import Outputs, Verb, read
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import is_artifact_id
from tensorcast.schema.rollouts import STAGE, SWITCH, UNSTAGE

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient

Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`version` is what they are called from then on (else the id of the artifact)."""

    artifact: Text
    version: str = ""
    parts: dict[str, str] = {}
    check: bool = True
    timeout_s: Annotated[float, Meta(gt=0)] = UPDATE_S


class _Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Text
    pause: Pause = Pause.WAIT
    timeout_s: Annotated[float, Meta(gt=0)] = UPDATE_S


class _Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class WeightCalls:
    """The verbs of one engine; one is done at a time, in the order of the calls."""

    def __init__(self, client: AsyncClient, engine: str, url: str) -> None:
        self._client = client
        self._engine = engine
        self._url = url
        self._turn = asyncio.Lock()
        self.verbs: Final[Mapping[str, Verb]] = {
            STAGE: self.stage,
            SWITCH: self.switch,
            UNSTAGE: self.unstage,
        }

    async def stage(self, said: object) -> Outputs:
        """The engine has brought and checked the weights, and serves the old ones: the `version`
        for `switch`."""
        wanted = read(said, _Stage)
        parts = tuple(dict.fromkeys((wanted.artifact, *wanted.parts.values())))
        for part in parts:
            if not is_artifact_id(part):
                raise InvalidArgument(f"{part!r} is no id of an artifact.")
        version = wanted.version or wanted.artifact
        weights = Wanted(version, wanted.artifact, wanted.check, parts if len(parts) > 1 else ())
        async with self._turn:
            known = await self._client.api.engine(self._engine)
            server = EngineServer(self._url, timeout_s=wanted.timeout_s)

            loop = asyncio.get_running_loop()

            def told() -> float:
                asked = self._client.api.engine(self._engine)
                return read_ticket(asyncio.run_coroutine_threadsafe(asked, loop).result())

            def work() -> None:
                opened: list[EngineServer] = []
                begin(server, known, opened)
                bring(server, weights, opened, told)

            await asyncio.to_thread(work)
        return {"version": version, "artifact": wanted.artifact}

    async def switch(self, said: object) -> Outputs:
        """The engine serves the `version` that it has brought, and took no work for `paused_s`."""
        wanted = read(said, _Switch)
        async with self._turn:
            server = EngineServer(self._url, timeout_s=wanted.timeout_s)
            if await asyncio.to_thread(server.version) == wanted.version:
                return {"version": wanted.version, "paused_s": 0.0}
            done = await asyncio.to_thread(switch, server, wanted.version, wanted.pause)
        return {"version": done.version, "paused_s": done.paused_s}

    async def unstage(self, said: object) -> Outputs:
        """What was brought is forgotten; the `version` that serves stays."""
        read(said, _Nothing)
        async with self._turn:
            session = read_session(await self._client.api.engine(self._engine))
            server = EngineServer(self._url)
            if session is not Session.OVER:
                await asyncio.to_thread(server.mend, session)
            return {"version": await asyncio.to_thread(server.version)}
