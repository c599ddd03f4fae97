"""One service kept alive: start it, learn when it is ready, start it again when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorcast.deploy import logs
from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.fdstore import FdStore
from tensorcast.deploy.notify import NotifySocket
from tensorcast.deploy.plan import ServiceSpec
from tensorcast.deploy.postgres_server import stale_owner
from tensorcast.deploy.probes import is_ready
from tensorcast.deploy.spawn import CANNOT_RUN, Launch, spawn

BACKOFF_S_MIN: Final = 0.2
BACKOFF_S_MAX: Final = 10.0
# A life shorter than this counts as a failed start, a longer one as a success.
STABLE_S: Final = 10.0
PROBE_EVERY_S: Final = 0.02
PROBE_EVERY_S_MAX: Final = 0.5
STATUS_CHARS_MAX: Final = 500
GAVE_UP: Final = 1  # the exit status of a service that has said why it cannot go on


def backoff_s(failures: int) -> float:
    """How long to wait before the next start: not at all the first time, then 0.2 to 10 s."""
    if failures <= 1:
        return 0.0
    return min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(failures - 2, 10))


def count_failures(failures: int, *, was_ready: bool, lived_s: float) -> int:
    """Failed starts in a row, this end included: a long good life starts the count anew."""
    return 1 if was_ready and lived_s >= STABLE_S else failures + 1


def describe_exit(wait_status: int) -> str:
    """How a process ended, in words."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"
    return "could not be run" if code == CANNOT_RUN else f"ended with status {code}"


class Service:
    """The life of one service.

    `state` is waiting, starting, up, restarting, stopping or down; `told` is what the service says
    of itself. All methods belong to the event
    loop's thread.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        *,
        sockets: Path,
        log: Path,
        environ: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.state = "waiting"
        self.pid: int | None = None
        self.ready = asyncio.Event()
        self.restarts = 0
        self.failures = 0
        self.refusal = ""
        self.store = FdStore(size_max=spec.fds_max)
        self._log = log
        self._environ = environ
        self._changed = changed
        self.told = ""
        self._last_end = ""
        self._last_words = ""  # of a life that gave up before it was ready
        self._last_death = ""  # the end of a life that had become ready
        self._sign_of_life = 0.0
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._ended: asyncio.Future[int] | None = None
        self._notify = None if spec.probe else NotifySocket(sockets / f"{spec.name}.notify")

    def status(self) -> ServiceStatus:
        """What there is to say about the service."""
        return ServiceStatus(
            name=self.spec.name,
            state=self.state,
            pid=self.pid,
            detail=self._detail(),
            restarts=self.restarts,
            failures=self.failures,
            refusal=self.refusal,
        )

    def _detail(self) -> str:
        parts = [self.told or (self.spec.about if self.state == "up" else "")]
        if self.restarts:
            times = "once" if self.restarts == 1 else f"{self.restarts} times"
            parts.append(f"restarted {times}")
        end = self._last_death if self.state == "up" else self._last_end
        if end:
            parts.append(f"the last one {end}")
        if self.state in ("restarting", "down") and self._last_end:
            parts.append(logs.last_words(self._log))
        return "; ".join(part for part in parts if part)

    async def keep(self, needs: Sequence[Service], needs_at_first: Sequence[Service] = ()) -> None:
        """Run the service until `stop`: again and again, each time when its needs are ready."""
        if self._notify:
            loop = asyncio.get_running_loop()
            loop.add_reader(self._notify.fileno(), self._read_notices)
        try:
            await self._wait_for_needs((*needs, *needs_at_first))
            while not self._stopping.is_set():
                await self._wait_for_needs(needs)
                if not self._stopping.is_set():
                    await self._live()
        finally:
            self._enter("down")
            self._close()

    async def _wait_for_needs(self, needs: Sequence[Service]) -> None:
        missing = [service for service in needs if not service.ready.is_set()]
        if missing:
            self._enter("waiting")
            self.told = f"waiting for {', '.join(service.spec.name for service in missing)}"
        for service in missing:
            await self._unless_stopping(service.ready.wait())
        self.told = ""

    async def _live(self) -> None:
        """One life: start, be ready, end; then the pause before the next."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._ended = loop.create_future()
        try:
            self.pid = spawn(self._launch())
        except (OSError, KeyError) as error:
            self._last_end = f"could not be started ({error})"
        else:
            self._enter("starting" if not self._last_end else "restarting")
            wait_status = await self._until_end(self._ended)
            self._last_end = describe_exit(wait_status)
            self._note_refusal(wait_status)
        if self._stopping.is_set():
            return
        was_ready = self.ready.is_set()
        self.ready.clear()
        if was_ready:
            self.restarts += 1
            self._last_death = self._last_end
        self.failures = count_failures(
            self.failures, was_ready=was_ready, lived_s=loop.time() - began
        )
        self._enter("restarting")
        pause_s = backoff_s(self.failures)
        if pause_s:
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._unless_stopping(self._hurried.wait())

    def _note_refusal(self, wait_status: int) -> None:
        """A service that gives up twice with the same words will do so for ever."""
        gave_up = os.waitstatus_to_exitcode(wait_status) == GAVE_UP and not self.ready.is_set()
        words = logs.last_sentence(logs.read_tail(self._log)) if gave_up else ""
        self.refusal = words if words == self._last_words else ""
        self._last_words = words

    def hurry(self) -> None:
        """Somebody may have mended what was wrong: start again now if this is a pause."""
        self.failures = 0
        self.refusal = self._last_words = ""
        self._hurried.set()

    async def _until_end(self, ended: asyncio.Future[int]) -> int:
        probing = asyncio.create_task(self._probe_until_ready())
        try:
            return await ended
        finally:
            probing.cancel()
            if self._notify:
                self._read_notices()  # its last words may still wait there
            self.pid, self.told = None, ""

    def _launch(self) -> Launch:
        logs.rotate(self._log)
        environ = dict(self._environ) if self.spec.inherits_environ else {}
        environ |= self.spec.environ
        if self._notify:
            environ["NOTIFY_SOCKET"] = str(self._notify.path)
        owner = self._stale_owner()
        if owner is not None:
            environ["PG_GRANDPARENT_PID"] = str(owner)
        return Launch(
            command=self.spec.command,
            environ=environ,
            folder=self.spec.folder,
            log=str(self._log),
            run_as=self.spec.run_as,
            death_signal=self.spec.stop_signal,
            descriptors=self.store.named(),
        )

    def _stale_owner(self) -> int | None:
        data = Path(self.spec.folder) / "data"
        return stale_owner(data) if self.spec.name == "postgres" else None

    async def _probe_until_ready(self) -> None:
        if self.spec.probe is None:
            return
        pause_s = PROBE_EVERY_S
        while not await is_ready(self.spec.probe):
            await asyncio.sleep(pause_s)
            # A server that needs long (a recovery) writes each question of ours to its log.
            pause_s = min(PROBE_EVERY_S_MAX, pause_s * 1.3)
        self._become_ready()

    def _become_ready(self) -> None:
        if self.pid is not None and not self._stopping.is_set():
            self.ready.set()
            self.refusal = ""
            self._enter("up")

    def _read_notices(self) -> None:
        assert self._notify is not None
        for notice, descriptors in self._notify.receive():
            refused = 0
            if notice.stores:
                refused = self.store.add(notice.name, descriptors)
            else:
                for descriptor in descriptors:  # a barrier: closing it is the answer
                    os.close(descriptor)
            if notice.removes:
                self.store.remove(notice.name)
            if refused:
                self.told = f"{refused} descriptors were refused: {self.spec.fds_max} are kept"
            if notice.status is not None:
                self.told = notice.status[:STATUS_CHARS_MAX]
                self._sign_of_life = asyncio.get_running_loop().time()
            if notice.ready:
                self._become_ready()
            self._changed()

    def end(self, wait_status: int) -> None:
        """The process was reaped with this status."""
        if self._ended and not self._ended.done():
            self._ended.set_result(wait_status)

    async def stop(self, *, at_once: bool = False) -> None:
        """End the service: ask, wait as long as it shows progress, then kill. `at_once`: kill."""
        self._stopping.set()
        if self.pid is None or self._ended is None:
            return
        self.told = ""
        self._enter("stopping")
        self._sign_of_life = asyncio.get_running_loop().time()
        self._signal(signal.SIGKILL if at_once else self.spec.stop_signal)
        while not self._ended.done() and self._has_time():
            await asyncio.wait([self._ended], timeout=0.5)
        if not self._ended.done():
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._ended])

    def _has_time(self) -> bool:
        silent_s = asyncio.get_running_loop().time() - self._sign_of_life
        return silent_s < self.spec.stop_timeout_s

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _unless_stopping(self, wait: Awaitable[object]) -> None:
        waiting = asyncio.ensure_future(wait)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()

    def _enter(self, state: str) -> None:
        self.state = state
        self._changed()

    def _close(self) -> None:
        if self._notify:
            asyncio.get_running_loop().remove_reader(self._notify.fileno())
            self._notify.close()
        self.store.close()
