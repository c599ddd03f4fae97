"""A real nats-server that knows everybody by a key, and clients with such keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from servers import NatsServer
from tensorcast.client.api import ControlPlane
from tensorcast.client.position import Position
from tensorcast.deploy import keys
from tensorcast.deploy.home import Layout
from tensorcast.deploy.nats_server import config_file, find_program, write_config
from tensorcast.deploy.options import ClusterConfig, External, NodeConfig
from tensorcast.deploy.spawn import Launch
from tensorcast.log.jetstream import JetStreamLog, connect_log
from tensorcast.schema.access import Access

CLUSTER = "test"


class Keyed(NatsServer):
    """A server that knows a control plane, two movers, who runs it, the users `also`, and the
    reader bob."""

    def __init__(self, folder: Path, *also: str) -> None:
        super().__init__(folder)
        self.layout = Layout(folder)
        for made in (self.layout.keys, self.layout.nats):
            made.mkdir()
        nodes = tuple(NodeConfig(name=name, dram_bytes=1) for name in ("n1", "n2"))
        config = ClusterConfig(
            cluster=CLUSTER,
            context=CLUSTER,
            nats=self.settings,
            postgres=External(url="postgresql://h/d"),
            nodes=nodes,
            sockets=str(folder),
        )
        config = keys.complete_keys(self.layout, config)
        for name in also:
            config = keys.add_user(self.layout, config, name, is_reader=False)
        self.config = keys.add_user(self.layout, config, "bob", is_reader=True)
        self.url = self.config.nats.address
        write_config(self.layout, self.config.nats, cluster=CLUSTER)

    def launch(self) -> Launch:
        command = (str(find_program()), "-c", str(config_file(self.layout)))
        return msgspec.structs.replace(super().launch(), command=command)

    def access(self, identity: str) -> Access:
        return Access(credentials=str(self.layout.key(identity)), identity=identity)

    @asynccontextmanager
    async def log(self, identity: str) -> AsyncIterator[JetStreamLog]:
        """The log, as this identity reaches it."""
        found = await connect_log(self.url, CLUSTER, name=identity, access=self.access(identity))
        try:
            yield found
        finally:
            await found.aclose()


@asynccontextmanager
async def user(server: Keyed, identity: str) -> AsyncIterator[ControlPlane]:
    """Asks the control plane with the key of an identity."""
    api = ControlPlane(server.url, CLUSTER, "user:x@y", Position(), access=server.access(identity))
    try:
        yield api
    finally:
        await api.aclose()
