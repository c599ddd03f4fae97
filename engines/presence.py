"""Makes an inference engine known to the cluster: that it runs, and which weights it serves.

One thread with its own connection says so: it registers the engine (an event), gives signs of life
(no events), and tells each change of its weights (an event) until that is in the log. The engine
never waits for it unless it asks to, and goes on without a control plane.

All processes of one engine share its name and its life (`identity.py`): any of them may hold a
presence. A new life of the engine ends the one before.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from tensorcast.client.api import ControlPlane
from tensorcast.client.context import Context
from tensorcast.engines.identity import NAME_VARIABLE, Identity
from tensorcast.engines.leaving import LEAVE_S, leave, make_api, note_engine
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.api import Executed
from tensorcast.schema.commands import RegisterEngine, ServeWeights
from tensorcast.schema.errors import NotFound, Rejected, TensorCastError, Timeout
from tensorcast.schema.ids import ArtifactId, EngineId, NodeId, parse_engine

TTL_S = 15.0
PULSES_A_TTL = 5
LOOK_S = 10.0
"""So often it looks whether it is still known as it should be."""
RETRY_S = 0.5
LOGGER = logging.getLogger("vllm.tensorcast")

Load = Callable[[], Mapping[str, float]]


class Served(NamedTuple):
    """Weights, as an engine tells of them: their version, their artifact (None: they are not from
    the cluster), and since when everything is made by them."""

    version: str
    artifact: str | None
    since: datetime


class Presence:
    """An engine's presence in a cluster, from `start` to `close`. `load` is asked at each sign of
    life for numbers that `tcctl engine ls` shows, `cache_usage` (0 to 1) for example. For any
    number of threads."""

    def __init__(
        self,
        context: Context,
        *,
        kind: str,
        engine: str,
        life: str,
        node: str | None = None,
        model: str = "",
        url: str = "",
        load: Load = dict,
        ttl_s: float = TTL_S,
    ) -> None:
        self._description = RegisterEngine(
            engine=parse_engine(engine),
            life=life,
            kind=kind,
            node=NodeId(node or context.default_node or "") or None,
            model=model,
            url=url,
            ttl_s=ttl_s,
        )
        self._context = context
        self._load = load
        self._lock = threading.Lock()
        self._told = threading.Condition(self._lock)
        self._numbers: dict[str, float] = {}
        self._served: Served | None = None
        self._recorded: Served | None = None
        self._is_described = False
        self._was_known = False
        self._is_replaced = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    # ---- what an engine says -------------------------------------------------------------------

    @property
    def engine(self) -> EngineId:
        return self._description.engine

    @property
    def served(self) -> Served | None:
        """The weights that it was last told to serve."""
        with self._lock:
            return self._served

    def start(self) -> Self:
        """Begins to make the engine known, in the background."""
        with self._lock:
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._run()), name="presence", daemon=True
                )
                self._thread.start()
        return self

    def describe(self, *, model: str = "", url: str = "") -> None:
        """Says what was not known at the start; what is empty stays."""
        with self._lock:
            description = msgspec.structs.replace(
                self._description,
                model=model or self._description.model,
                url=url or self._description.url,
            )
            if description != self._description:
                self._description, self._is_described = description, False
        self._nudge()

    def serve(self, version: str, artifact: str | None, since: datetime | None = None) -> Served:
        """Says that from now (or `since`) on these weights make everything. It is in the log soon;
        `wait_recorded` waits for that."""
        served = Served(version, artifact, since or datetime.now(UTC))
        with self._lock:
            self._served = served
        self._nudge()
        return served

    def tell_load(self, numbers: Mapping[str, float]) -> None:
        """Says numbers at once, and at each sign of life from now on, beside those of `load`."""
        with self._lock:
            self._numbers = {**self._numbers, **numbers}
        self._nudge()

    def wait_recorded(self, timeout_s: float) -> None:
        """Waits until what was said last is in the log. Raises Timeout, and Rejected when another
        life of the engine has taken its name."""
        with self._told:
            done = self._told.wait_for(
                lambda: self._is_replaced or self._recorded == self._served, timeout_s
            )
            if self._is_replaced:
                raise Rejected(
                    f"Another engine has taken the name {self.engine}.",
                    hint=f"Give each engine its own ({NAME_VARIABLE}).",
                )
        if not done:
            raise Timeout(
                f"The weights of {self.engine} are not on record after {timeout_s:g} s.",
                hint="Is the control plane up? `tcctl status` says.",
            )

    def close(self) -> None:
        """Says that the engine stops in good order, if that is heard within moments. Safe to
        repeat."""
        with self._lock:
            self._is_closing = True
            thread = self._thread
        self._nudge()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * LEAVE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- the thread ----------------------------------------------------------------------------

    def _nudge(self) -> None:
        with self._lock:
            loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(wake.set)

    async def _run(self) -> None:
        with self._lock:
            self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        api = make_api(self._context, self.engine)
        try:
            await self._keep(api)
        finally:
            with self._lock:
                self._loop = self._wake = None
            await api.aclose()

    async def _keep(self, api: ControlPlane) -> None:
        """Says what is to be said, gives signs of life, and looks now and then whether it was
        heard."""
        assert self._wake is not None
        clock = asyncio.get_running_loop().time
        looked_s = -LOOK_S
        while not (self._is_closing or self._is_replaced):
            self._wake.clear()
            pause_s = self._description.ttl_s / PULSES_A_TTL
            try:
                if clock() - looked_s >= LOOK_S:
                    await self._look(api)
                    looked_s = clock()
                if not self._is_replaced:
                    await self._tell(api)
                    await self._pulse(api)
            except Rejected:  # it was thought lost, or another has its name: the look tells
                looked_s, pause_s = -LOOK_S, RETRY_S
                self._forget()
            except TensorCastError as error:
                LOGGER.info("TensorCast does not hear of this engine yet: %s", error)
                pause_s = RETRY_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)
        await self._leave(api)

    async def _look(self, api: ControlPlane) -> None:
        """Who was thought lost, or is not known in this cluster (any more), registers again."""
        try:
            known = await api.engine(self.engine)
        except NotFound:
            self._forget()
            return
        if known.life != self._description.life:
            if self._was_known:
                self._give_up()
        elif known.state != EngineStatus.UP.value:
            self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._is_described, self._recorded = False, None

    async def _tell(self, api: ControlPlane) -> None:
        with self._lock:
            description, is_described = self._description, self._is_described
        if not is_described:
            await api.execute(description)
            with self._lock:
                self._is_described = description == self._description
                self._was_known = True
        with self._lock:
            served, recorded = self._served, self._recorded
        if served is not None and served != recorded:
            await self._record(api, served)

    async def _record(self, api: ControlPlane, served: Served) -> Executed:
        done = await api.execute(
            ServeWeights(
                engine=self.engine,
                life=self._description.life,
                version=served.version,
                artifact=ArtifactId(served.artifact) if served.artifact else None,
                since=served.since,
            )
        )
        with self._told:
            self._recorded = served
            self._told.notify_all()
        return done

    async def _pulse(self, api: ControlPlane) -> None:
        body = {"life": self._description.life, "load": {**self._numbers, **self._load()}}
        await api.pulse(self.engine, msgspec.json.encode(body))

    def _give_up(self) -> None:
        LOGGER.error(
            "Another engine has taken the name %s: TensorCast hears no more of this one. Give each"
            " its own (%s).",
            self.engine,
            NAME_VARIABLE,
        )
        with self._told:
            self._is_replaced = True
            self._told.notify_all()

    async def _leave(self, api: ControlPlane) -> None:
        if self._is_described and not self._is_replaced:
            await leave(api, self.engine, self._description.life)


_shared: dict[tuple[str, str], Presence] = {}
_shared_lock = threading.Lock()


def share_presence(
    context: Context, identity: Identity, *, kind: str, model: str = "", node: str | None = None
) -> Presence:
    """The presence of the engine that this process belongs to, begun at the first call: whoever
    needs it in a process has the same one. It ends with the process."""
    with _shared_lock:
        found = _shared.get((identity.name, identity.life))
        if found is None:
            found = Presence(
                context,
                kind=kind,
                engine=identity.name,
                life=identity.life,
                node=node,
                model=model,
                url=identity.url,
            )
            _shared[identity.name, identity.life] = found.start()
            atexit.register(found.close)
            note_engine(context, identity.name, identity.life, os.environ)
    found.describe(model=model, url=identity.url)
    return found
