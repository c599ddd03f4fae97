"""The cluster that is tormented: NATS, Postgres, two control planes and a mover, each of which can
be killed, stopped, cut off, and lied to about time and disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from chaos.shims import Shim, build
from chaos.wires import Wire
from mover_nodes import MIB, MoverNode
from servers import NatsServer, PostgresServer, Server
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.deploy.spawn import Launch

CLUSTER = "test"
NATS_DISK, POSTGRES_DISK = "96m", "320m"
NODE_TIMEOUT_S = 4


class Disk:
    """A small file system in memory; `fill` leaves no room on it."""

    def __init__(self, folder: Path, size: str) -> None:
        folder.mkdir()
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)]
        self.is_small = subprocess.run(command, capture_output=True, check=False).returncode == 0
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        block = bytes(MIB)
        with suppress(OSError), self._ballast.open("wb", buffering=0) as ballast:
            while True:
                ballast.write(block)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        if self.is_small:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class ShimmedPostgres(PostgresServer):
    """Postgres with a shim; `pids` are all its processes."""

    shim: Shim

    def launch(self) -> Launch:
        found = super().launch()
        return Launch(
            command=found.command,
            environ=found.environ | self.shim.environ,
            folder=found.folder,
            log=found.log,
            run_as=found.run_as,
            death_signal=found.death_signal,
        )


class ControlPlane:
    """One control plane, behind wires of its own to both servers."""

    def __init__(self, name: str, folder: Path, world: World, database: str) -> None:
        self.name = name
        self.shim = Shim(world.library, folder / f"{name}.shim")
        self.to_nats = Wire(world.nats.port)
        self.to_postgres = Wire(world.postgres.port)
        self._log = folder / f"{name}.log"
        self._environ = {
            **os.environ,
            **self.shim.environ,
            "TENSORCAST_CLUSTER": CLUSTER,
            "TENSORCAST_NATS_URL": _through(world.nats.url, world.nats.port, self.to_nats),
            "TENSORCAST_POSTGRES_URL": _through(database, world.postgres.port, self.to_postgres),
            "TENSORCAST_NODE_TIMEOUT_S": str(NODE_TIMEOUT_S),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tensorcast.controlplane.main"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)

    @property
    def pid(self) -> int | None:
        """Its process, if it lives."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log_text(self) -> str:
        return self._log.read_text()[-6000:]

    def close(self) -> None:
        self.kill()
        for wire in (self.to_nats, self.to_postgres):
            wire.close()
        self.shim.close()


def _through(url: str, port: int, wire: Wire) -> str:
    return url.replace(f":{port}", f":{wire.port}")


class World:
    """All of it, by name in `targets`."""

    def __init__(self, folder: Path, owned: ExitStack) -> None:
        self.folder = folder
        self.library = build(folder)
        self.disks = {
            "nats": Disk(folder / "nats", NATS_DISK),
            "postgres": Disk(folder / "postgres", POSTGRES_DISK),
        }
        for disk in self.disks.values():
            owned.callback(disk.close)
        self.nats = NatsServer(folder / "nats")
        self.postgres = ShimmedPostgres(folder / "postgres")
        self.postgres.shim = Shim(self.library, folder / "postgres.shim")
        for server in (self.nats, self.postgres):
            server.start()
            owned.callback(server.kill)
        self.database = self.postgres.create_database()
        self.planes = [ControlPlane(f"plane{n}", folder, self, self.database) for n in (1, 2)]
        for plane in self.planes:
            owned.callback(plane.close)
        self.mover_shim = Shim(self.library, folder / "mover.shim")
        self.to_mover = Wire(self.nats.port)
        owned.callback(self.to_mover.close)
        self.mover = MoverNode(
            "m1",
            folder / "m1",
            _through(self.nats.url, self.nats.port, self.to_mover),
            TENSORCAST_DRAM_BYTES=str(64 * MIB),
            TENSORCAST_DISK_BYTES=str(64 * MIB),
            **self.mover_shim.environ,
        )
        owned.callback(self.mover.close)

    async def start(self) -> None:
        """The database is made before both control planes start at once."""
        await migrate(self.database)
        for plane in self.planes:
            plane.start()
        self.mover.launch()

    # ---- processes -------------------------------------------------------------------------

    def pids(self, target: str) -> list[int]:
        """The living processes of a target."""
        match target:
            case "nats":
                found = [self.nats.pid]
            case "postgres":
                found = [self.postgres.pid, *_children(self.postgres.pid)]
            case "m1":
                found = [self.mover.pid if self.mover.is_running() else None]
            case _:
                found = [self.plane(target).pid]
        return [pid for pid in found if pid is not None]

    def plane(self, name: str) -> ControlPlane:
        return next(plane for plane in self.planes if plane.name == name)

    def signal(self, target: str, number: int) -> None:
        for pid in self.pids(target):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, target: str) -> None:
        """As a crash."""
        self.signal(target, signal.SIGKILL)
        self._reap(target)

    def _reap(self, target: str) -> None:
        match target:
            case "nats" | "postgres":
                _bury(self.server(target))
            case "m1":
                self.mover.kill()
            case _:
                self.plane(target).kill()

    def server(self, target: str) -> Server:
        return self.nats if target == "nats" else self.postgres

    def revive(self, target: str) -> None:
        """Starts it when it does not run. A server is awaited."""
        if target in ("nats", "postgres"):
            server = self.server(target)
            if server.pid is not None:
                with suppress(ChildProcessError):
                    server._has_ended()
            if server.pid is None:
                server.start()
        elif not self.pids(target):
            if target == "m1":
                self.mover.take_in()
                self.mover.launch()
            else:
                self.plane(target).start()

    # ---- what they are told ----------------------------------------------------------------

    def shim(self, target: str) -> Shim | None:
        """NATS has none: it does not ask the C library."""
        match target:
            case "nats":
                return None
            case "postgres":
                return self.postgres.shim
            case "m1":
                return self.mover_shim
            case _:
                return self.plane(target).shim

    @property
    def wires(self) -> dict[str, Wire]:
        found = {f"{one.name}-nats": one.to_nats for one in self.planes}
        found |= {f"{one.name}-postgres": one.to_postgres for one in self.planes}
        return {**found, "m1-nats": self.to_mover}

    def logs(self) -> str:
        """The ends of all logs, for whoever looks into a failure."""
        texts = {one.name: one.log_text() for one in self.planes}
        texts |= {"nats": self.nats.log_text(), "postgres": self.postgres.log_text()}
        texts["m1"] = self.mover.log_text()
        return "\n".join(f"==== {name}\n{text}" for name, text in texts.items())


def _children(pid: int | None) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _bury(server: Server) -> None:
    if server.pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(server.pid, 0)
        server.pid = None


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """A world in a folder that any user may enter; all of it ends with the block."""
    folder.chmod(0o755)
    with ExitStack() as owned:
        yield World(folder, owned)
