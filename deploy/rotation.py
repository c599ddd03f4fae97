"""Keys of a running cluster: a nats-server that takes new ones in, and their rotation.

A rotation first lets the server know both keys, then replaces the file. Processes look at their
file and connect anew by themselves; when nobody uses the old key any more (or after a while) the
server forgets it, and closes what still does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from tensorcast.deploy.home import Layout, save_config
from tensorcast.deploy.keys import draw_key, identities_of, replace_identities, write_key
from tensorcast.deploy.nats_server import write_config
from tensorcast.deploy.options import LOOPBACK, ClusterConfig, EmbeddedNats, Identity
from tensorcast.schema.errors import Timeout, Unavailable

RELOAD_S_MAX: Final = 10.0
MOVE_S_MAX: Final = 15.0
_POLL_S: Final = 0.05
_ANSWER_BYTES_MAX: Final = 64 << 20
_LIST_MAX: Final = 65_536
T = TypeVar("T")


class _Loaded(msgspec.Struct, frozen=True):
    config_load_time: str


class _Connected(msgspec.Struct, frozen=True):
    authorized_user: str = ""


class _Connections(msgspec.Struct, frozen=True):
    connections: tuple[_Connected, ...] = ()


def apply(layout: Layout, config: ClusterConfig, pid: int | None) -> None:
    """Saves a configuration; a nats-server that runs (`pid`) has it when this returns. Raises
    Unavailable, Timeout."""
    assert isinstance(config.nats, EmbeddedNats)
    save_config(layout, config)
    write_config(layout, config.nats, cluster=config.cluster)
    if pid is None:
        return
    before = _ask(config.nats, "varz", _Loaded)
    os.kill(pid, signal.SIGHUP)
    deadline = time.monotonic() + RELOAD_S_MAX
    while _ask(config.nats, "varz", _Loaded) == before:
        if time.monotonic() > deadline:
            raise Timeout(
                "The NATS server does not read its new configuration.",
                hint=f"Its log {layout.log('nats')} says why.",
            )
        time.sleep(_POLL_S)


def rotate(
    layout: Layout,
    config: ClusterConfig,
    chosen: tuple[Identity, ...],
    pid: int | None,
    progress: Callable[[str], None],
) -> ClusterConfig:
    """The configuration with new keys for the chosen identities, in use. Raises as `apply`."""
    fresh = {one.id: draw_key() for one in chosen}
    both = replace_identities(
        config,
        tuple(
            msgspec.structs.replace(one, public=fresh[one.id].public, former=one.public)
            if one.id in fresh
            else one
            for one in identities_of(config)
        ),
    )
    apply(layout, both, pid)
    for name, credentials in fresh.items():
        write_key(layout, name, credentials)
    assert isinstance(both.nats, EmbeddedNats)
    if pid is not None:
        _wait_moved(both.nats, {one.public for one in chosen}, progress)
    alone = replace_identities(
        both,
        tuple(msgspec.structs.replace(one, former="") for one in both.nats.identities),
    )
    apply(layout, alone, pid)
    for name in sorted(fresh):
        progress(f"{name} has a new key")
    return alone


def _wait_moved(nats: EmbeddedNats, old: set[str], progress: Callable[[str], None]) -> None:
    deadline = time.monotonic() + MOVE_S_MAX
    while left := _users(nats) & old:
        if time.monotonic() > deadline:
            progress(f"{len(left)} old keys are still in use: their connections are closed")
            return
        time.sleep(_POLL_S)


def _users(nats: EmbeddedNats) -> set[str]:
    """The keys by which somebody is connected."""
    found = _ask(nats, f"connz?auth=1&limit={_LIST_MAX}", _Connections)
    return {one.authorized_user for one in found.connections}


def _ask(nats: EmbeddedNats, what: str, answer: type[T]) -> T:
    """What the server tells on its monitoring port. Raises Unavailable."""
    try:
        with urlopen(f"http://{LOOPBACK}:{nats.monitor_port}/{what}", timeout=5) as reply:
            return msgspec.json.decode(reply.read(_ANSWER_BYTES_MAX), type=answer)
    except (URLError, OSError, msgspec.MsgspecError) as error:
        raise Unavailable(
            f"The NATS server does not tell how it is: {error}.", hint="`tcctl status` says more."
        ) from error
