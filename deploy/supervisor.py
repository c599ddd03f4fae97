"""The process that keeps an embedded cluster alive: parent and reaper of every other one.

`python -m tensorcast.deploy.supervisor --home H --detach` is started by `up`. It ends when it is
told to (`down`, SIGTERM); when it is killed its children get their stop signal from the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy import machine
from tensorcast.deploy.control import (
    CONTROL_SOCKET,
    EXTERNAL,
    LINE_BYTES_MAX,
    Reply,
    Request,
    ServiceStatus,
    decode_request,
    encode,
)
from tensorcast.deploy.home import Layout, acquire, load_config, make_folder
from tensorcast.deploy.nats_server import find_program
from tensorcast.deploy.options import ClusterConfig, EmbeddedNats
from tensorcast.deploy.plan import SUPERVISOR, ServiceSpec, plan_services
from tensorcast.deploy.probes import is_ready
from tensorcast.deploy.processes import Child, identify
from tensorcast.deploy.service import Service
from tensorcast.deploy.spawn import become_subreaper
from tensorcast.schema.errors import InvalidArgument, TensorCastError

LOCK_WAIT_S: Final = 10.0
# What a service manager around us may have set is not meant for our children.
_NOT_OURS: Final = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC")


class Supervisor:
    """All services of one cluster."""

    def __init__(self, layout: Layout, config: ClusterConfig, group: asyncio.TaskGroup) -> None:
        self._layout = layout
        self._sockets = Path(config.sockets)
        self._group = group
        self._services: dict[str, Service] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._external: dict[str, ServiceSpec] = {}
        self._said: dict[str, str] = {}
        self._known: dict[str, Child] = {}
        self._listeners: set[asyncio.Queue[str]] = set()
        self.stopping = asyncio.Event()
        self.discards = False

    def add(self, specs: tuple[ServiceSpec, ...]) -> list[str]:
        """Begin to run the services that are not run yet; returns their names."""
        fresh = [spec for spec in specs if spec.name not in self._services]
        self._external |= {spec.name: spec for spec in fresh if not spec.command}
        own = [spec for spec in fresh if spec.command]
        for spec in own:
            self._services[spec.name] = Service(
                spec,
                sockets=self._sockets,
                log=self._layout.log(spec.name),
                environ=os.environ,
                changed=self._note_changes,
            )
        for spec in own:
            keeping = self._services[spec.name].keep(
                self._own(spec.needs), self._own(spec.needs_at_first)
            )
            self._keepers[spec.name] = self._group.create_task(keeping)
        return [spec.name for spec in own]

    def _own(self, names: tuple[str, ...]) -> list[Service]:
        return [self._services[name] for name in names if name in self._services]

    def reload(self) -> list[str]:
        """Read cluster.json again, run what is new in it, and try again at once what fails."""
        for service in self._services.values():
            service.hurry()
        return self.add(read_plan(self._layout))

    async def statuses(self) -> tuple[ServiceStatus, ...]:
        """Every service, this process and the external servers included."""
        own = ServiceStatus(name=SUPERVISOR, state="up", pid=os.getpid())
        external = [await probe_external(spec) for spec in self._external.values()]
        return (own, *external, *(service.status() for service in self._services.values()))

    def reap(self) -> None:
        """Collect every child that has ended, orphans that became ours included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in self._services.values():
                if service.pid == pid:
                    service.end(status)

    async def stop(self) -> None:
        """Stop all, in the reverse order of their stages."""
        stages = sorted({service.spec.stage for service in self._services.values()}, reverse=True)
        for stage in stages:
            names = [n for n, service in self._services.items() if service.spec.stage == stage]
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(self._stop_one(name))

    async def _stop_one(self, name: str) -> None:
        service = self._services[name]
        holds_memory = service.spec.fds_max > 0
        await service.stop(at_once=self.discards and holds_memory)
        await self._keepers[name]

    async def progress(self) -> AsyncIterator[str]:
        """What happens from now on, in words; never ends by itself."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a full disk is no reason to die
            print(datetime.now(UTC).isoformat(timespec="milliseconds"), text, flush=True)
        for queue in self._listeners:
            queue.put_nowait(text)

    def _note_changes(self) -> None:
        """Say what is new: a change of state, or what a stopping service tells of its progress."""
        for name, service in self._services.items():
            stops = service.state == "stopping" and service.told
            now = f"{name}: {service.told}" if stops else f"{name} is {service.state}"
            if self._said.get(name) != now:
                self._said[name] = now
                self._say(now)
        self._note_children()

    def _note_children(self) -> None:
        """Keep a list on disk of who lives, for an `up` or `down` after our own death."""
        pids = {n: service.pid for n, service in self._services.items() if service.pid}
        if pids == {name: child.pid for name, child in self._known.items()}:
            return
        self._known = {name: identify(name, pid) for name, pid in pids.items()}
        fresh = self._layout.children.with_suffix(".new")
        with suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(list(self._known.values())))
            fresh.replace(self._layout.children)


async def probe_external(spec: ServiceSpec) -> ServiceStatus:
    """The state of a server that somebody else runs."""
    answers = spec.probe is None or await is_ready(spec.probe)
    detail = f"{EXTERNAL}{spec.about}" + ("" if answers else "; it does not answer")
    return ServiceStatus(name=spec.name, state="up" if answers else "down", detail=detail)


def read_plan(layout: Layout) -> tuple[ServiceSpec, ...]:
    """The services that cluster.json asks for.

    Raises `InvalidArgument` or `Unavailable` when it cannot be read or a program is missing.
    """
    config = require_config(layout)
    program = find_program() if isinstance(config.nats, EmbeddedNats) else None
    for node in config.nodes:
        make_folder(layout.nodes / node.name, 0o700)
    return plan_services(config, layout, nats_program=program)


def require_config(layout: Layout) -> ClusterConfig:
    """cluster.json, which has to be there."""
    config = load_config(layout)
    if config is None:
        raise InvalidArgument(
            f"{layout.home} is not the home of a cluster.", hint="Run `tcctl up`."
        )
    return config


class ControlServer:
    """Answers on the control socket."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._serving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends what is still told: a cancelled handler would be reported as a crash."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection in a task of our own, which `close` ends."""
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, its answers, the end."""
        try:
            line = await reader.readline()
            if line:
                await self._answer(decode_request(line), writer)
        except ConnectionError:
            return
        except (TensorCastError, OSError, ValueError) as error:
            writer.write(encode(Reply(error=str(error))))
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.do in ("stop", "discard"):
            self._supervisor.discards = request.do == "discard"
            self._supervisor.stopping.set()
            async for text in self._supervisor.progress():
                writer.write(encode(Reply(progress=text)))
                await writer.drain()
            return
        if request.do == "reload":
            names = self._supervisor.reload()
            writer.write(encode(Reply(progress=", ".join(names))))
        else:
            writer.write(encode(Reply(services=await self._supervisor.statuses())))
        await writer.drain()


async def run(layout: Layout) -> None:
    """Keep the cluster alive until somebody asks for its end."""
    config = require_config(layout)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        supervisor = Supervisor(layout, config, group)
        loop.add_signal_handler(signal.SIGCHLD, supervisor.reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.stopping.set)
        supervisor.add(read_plan(layout))
        path = Path(config.sockets) / CONTROL_SOCKET
        control = ControlServer(supervisor)
        server = await _listen(path, control)
        try:
            with _shielded_from_cleaners(path.parent):
                await supervisor.stopping.wait()
                await supervisor.stop()
        finally:
            server.close()
            await control.close()
            path.unlink(missing_ok=True)


@contextmanager
def _shielded_from_cleaners(folder: Path) -> Iterator[None]:
    """systemd-tmpfiles leaves a folder in /tmp alone as long as somebody holds its lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


async def _listen(path: Path, control: ControlServer) -> asyncio.Server:
    path.unlink(missing_ok=True)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The socket is 0600 from its first moment on. Nothing may be awaited under this umask: the
    # services that are started meanwhile would inherit it.
    before = os.umask(0o177)
    try:
        channel.bind(str(path))
    finally:
        os.umask(before)
    return await asyncio.start_unix_server(control.accept, sock=channel, limit=LINE_BYTES_MAX)


def main(arguments: list[str] | None = None) -> int:
    """Run the supervisor; with --detach the caller gets its prompt back at once."""
    parser = argparse.ArgumentParser(prog="tensorcast.deploy.supervisor")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--detach", action="store_true")
    options = parser.parse_args(arguments)
    if options.detach:
        if os.fork():
            return 0
        os.setsid()
    layout = Layout(options.home)
    with layout.supervisor_lock.open("r+" if layout.supervisor_lock.exists() else "w+") as lock:
        if not acquire(lock.fileno(), wait_s=LOCK_WAIT_S):
            print("another supervisor runs here", file=sys.stderr)
            return 1
        return _run_locked(layout, lock.fileno())


def _run_locked(layout: Layout, lock: int) -> int:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    machine.raise_open_files_limit()
    become_subreaper()
    for name in _NOT_OURS:
        os.environ.pop(name, None)
    try:
        asyncio.run(run(layout))
    except TensorCastError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    # An empty file says that this was a good end.
    os.ftruncate(lock, 0)
    layout.children.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
