"""The client context that `up` leaves behind, so that `tcctl` and the SDK find the cluster.

`<config dir>/contexts/<name>.json`, and `<config dir>/current` with the name of the one in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tensorcast.deploy.home import make_folder, write_private
from tensorcast.deploy.options import ClusterConfig
from tensorcast.deploy.plan import reach
from tensorcast.schema.access import Access


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """How a client on this machine reaches one mover."""

    socket: str


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches a cluster."""

    cluster: str
    nats_url: str
    home: str | None
    nodes: dict[str, NodeContext]
    default_node: str | None
    access: Access = Access()


def config_folder(environ: Mapping[str, str]) -> Path:
    """`$TENSORCAST_CONFIG_DIR`, else tensorcast/ in `$XDG_CONFIG_HOME` or ~/.config."""
    named = environ.get("TENSORCAST_CONFIG_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser().absolute() / "tensorcast"


def describe(config: ClusterConfig, home: Path, access: Access) -> Context:
    """The context of an embedded cluster, for who has this access."""
    names = [node.name for node in config.nodes]
    return Context(
        cluster=config.cluster,
        nats_url=reach(config.nats),
        access=access,
        home=str(home),
        nodes={name: NodeContext(socket=f"{config.sockets}/{name}.sock") for name in names},
        default_node=names[0] if names else None,
    )


def write_context(folder: Path, name: str, context: Context) -> None:
    """Write a context and make it the current one; nothing is written when all is so already."""
    make_folder(folder, 0o700)
    make_folder(folder / "contexts", 0o700)
    text = msgspec.json.format(msgspec.json.encode(context), indent=2) + b"\n"
    for path, data in (
        (folder / "contexts" / f"{name}.json", text),
        (folder / "current", f"{name}\n".encode()),
    ):
        if not path.exists() or path.read_bytes() != data:
            write_private(path, data)


def use_context(folder: Path, name: str) -> None:
    """Make an existing context the current one."""
    write_private(folder / "current", f"{name}\n".encode())


def read_home(folder: Path, name: str) -> str | None:
    """The home that a context leads to; None when there is no such context or it has no home."""
    try:
        data = (folder / "contexts" / f"{name}.json").read_bytes()
        return msgspec.json.decode(data, type=Context).home
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_context(folder: Path, name: str, home: Path) -> None:
    """Remove a context if it is the one of this home; safe to repeat."""
    if read_home(folder, name) != str(home):
        return
    (folder / "contexts" / f"{name}.json").unlink()
    current = folder / "current"
    if current.exists() and current.read_text().strip() == name:
        current.unlink()
