"""What `up` can be asked for, and what `cluster.json` keeps of it. Values only, no I/O."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Overflow
from tensorcast.schema.nats_rights import Role, identity_of
from tensorcast.schema.servers import split_servers

FORMAT: Final = 1
NODES_MAX: Final = 64
DRAM_BYTES_MIN: Final = 16 * 1024 * 1024
LOOPBACK: Final = "127.0.0.1"

_CLUSTER_NAME = re.compile(r"[a-z0-9-]{1,32}")
_CONTEXT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One request to `up`. None means: as it was, or the default when there was nothing.

    `nodes` is a minimum: `up` never takes a node away. With `nats_url` or `postgres_url` that
    server is the user's own and is not started here. The two commands replace those of our own
    processes (to wrap them in a profiler, or to stand in for them in tests).
    """

    home: Path
    nodes: int = 1
    dram_bytes: int | None = None
    kv_disk_bytes: int | None = None
    disk_bytes: int | None = None
    overflow: Overflow | None = None
    cluster: str | None = None
    context: str | None = None
    nats_url: str | None = None
    postgres_url: str | None = None
    controlplane_command: tuple[str, ...] = ()
    mover_command: tuple[str, ...] = ()


class External(msgspec.Struct, frozen=True, kw_only=True, tag="external"):
    """A server that somebody else runs."""

    url: str


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody whom our nats-server knows by a public key. `name` is that of the node or of the
    user. While a key is rotated the `former` one counts as well."""

    role: Role
    name: str = ""
    public: str
    former: str = ""

    @property
    def id(self) -> str:
        """`controlplane`, `mover.n1`, `user.ada`: what it is called everywhere."""
        return identity_of(self.role, self.name)


class EmbeddedNats(msgspec.Struct, frozen=True, kw_only=True, tag="embedded"):
    """Our own nats-server on the loopback interface. `user` is the operator, who may do all;
    `identities` (none in a home of an older release) have the rights that their work needs."""

    port: int
    monitor_port: int
    user: str
    password: str
    identities: tuple[Identity, ...] = ()

    @property
    def address(self) -> str:
        """Where it is, for who has a key."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Where it is, and the operator's password."""
        return f"nats://{self.user}:{self.password}@{LOOPBACK}:{self.port}"


class EmbeddedPostgres(msgspec.Struct, frozen=True, kw_only=True, tag="embedded"):
    """Our own Postgres on the loopback interface.

    `folder` holds its data and perhaps a copy of its programs; `programs` is the folder of the
    programs in use; `run_as` is the system user that it runs as (None: the one of the supervisor).
    """

    port: int
    password: str
    admin_password: str
    folder: str = ""
    programs: str = ""
    run_as: str | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tensorcast:{self.password}@{LOOPBACK}:{self.port}/tensorcast"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One mover of the embedded cluster. `disk_bytes` (None: what is free, less a reserve) are for
    replicas, `kv_disk_bytes` of disk for KV blocks. `overflow` (empty: the mover's default) is what
    it does when its memory is full."""

    name: str
    dram_bytes: int
    disk_bytes: int | None = None
    overflow: str = ""
    kv_disk_bytes: int = 0


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster.json`: everything that the supervisor needs to know (it holds passwords)."""

    format: int = FORMAT
    cluster: str
    context: str
    nats: EmbeddedNats | External
    postgres: EmbeddedPostgres | External
    nodes: tuple[NodeConfig, ...]
    sockets: str
    home_is_ours: bool = True
    controlplane_command: tuple[str, ...] = ()
    mover_command: tuple[str, ...] = ()


def check_options(options: UpOptions) -> None:
    """Refuse what makes no sense.

    Raises `InvalidArgument`.
    """
    if not 0 <= options.nodes <= NODES_MAX:
        raise InvalidArgument(
            f"A cluster on one machine has 0 to {NODES_MAX} nodes, not {options.nodes}.",
            hint="Give another number with --nodes.",
        )
    if options.dram_bytes is not None and options.dram_bytes < DRAM_BYTES_MIN:
        raise InvalidArgument(
            f"A node needs at least {DRAM_BYTES_MIN >> 20} MiB of DRAM.",
            hint="Give more with --dram, for example --dram 2GiB.",
        )
    _check_name("cluster", options.cluster, _CLUSTER_NAME, "a-z, 0-9 and -, at most 32")
    _check_name("context", options.context, _CONTEXT_NAME, "letters, digits and . _ -, at most 64")
    _check_url("NATS", options.nats_url, ("nats", "tls", "ws", "wss"))
    _check_url("Postgres", options.postgres_url, ("postgresql", "postgres"))


def _check_name(what: str, name: str | None, rule: re.Pattern[str], words: str) -> None:
    if name is None or rule.fullmatch(name):
        return
    raise InvalidArgument(f"{name!r} is no name for a {what}.", hint=f"Use {words} characters.")


def _check_url(what: str, url: str | None, schemes: tuple[str, ...]) -> None:
    if url is None or urlsplit(url).scheme in schemes:
        return
    raise InvalidArgument(
        f"{hide_password(url)!r} is no URL of a {what} server.",
        hint=f"It has to begin with {schemes[0]}://.",
    )


def hide_password(url: str) -> str:
    """A URL without its credentials, fit to be shown."""
    shown = []
    for one in split_servers(url):
        parts = urlsplit(one)
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")
        shown.append(bare.geturl())
    return ",".join(shown)


def grow_nodes(
    nodes: tuple[NodeConfig, ...],
    *,
    count: int,
    dram_bytes: int,
    kv_disk_bytes: int = 0,
    disk_bytes: int | None = None,
    overflow: str = "",
) -> tuple[NodeConfig, ...]:
    """`nodes` and as many new ones as are missing to `count`, named n1, n2, ..."""
    names = {node.name for node in nodes}
    fresh = (f"n{i}" for i in range(1, NODES_MAX + count + 1))
    missing = [name for name in fresh if name not in names][: max(0, count - len(nodes))]
    return nodes + tuple(
        NodeConfig(
            name=name,
            dram_bytes=dram_bytes,
            kv_disk_bytes=kv_disk_bytes,
            disk_bytes=disk_bytes,
            overflow=overflow,
        )
        for name in missing
    )


def merge_server(
    what: str, known: EmbeddedNats | EmbeddedPostgres | External, url: str | None
) -> External | None:
    """The server that `url` asks for instead of the `known` one; None: keep the known one.

    Raises `InvalidArgument` when the data of the known one would be left behind.
    """
    if url is None:
        return None
    if isinstance(known, External):
        return External(url=url)
    raise InvalidArgument(
        f"This home keeps its data in a {what} server of its own.",
        hint="Choose another folder with --data-dir for a cluster on your own server.",
    )
