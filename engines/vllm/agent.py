"""`python -m tensorcast.engines.vllm.agent URL`: watches a vLLM engine from outside.

It tells the cluster which blocks the engine holds (`events.py`) and how busy it is (`metrics.py`,
as signals on `engine.load.<engine>`), and registers the engine if that has not done so itself. It
does in the engine what plans ask for (`adapter.py`), and changes nothing else there. It may be
killed and started again at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tensorcast.client.calls import AsyncCalls
from tensorcast.client.session import AsyncClient, connect_async
from tensorcast.engines.identity import LIFE_VARIABLE, Identity
from tensorcast.engines.presence import share_presence
from tensorcast.engines.vllm.adapter import collect_verbs, serve
from tensorcast.engines.vllm.calls import decode, fetch, read_models
from tensorcast.engines.vllm.events import Sources, Watcher
from tensorcast.engines.vllm.metrics import (
    Load,
    Sample,
    is_news,
    measure_load,
    parse_metrics,
)
from tensorcast.engines.vllm.telling import Teller
from tensorcast.schema.api import EngineInfo
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    Rejected,
    TensorCastError,
    Timeout,
    Unavailable,
    find_leaves,
)
from tensorcast.schema.ids import EngineId, parse_engine

KIND: Final = "vllm"
LOOK_S: Final = 2.0
NEWS_S: Final = 5.0
"""At least so long between two signals of one engine."""
QUIET_S: Final = 15.0
"""A signal is emitted at least so often, also when nothing changes: whoever reads them knows from
its age whether anybody watches."""
ALONE_S: Final = 5.0
START_S_MAX: Final = 600.0
RETRY_S: Final = 1.0
LATE_S: Final = 60.0
"""Calls that came so long before the first agent of an engine are answered."""
AGAIN_S: Final = 5.0
TOPIC: Final = "engine.load"
FAILED: Final = 1
EXITS: Final = {
    InvalidArgument.code: 2,
    NotFound.code: 3,
    Conflict.code: 4,
    Rejected.code: 4,
    Timeout.code: 5,
    Unavailable.code: 6,
}
"""The exit codes of `tcctl`, which this program is a command of."""
_logger = logging.getLogger("tensorcast.engines.vllm.agent")


class Settings(NamedTuple):
    """What to watch: the address of the engine's server; where it publishes KV events ("" for what
    it says itself, "none" for no watch) and repeats them; its name (None: what it is registered
    as, or one made of its address). `life`: the engine's own, when the engine started this agent,
    which then ends when its standard input does."""

    url: str
    events: str
    replay: str
    engine: str | None
    context: str | None
    node: str | None
    look_s: float
    life: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT (0), or until something breaks (as `tcctl` ends: 6 for a cluster
    that cannot be reached). An agent that its engine has started goes on after what may pass, and
    ends with the engine."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = parse_arguments(arguments)
    while True:
        errors = _run_once(settings)
        for error in errors:
            _logger.error("%s", error)
        if not errors:
            return 0
        if settings.life is None or not all(error.retryable for error in errors):
            return EXITS.get(errors[0].code, FAILED)
        time.sleep(AGAIN_S)


def _run_once(settings: Settings) -> list[TensorCastError]:
    """Watches, and returns what ended it; nothing when it was told to stop."""
    try:
        asyncio.run(run(settings))
    except TensorCastError as error:
        return [error]
    except BaseExceptionGroup as group:
        said, unforeseen = group.split(TensorCastError)
        if unforeseen is not None:
            raise unforeseen from None
        return find_leaves(said)
    return []


def parse_arguments(arguments: Sequence[str] | None) -> Settings:
    """The settings on a command line."""
    parser = argparse.ArgumentParser(prog="tensorcast.engines.vllm.agent", description=__doc__)
    parser.add_argument("url", help="the address of the engine's server, http://host:port")
    parser.add_argument("--kv-events", default="", metavar="ADDRESS", help="or `none`")
    parser.add_argument("--replay", default="", metavar="ADDRESS")
    parser.add_argument("--engine", metavar="NAME")
    parser.add_argument("--context", metavar="NAME")
    parser.add_argument("--node", metavar="NODE")
    parser.add_argument("--attached", action="store_true", help="it is the engine that starts it")
    parser.add_argument("--period", type=float, default=LOOK_S, metavar="SECONDS")
    read = parser.parse_args(arguments)
    return Settings(
        url=read.url.rstrip("/"),
        events=read.kv_events,
        replay=read.replay,
        engine=read.engine,
        context=read.context,
        node=read.node,
        look_s=read.period,
        life=os.environ.get(LIFE_VARIABLE) if read.attached else None,
    )


async def run(settings: Settings) -> None:
    """Watches until SIGTERM or SIGINT. Raises Unavailable when the engine or the cluster does not
    come, and what breaks the watch."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.life is not None:  # nothing is ever written there: it can be read at its end only
        loop.add_reader(sys.stdin.fileno(), stop.set)
    async with (
        connect_async(settings.context, node=settings.node) as client,
        asyncio.TaskGroup() as tasks,
    ):
        work = tasks.create_task(watch(client, settings))
        waiting = tasks.create_task(stop.wait())
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        waiting.cancel()


async def watch(client: AsyncClient, settings: Settings) -> None:
    """Watches for ever, once the engine answers."""
    await _wait_for_engine(settings.url)
    engine = await _name_engine(client, settings)
    sources = await find_sources(settings)
    _logger.info("process %d watches %s at %s", os.getpid(), engine, settings.url)
    async with asyncio.TaskGroup() as tasks:
        watcher = None
        if sources is not None:
            teller = Teller(client.api, engine)
            watcher = Watcher(sources, teller)
            tasks.create_task(watcher.run())
            tasks.create_task(_stay_alone(client, teller))
        else:
            _logger.warning("%s publishes no KV events: only its load is watched", engine)
        tasks.create_task(Meter(client, engine, settings, watcher).run())
        tasks.create_task(_serve_calls(client, engine, settings))


async def _serve_calls(client: AsyncClient, engine: EngineId, settings: Settings) -> None:
    """Does what plans ask of the engine, on the node that the engine says it is on. A plan that was
    quicker than this agent is served, too."""
    began = datetime.now(UTC) - timedelta(seconds=LATE_S)
    node = settings.node or await _find_node(client, engine)
    async with connect_async(settings.context, node=node) as there:
        calls = AsyncCalls(there.api, engine, start=began)
        await serve(calls, collect_verbs(there, engine, settings.url))


async def _find_node(client: AsyncClient, engine: EngineId) -> str | None:
    """The engine's node; None where it does not say, or where that is on another machine."""
    while True:
        try:
            node = (await client.api.engine(engine)).node
            break
        except (NotFound, Unavailable, Timeout):  # it is just being registered
            await asyncio.sleep(RETRY_S)
    return node if node in client.context.nodes else None


async def _stay_alone(client: AsyncClient, teller: Teller) -> None:
    """Looks now and then whether another agent watches the engine. Raises Rejected when one does:
    the last one counts, and the load that this one goes on to tell would hide that it is gone."""
    while True:
        await asyncio.sleep(ALONE_S)
        try:
            teller.check_alone(await client.api.engine_views(all=True))
        except (Unavailable, Timeout) as error:
            _logger.info("whether another agent watches is not known: %s", error)


async def _wait_for_engine(url: str) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + START_S_MAX
    _logger.info("waiting until %s answers", url)
    while True:
        try:
            await asyncio.to_thread(fetch, f"{url}/health")
            return
        except Unavailable:
            if clock() > deadline:
                raise
        await asyncio.sleep(RETRY_S)


# ---- who it is -------------------------------------------------------------------------------


async def _name_engine(client: AsyncClient, settings: Settings) -> EngineId:
    """The engine's name; one that did not register itself is registered, by each of its agents."""
    life = settings.life or life_by_address(settings.url)
    found = await _find(client, settings.engine or settings.url)
    if found is not None and is_its_own(found.life, settings):
        return found.engine
    name = settings.engine or (found.engine if found else name_by_address(settings.url))
    model = await asyncio.to_thread(_read_model, settings.url)
    identity = Identity(name, life, settings.url)
    share_presence(client.context, identity, kind=KIND, model=model, node=settings.node)
    return parse_engine(name)


def is_its_own(life: str, settings: Settings) -> bool:
    """Whether the engine itself registered this life. An agent that it has started knows its life,
    and ends what is left of a life before; any other agent knows what an agent would call one."""
    if settings.life is not None:
        return life == settings.life
    return life != life_by_address(settings.url)


async def _find(client: AsyncClient, engine: str) -> EngineInfo | None:
    try:
        found = await client.api.engine(engine)
    except NotFound:
        return None
    return found if found.state == "up" else None


def name_by_address(url: str) -> str:
    """A name for an engine that has none."""
    place = re.sub(r"[^A-Za-z0-9.:-]", "-", urlsplit(url).netloc or url)
    return f"{KIND}-{place}".strip("-.:")


def life_by_address(url: str) -> str:
    """The life of an engine of which nothing else is known: an agent that starts again goes on."""
    return f"watched-{name_by_address(url)}"[:64]


def _read_model(url: str) -> str:
    """The name under which the engine serves its model; empty when it does not say."""
    try:
        return next(iter(read_models(fetch(f"{url}/v1/models"))), "")
    except TensorCastError:
        return ""


# ---- where it publishes ----------------------------------------------------------------------


class _Source(msgspec.Struct, frozen=True):
    endpoint: str = ""
    replay_endpoint: str | None = None
    enable_kv_cache_events: bool = True


async def find_sources(settings: Settings) -> Sources | None:
    """Where the engine publishes its KV events; None when it does not, or it is not wanted."""
    if settings.events == "none":
        return None
    if settings.events:
        return Sources(settings.events, settings.replay or None)
    try:
        page = await asyncio.to_thread(fetch, f"{settings.url}/kv_event_sources")
        sources = decode(page, dict[str, _Source])
    except TensorCastError:
        return None
    return choose_source(sources, urlsplit(settings.url).hostname or "127.0.0.1", settings.replay)


def choose_source(sources: dict[str, _Source], host: str, replay: str = "") -> Sources | None:
    """The addresses that an engine tells, as they are reached from here. Raises InvalidArgument for
    an engine of several ranks: each is watched by an agent of its own. Pure."""
    active = [one for one in sources.values() if one.endpoint and one.enable_kv_cache_events]
    if not active:
        return None
    if len(active) > 1:
        raise InvalidArgument(
            f"The engine has {len(active)} ranks that publish KV events.",
            hint="Watch each with an agent of its own: --engine, --kv-events and --replay.",
        )
    (source,) = active
    found = replay or source.replay_endpoint
    return Sources(_reach(source.endpoint, host), _reach(found, host) if found else None)


def _reach(endpoint: str, host: str) -> str:
    return endpoint.replace("//*:", f"//{host}:").replace("//0.0.0.0:", f"//{host}:")


# ---- how busy it is --------------------------------------------------------------------------


class Meter:
    """Looks at the load now and then, and emits it when it changes."""

    def __init__(
        self, client: AsyncClient, engine: EngineId, settings: Settings, watcher: Watcher | None
    ) -> None:
        self._client = client
        self._engine = engine
        self._settings = settings
        self._watcher = watcher
        self._before: tuple[float, Sample] | None = None
        self._said: tuple[float, Load] | None = None

    async def run(self) -> None:
        """Looks for ever; an engine or a cluster that is away is looked for again."""
        while True:
            try:
                await self.look()
            except (Unavailable, NotFound, Corrupt) as error:
                _logger.info("the load of %s is not known: %s", self._engine, error)
            except TensorCastError as error:
                if not error.retryable:
                    raise
                _logger.warning("the load of %s is not told: %s", self._engine, error)
            await asyncio.sleep(self._settings.look_s)

    async def look(self) -> None:
        """One look; a signal if there is something to say."""
        page = await asyncio.to_thread(fetch, f"{self._settings.url}/metrics")
        now_s = asyncio.get_running_loop().time()
        sample = parse_metrics(page.decode("utf-8", "replace"))
        before_s, before = self._before if self._before is not None else (now_s, None)
        load = measure_load(sample, before, now_s - before_s)
        if not self._is_due(load, now_s):
            return
        await self._client.emit(f"{TOPIC}.{self._engine}", self._describe(load))
        await self._pulse(load)
        self._before, self._said = (now_s, sample), (now_s, load)

    async def _pulse(self, load: Load) -> None:
        """A sign of life of the engine, with what `tcctl engine ls` shows of its load."""
        try:
            known = await self._client.api.engine(self._engine)
        except NotFound:  # it is just being registered
            return
        numbers = {
            "cache_usage": load.cache_usage,
            "running": float(load.running),
            "waiting": float(load.waiting),
        }
        body = {"life": known.life, "load": numbers}
        await self._client.api.pulse(self._engine, msgspec.json.encode(body))

    def _is_due(self, load: Load, now_s: float) -> bool:
        if self._said is None:
            return True
        said_s, said = self._said
        return now_s - said_s >= (NEWS_S if is_news(load, said) else QUIET_S)

    def _describe(self, load: Load) -> dict[str, object]:
        data: dict[str, object] = {"engine": self._engine, **msgspec.to_builtins(load)}
        if self._watcher is not None:
            exact = self._watcher.state.is_exact
            data["blocks"] = self._watcher.tracker.count
            data["blocks_state"] = "exact" if exact else "partial"
        return data


if __name__ == "__main__":
    sys.exit(main())
