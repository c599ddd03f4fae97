"""What operators do with the keys of a home: list, add, remove and rotate. Nothing is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tensorcast.deploy import keys, rotation
from tensorcast.deploy.cluster import find_running, pid_of
from tensorcast.deploy.home import Layout, load_config, locked
from tensorcast.deploy.options import ClusterConfig
from tensorcast.deploy.plan import NATS
from tensorcast.schema.errors import NotFound

Progress = Callable[[str], None]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One key: whose it is, and the file that holds the secret."""

    identity: str
    role: str
    public: str
    file: str


def list_keys(home: Path) -> tuple[KeyInfo, ...]:
    """The keys of a cluster. Raises NotFound, InvalidArgument."""
    layout, config = _load(home)
    return _describe(layout, config)


def add_user(home: Path, name: str, *, is_reader: bool) -> KeyInfo:
    """Makes a key for a user, at once known to the server that runs. Raises Conflict, NotFound."""
    with _changing(home) as (layout, config, pid):
        changed = keys.add_user(layout, config, name, is_reader=is_reader)
        rotation.apply(layout, changed, pid)
    return _describe(layout, changed)[-1]


def remove_user(home: Path, name: str) -> None:
    """Takes a user's key away: their connections are closed. Raises NotFound, Conflict."""
    with _changing(home) as (layout, config, pid):
        rotation.apply(layout, keys.remove_user(config, name), pid)
        layout.key(f"user.{name}").unlink(missing_ok=True)


def rotate(home: Path, wanted: str | None, progress: Progress) -> tuple[KeyInfo, ...]:
    """Gives identities new keys while they work. Raises NotFound, Unavailable, Timeout."""
    with _changing(home) as (layout, config, pid):
        changed = rotation.rotate(layout, config, keys.choose(config, wanted), pid, progress)
    return _describe(layout, changed)


@contextmanager
def _changing(home: Path) -> Iterator[tuple[Layout, ClusterConfig, int | None]]:
    """The cluster, which nobody else changes meanwhile, and the process of its server."""
    layout, _ = _load(home)
    with locked(layout.up_lock):
        _, config = _load(home)
        yield layout, config, pid_of(find_running(layout, config), NATS)


def _load(home: Path) -> tuple[Layout, ClusterConfig]:
    layout = Layout(home.expanduser().absolute())
    config = load_config(layout)
    if config is None or not keys.identities_of(config):
        raise NotFound(f"{home} has no keys.", hint="`tcctl up` makes them.")
    return layout, config


def _describe(layout: Layout, config: ClusterConfig) -> tuple[KeyInfo, ...]:
    return tuple(
        KeyInfo(identity=one.id, role=one.role, public=one.public, file=str(layout.key(one.id)))
        for one in keys.identities_of(config)
    )
