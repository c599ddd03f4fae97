"""Facts about inference engines: which run, and which weights each served, from when on.

Part of the union in `events.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from tensorcast.schema.ids import ArtifactId, EngineId, NodeId

Moment = Annotated[datetime, Meta(tz=True)]


class EngineRegistered(msgspec.Struct, frozen=True, kw_only=True):
    """An inference engine runs. `life` is one life of it: another one ends the one before. `kind`
    names its software, `model` what it was started with, `url` where it answers; `node` is the one
    whose memory it uses. It is lost when it is silent for `ttl_s` seconds."""

    engine: EngineId
    life: str
    kind: str
    node: NodeId | None
    model: str
    url: str
    ttl_s: float
    labels: dict[str, str] = {}


class EngineServing(msgspec.Struct, frozen=True, kw_only=True):
    """From `since` on (its own clock) everything that it answers is made by these weights, until
    its next event that says otherwise. `version` is what it calls them; `artifact` has their bytes,
    unless they came from elsewhere."""

    engine: EngineId
    life: str
    version: str
    artifact: ArtifactId | None
    since: Moment


class EngineLeft(msgspec.Struct, frozen=True, kw_only=True):
    """It stopped in good order."""

    engine: EngineId
    life: str


class EngineLost(msgspec.Struct, frozen=True, kw_only=True):
    """Not heard of since `last_seen`."""

    engine: EngineId
    life: str
    last_seen: Moment


EngineEvent = EngineRegistered | EngineServing | EngineLeft | EngineLost

ENGINE_EVENT_TYPES: dict[str, type[EngineEvent]] = {
    "engine.registered": EngineRegistered,
    "engine.serving": EngineServing,
    "engine.left": EngineLeft,
    "engine.lost": EngineLost,
}
