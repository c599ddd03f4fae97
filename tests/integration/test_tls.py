"""A whole cluster over TLS: NATS and Postgres ask for certificates, and so does everybody else.

The Postgres of the wheel has no TLS: one of the system is needed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
import torch

import tensorcast as tc
from controlplanes import ControlPlane
from mover_nodes import MoverNode
from servers import LOOPBACK, NatsServer, PostgresServer
from tensorcast.client import Context, NodeContext
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.deploy.certificates import issue, make_authority
from tensorcast.deploy.options import EmbeddedPostgres
from tensorcast.deploy.pgdata import Account, choose_account, run_as
from tensorcast.deploy.ports import choose_port
from tensorcast.deploy.postgres_server import environment
from tensorcast.deploy.spawn import Launch
from tensorcast.log.jetstream import connect_log
from tensorcast.schema.access import Access
from tensorcast.schema.errors import PermissionDenied, Unavailable

PROGRAMS = Path(shutil.which("postgres") or "/nowhere").resolve().parent
HAS_TLS = (PROGRAMS / "initdb").exists() and "openssl" in subprocess.run(
    [str(PROGRAMS / "pg_config"), "--configure"], capture_output=True, text=True, check=False
).stdout
NOT_TRUSTED = "certificate of the NATS server .* not trusted"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.failover,
    pytest.mark.skipif(not HAS_TLS, reason="there is no Postgres with TLS on the PATH"),
]


class TlsNats(NatsServer):
    def __init__(self, folder: Path, certificates: Path) -> None:
        super().__init__(folder)
        certificate, key = issue(certificates, "nats", [LOOPBACK, "localhost"])
        tls = (
            f'tls {{ cert_file: "{certificate}", key_file: "{key}",'
            f' ca_file: "{certificates / "ca.pem"}", verify: true }}\n'
        )
        config = folder / "nats.conf"
        config.write_text(config.read_text() + tls)
        self.url = self.url.replace("nats://", "tls://")


class TlsPostgres(PostgresServer):
    """A server of the system, which takes connections by TLS with a certificate and a password."""

    def __init__(self, folder: Path, certificates: Path) -> None:
        self.folder, self.pid, self.port = folder, None, choose_port()
        self.account: Account | None = choose_account(uid=os.geteuid(), known=None)
        self.settings = EmbeddedPostgres(
            port=self.port,
            password="secret",
            admin_password="secret",
            folder=str(folder),
            programs=str(PROGRAMS),
            run_as=self.account.name if self.account else None,
        )
        folder.chmod(0o755)
        own = folder / "tls"
        own.mkdir()
        for source, name in zip(
            (*issue(certificates, "postgres", [LOOPBACK]), certificates / "ca.pem"),
            ("server.pem", "server-key.pem", "ca.pem"),
            strict=True,
        ):
            shutil.copy(source, own / name)
            (own / name).chmod(0o600)
        (own / "password").write_text("secret\n")
        (folder / "data").mkdir()
        if self.account is not None:
            for path in (folder / "data", own, *own.iterdir()):
                os.chown(path, self.account.uid, self.account.gid)
        self._initialize()

    def _initialize(self) -> None:
        done = run_as(
            self.account,
            (
                str(PROGRAMS / "initdb"),
                *("-D", str(self.folder / "data"), "-U", "tensorcast", "-A", "scram-sha-256"),
                *(
                    "--pwfile",
                    str(self.folder / "tls" / "password"),
                    "-E",
                    "UTF8",
                    "--locale",
                    "C",
                    "--no-sync",
                ),
            ),
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        rule = "hostssl all all all scram-sha-256 clientcert=verify-ca\n"
        (self.folder / "data" / "pg_hba.conf").write_text(rule)

    def launch(self) -> Launch:
        own = self.folder / "tls"
        options = {
            "port": str(self.port),
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": str(own / "server.pem"),
            "ssl_key_file": str(own / "server-key.pem"),
            "ssl_ca_file": str(own / "ca.pem"),
            "max_connections": "60",
            "shared_buffers": "16MB",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return Launch(
            command=(str(PROGRAMS / "postgres"), "-D", str(self.folder / "data"), *flags),
            environ=environment(),
            folder=str(self.folder),
            log=str(self.folder / "server.log"),
            run_as=self.settings.run_as,
        )

    def is_ready(self) -> bool:
        return "ready to accept connections" in self.log_text()


class Place:
    """Both servers, an authority, and certificates of another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls, self.other = folder / "tls", folder / "other"
        for certificates in (self.tls, self.other):
            make_authority(certificates)
            issue(certificates, "client")
        for name in ("nats", "postgres"):
            (folder / name).mkdir()
        folder.chmod(0o755)
        self.nats = TlsNats(folder / "nats", self.tls)
        self.postgres = TlsPostgres(folder / "postgres", self.tls)

    def access(self, authority: Path | None = None, shown: Path | None = None) -> Access:
        own = shown or self.tls
        return Access(
            ca=str((authority or self.tls) / "ca.pem"),
            certificate=str(own / "client.pem"),
            key=str(own / "client-key.pem"),
        )

    def environ(self) -> dict[str, str]:
        access = self.access()
        return {
            "TENSORCAST_NATS_CA": access.ca,
            "TENSORCAST_NATS_CERT": access.certificate,
            "TENSORCAST_NATS_CERT_KEY": access.key,
        }

    def database(self, authority: Path | None = None, *, shows: bool = True) -> str:
        url = f"postgresql://tensorcast:secret@{LOOPBACK}:{self.postgres.port}/postgres"
        url += f"?sslmode=verify-full&sslrootcert={(authority or self.tls) / 'ca.pem'}"
        if shows:
            url += f"&sslcert={self.tls / 'client.pem'}&sslkey={self.tls / 'client-key.pem'}"
        return url


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="tc-tls-"))
    place = Place(folder)
    try:
        place.nats.start()
        place.postgres.start()
        yield place
    finally:
        place.nats.stop()
        place.postgres.stop()
        shutil.rmtree(folder)


@asynccontextmanager
async def cluster(place: Place) -> AsyncIterator[Context]:
    plane = ControlPlane(place.folder, place.nats.url, place.database(), **place.environ())
    node = MoverNode("n1", place.folder / "n1", place.nats.url, **place.environ())
    try:
        await plane.start()
        await asyncio.to_thread(node.start)
        yield Context(
            cluster="test",
            nats_url=place.nats.url,
            nodes={"n1": NodeContext(socket=str(node.socket))},
            default_node="n1",
            access=place.access(),
        )
    finally:
        plane.end()
        node.close()


async def test_a_cluster_works_over_tls(place: Place):
    async with cluster(place) as context, tc.connect_async(context) as client:
        artifact = await client.put({"w": torch.arange(9.0)}, key="m@1")
        assert (await client.api.key("m@1")).artifact == artifact.id
        assert (await client.api.history("m@1"))[0].type == "artifact.sealed"
        assert (await client.get("m@1"))["w"][8] == 8


async def test_who_trusts_another_authority_says_so_in_one_sentence(place: Place):
    context = Context(
        cluster="test", nats_url=place.nats.url, access=place.access(authority=place.other)
    )
    async with tc.connect_async(context) as client:
        with pytest.raises(PermissionDenied, match=NOT_TRUSTED):
            await client.api.status()
    with pytest.raises(PermissionDenied, match=NOT_TRUSTED):
        await connect_log(place.nats.url, "test", name="n1", access=place.access(place.other))
    engine = make_engine(place.database(place.other), name="test")
    with pytest.raises(PermissionDenied, match="do not accept each other's certificates"):
        async with connecting(engine):
            pass
    await engine.dispose()


async def test_who_shows_no_certificate_or_a_foreign_one_is_kept_out(place: Place):
    for shown in (place.access(shown=place.other), Access(ca=place.access().ca)):
        with pytest.raises((PermissionDenied, Unavailable), match="NATS server"):
            await connect_log(place.nats.url, "test", name="n1", access=shown, timeout_s=3)
    engine = make_engine(place.database(shows=False), name="test")
    with pytest.raises((PermissionDenied, Unavailable), match="certificate"):
        async with connecting(engine):
            pass
    await engine.dispose()
    plain = f"postgresql://tensorcast:secret@{LOOPBACK}:{place.postgres.port}/postgres"
    with pytest.raises((asyncpg.PostgresError, ssl.SSLError, OSError)):
        await asyncpg.connect(plain, ssl="disable")
