"""New weights for vLLM servers that run, from outside: for trainers, over HTTP.

    version = client.publish("policy", model.state_dict())
    update_engines(client, ["http://10.0.0.1:8000", "http://10.0.0.2:8000"], version)

The servers need VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config '{"backend": "tensorcast"}'.
Knows no vLLM: a trainer has none.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tensorcast.engines.vllm.calls import EngineRefused, ask, parse
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    NotFound,
    TensorCastError,
    Unavailable,
)
from tensorcast.schema.ids import is_artifact_id

if TYPE_CHECKING:
    from tensorcast.client import Client
    from tensorcast.schema.api import EngineInfo

T = TypeVar("T")
Json = object
UPDATE_S = 600.0
MEND_S = 30.0
"""So long an engine may take to end an update or to go on: one that is dying may never answer."""
ENGINES_AT_ONCE = 32
SEPARATOR = "@"
READY, UP = "ready", "up"
Request = tuple[str, Json]
"""The path of an address of the server, and what is posted there."""
Told = Callable[[], float]
"""The ticket that an engine told last; raises TensorCastError when one cannot hear from it."""
START: Request = ("/start_weight_update", {})
CANCEL: Request = ("/update_weights", {"update_info": {"cancel": True}})
END: Request = ("/finish_weight_update", {})


class Pause(StrEnum):
    """What becomes of requests that are under way. WAIT: they end first, by the old weights. ABORT:
    they end at once, unfinished. KEEP: they go on with the new weights, so that one answer can come
    of both versions."""

    WAIT = "wait"
    ABORT = "abort"
    KEEP = "keep"


SESSION = "update_session"
"""What an engine says of its update, among the numbers of its load."""


TICKET = "update_ticket"
"""Beside it, the number that it was given with the new weights, once it has brought them."""
TICKETS = 1 << 52
LOOK_S, LOOK_S_MAX = 0.005, 0.1
"""So often it is asked whether it has."""


class Session(IntEnum):
    """How an update stands for vLLM. One that failed is over on some ranks of an engine only, and
    vLLM refuses to begin another one on those where it is open (`transfer.py`)."""

    OVER = 0
    OPEN = 1
    OVER_ON_LAST = 2
    OPEN_ON_LAST = 3


class Updated(NamedTuple):
    """An engine that has new weights: it took no new work for `paused_s` seconds."""

    url: str
    version: str
    paused_s: float


class EngineServer:
    """The HTTP endpoints of one vLLM server. Every method raises Unavailable when it does not
    answer, or what it says when it refuses."""

    def __init__(self, url: str, *, timeout_s: float = UPDATE_S) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s

    def pause(self, mode: Pause = Pause.WAIT) -> None:
        """It begins no new work, and its prefix cache is emptied, once what is under way has
        ended."""
        self._post(f"/pause?mode={mode.value}&clear_cache=true")

    def resume(self) -> None:
        """It takes up what has waited."""
        self._post("/resume", timeout_s=MEND_S)

    def is_paused(self) -> bool:
        """Whether it begins no new work."""
        answer = self._ask("/is_paused")
        return isinstance(answer, dict) and bool(answer.get("is_paused"))

    def reset_prefix_cache(self) -> None:
        """Forgets what was computed with older weights, also of requests that are frozen."""
        answer = self._post("/reset_prefix_cache?reset_running_requests=true")
        if isinstance(answer, dict) and answer.get("success") is False:
            raise Unavailable(f"{self.url} could not empty its prefix cache.")

    def init(self, context: str | None = None, node: str | None = None) -> None:
        """Connects its back end with the cluster; safe to repeat."""
        named = {"context": context, "node": node, "url": self.url}
        info = {name: value for name, value in named.items() if value}
        self._post("/init_weight_transfer_engine", {"init_info": info})

    def start(self) -> None:
        """Begins an update. None may be open: see `mend`."""
        self._post(*START)

    def update(
        self,
        version: str,
        artifact: str,
        *,
        check: bool = True,
        parts: Sequence[str] = (),
        aside: bool = True,
        ticket: int = 0,
    ) -> None:
        """It brings the new weights (of several parts: of all these artifacts), checks them, and
        makes its new parameters of them, where these may lie beside those that serve (`aside`);
        then the old ones serve on. With a ticket it only begins, and serves meanwhile: to be called
        again without it."""
        info: dict[str, object] = {"version": version, "artifact": artifact, "check": check}
        info["timeout_s"] = self.timeout_s
        more = {"parts": list(parts), "ticket": ticket}
        info.update({name: value for name, value in more.items() if value})
        if not aside:
            info["aside"] = False
        self._post("/update_weights", {"update_info": info})

    def mend(self, session: Session) -> None:
        """Ends an update that was left or has failed; the old weights stay. What it asks for is
        answered by errors: vLLM has no other way out."""
        steps = [CANCEL, END] if session is not Session.OVER else []
        if session is Session.OPEN_ON_LAST:
            steps.insert(0, START)
        for path, body in steps:
            with contextlib.suppress(EngineRefused):
                self._post(path, body, timeout_s=MEND_S)

    def finish(self, version: str) -> None:
        """The new weights serve from now on, or (when it raises) the old ones."""
        self._post("/finish_weight_update", {"weight_version": version})

    def version(self) -> str:
        """What it calls the weights that it serves."""
        answer = self._ask("/weight_info")
        if not isinstance(answer, dict) or not isinstance(answer.get("weight_version"), str):
            raise Corrupt(f"{self.url} does not say which weights it serves.")
        return str(answer["weight_version"])

    def _post(self, path: str, body: Json = None, *, timeout_s: float | None = None) -> Json:
        return self._ask(path, body, "POST", timeout_s)

    def _ask(
        self,
        path: str,
        body: Json = None,
        method: str = "GET",
        timeout_s: float | None = None,
    ) -> Json:
        limit_s = min(self.timeout_s, timeout_s or self.timeout_s)
        return parse(ask(f"{self.url}{path}", body, method=method, timeout_s=limit_s))


class Wanted(NamedTuple):
    """New weights: what they are called, and where they are."""

    version: str
    artifact: str
    check: bool = True
    parts: tuple[str, ...] = ()
    aside: bool = True

    def ask(self, server: EngineServer, ticket: int = 0) -> None:
        """Asks an engine for them (`EngineServer.update`)."""
        server.update(
            self.version,
            self.artifact,
            check=self.check,
            parts=self.parts,
            aside=self.aside,
            ticket=ticket,
        )


# ---- several engines ---------------------------------------------------------------------------


def update_engines(
    client: Client,
    urls: Sequence[str],
    what: str,
    *,
    mode: Pause | str = Pause.WAIT,
    check: bool = True,
    aside: bool = True,
    timeout_s: float = UPDATE_S,
) -> tuple[Updated, ...]:
    """Gives running engines the weights `what`: a version (`publish` returns it), key or id.

    First the weights come to the engines' nodes and are checked there, while the old ones serve;
    if that fails on one, none changes. `aside`: an engine that can makes its new parameters beside
    the old ones then, so that it stands still for a moment only; else in their place. Then each
    engine is paused, gets them, and goes on. When the last step fails on some, these keep the old
    ones, the others have the new ones, and the error names them. Raises what was wrong, NotFound,
    InvalidArgument.
    """
    pause = parse_pause(mode)
    servers = [EngineServer(url, timeout_s=timeout_s) for url in dict.fromkeys(urls)]
    if not servers:
        raise InvalidArgument(
            "No engine is named.", hint="`tcctl engine ls` shows which there are."
        )
    version, artifact = resolve_version(client, what)
    wanted = Wanted(version, artifact, check, aside=aside)
    with ThreadPoolExecutor(min(len(servers), ENGINES_AT_ONCE)) as threads:
        known = find_engines(client)
        spread_weights(
            client, [known[s.url] for s in servers if s.url in known], artifact, timeout_s
        )
        opened: list[EngineServer] = []
        with _mended_unless_done(opened):
            _all(threads, servers, lambda one: begin(one, known.get(one.url), opened))

            def work(one: EngineServer) -> None:
                bring(one, wanted, opened, listen(client, known.get(one.url)))

            _all(threads, servers, work)
        return tuple(_all(threads, servers, lambda one: switch(one, version, pause)))


def find_engines(client: Client) -> dict[str, EngineInfo]:
    """The engines that run, by their addresses."""
    return {one.url.rstrip("/"): one for one in client.engines() if one.url}


def parse_pause(mode: Pause | str) -> Pause:
    """The mode that is meant. Raises InvalidArgument."""
    try:
        return Pause(mode)
    except ValueError:
        known = ", ".join(Pause)
        raise InvalidArgument(f"{mode!r} is no way to pause.", hint=f"Use {known}.") from None


def resolve_version(client: Client, what: str) -> tuple[str, str]:
    """What these weights are called, and their artifact: `name@7` is a version; so is what a key
    without a version points to now, by the count of its moves; else it is the id. Raises
    NotFound."""
    artifact = client.api.artifact(what).id
    if is_artifact_id(what):
        return artifact, artifact
    try:
        key = client.api.key(what)
    except NotFound:  # it is the beginning of an id
        return artifact, artifact
    version = what if SEPARATOR in what else f"{what}{SEPARATOR}{key.version}"
    return version, key.artifact or artifact


def spread_weights(
    client: Client, engines: Sequence[EngineInfo], artifact: str, timeout_s: float
) -> None:
    """Brings the weights to the nodes of the engines that lack them, all at once."""
    wanted = {engine.node for engine in engines if engine.node}
    replicas = client.api.artifact(artifact).replicas
    lacking = wanted - {one.node for one in replicas if one.state == READY and one.tier == "dram"}
    if lacking:
        up = {node.node for node in client.api.nodes() if node.state == UP}
        if lacking & up:
            client.replicate(artifact, to=sorted(lacking & up)).wait(timeout_s)


def begin(server: EngineServer, engine: EngineInfo | None, opened: list[EngineServer]) -> None:
    """Connects an engine and begins an update, which is noted in `opened`; one that somebody left
    is ended first."""
    server.init()
    server.mend(read_session(engine))
    server.start()
    opened.append(server)


def read_session(engine: EngineInfo | None) -> Session:
    """How the last update of an engine stands, as far as it is known."""
    try:
        return Session(int(engine.load.get(SESSION, 0))) if engine else Session.OVER
    except ValueError:
        return Session.OVER


def listen(client: Client, engine: EngineInfo | None) -> Told | None:
    """How one hears which ticket an engine has told; None when nobody knows it."""
    if engine is None:
        return None

    def told() -> float:
        return read_ticket(client.api.engine(engine.engine))

    return told


def read_ticket(engine: EngineInfo) -> float:
    """The ticket that an engine has told; 0 before any. Raises Unavailable for one that is gone."""
    if engine.state != UP:
        raise Unavailable(f"The engine {engine.engine} is {engine.state}.")
    return engine.load.get(TICKET, 0.0)


def bring(
    server: EngineServer, wanted: Wanted, opened: list[EngineServer], told: Told | None = None
) -> None:
    """Has an engine bring new weights; when it refuses, its update is ended. It serves meanwhile,
    if one can hear from it when it has them."""
    try:
        if told is not None:
            ticket = 1 + secrets.randbelow(TICKETS)
            wanted.ask(server, ticket)
            wait_told(told, ticket, server.timeout_s)
        wanted.ask(server)
    except TensorCastError as error:
        opened.remove(server)
        if isinstance(error, EngineRefused):
            server.mend(Session.OVER_ON_LAST)
        raise


def wait_told(told: Told, ticket: int, timeout_s: float) -> None:
    """Returns when an engine has told this ticket, or when one cannot hear from it: it is to be
    asked itself then."""
    until_s = time.monotonic() + timeout_s
    pause_s = LOOK_S
    with contextlib.suppress(TensorCastError):
        while told() != ticket and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s = min(LOOK_S_MAX, 1.2 * pause_s)


def switch(server: EngineServer, version: str, mode: Pause) -> Updated:
    """Pauses one engine, makes what it has received its weights, and lets it go on; also when that
    fails, with the old ones."""
    began = time.monotonic()
    session = Session.OPEN
    try:
        server.pause(mode)
        session = Session.OPEN_ON_LAST
        server.finish(version)
        session = Session.OVER
        if mode is Pause.KEEP:
            server.reset_prefix_cache()
    except BaseException as error:
        # What went wrong before is what counts.
        with contextlib.suppress(TensorCastError):
            if isinstance(error, EngineRefused):  # else nobody knows how it stands
                server.mend(session)
        with contextlib.suppress(TensorCastError):
            server.resume()
        raise
    server.resume()
    return Updated(server.url, version, time.monotonic() - began)


@contextlib.contextmanager
def _mended_unless_done(opened: Sequence[EngineServer]) -> Iterator[None]:
    """When something fails, the updates that are open are ended."""
    try:
        yield
    except BaseException:
        for server in opened:
            with contextlib.suppress(TensorCastError):
                server.mend(Session.OPEN)
        raise


def _all(
    threads: ThreadPoolExecutor, servers: Sequence[EngineServer], work: Callable[[EngineServer], T]
) -> list[T]:
    """Does the same with all engines at once; waits for all, then raises for those that failed."""
    waiting = [threads.submit(work, server) for server in servers]
    done: list[T] = []
    failed: list[tuple[EngineServer, TensorCastError]] = []
    for server, future in zip(servers, waiting, strict=True):
        try:
            done.append(future.result())
        except TensorCastError as error:
            failed.append((server, error))
    if len(failed) == 1:
        raise failed[0][1]
    if failed:
        names = ", ".join(server.url for server, _ in failed)
        raise Unavailable(f"{names} failed; the first: {failed[0][1]}")
    return done
