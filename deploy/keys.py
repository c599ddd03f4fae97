"""The keys of an embedded cluster's identities: made by `up`, one file each, rotated at work.

A secret key is in its file (mode 0600) and nowhere else; `cluster.json` and nats.conf have the
public ones. A file may be read by nobody but its owner, so whoever can read it is who it says.
"""

from __future__ import annotations

import getpass
import os
import secrets
from pathlib import Path

import msgspec

from tensorcast.deploy.home import Layout, write_private
from tensorcast.deploy.options import ClusterConfig, EmbeddedNats, Identity
from tensorcast.schema.access import Access, read_access, user_identity, user_name
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.nats_rights import Role
from tensorcast.schema.nkeys import SEED_BYTES, Credentials, parse_credentials


def own_name() -> str:
    """The user who runs this process, as a name in keys and events."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no name for this uid, as in many containers
        name = str(os.getuid())
    return user_name(name)


def has_keys(config: ClusterConfig) -> bool:
    """Whether the cluster's NATS server knows keys, and not one password alone."""
    return isinstance(config.nats, EmbeddedNats) and bool(config.nats.identities)


def complete_keys(layout: Layout, config: ClusterConfig) -> ClusterConfig:
    """The configuration with a key for the control plane, each node and this user; what is missing
    is made. Safe to repeat. An external NATS server has its own keys."""
    if not isinstance(config.nats, EmbeddedNats):
        return config
    wanted = [(Role.CONTROLPLANE, ""), *((Role.MOVER, node.name) for node in config.nodes)]
    if not any(one.role is Role.USER for one in config.nats.identities):
        wanted.append((Role.USER, own_name()))
    known = {(one.role, one.name): one for one in config.nats.identities}
    for role, name in wanted:
        found = known.get((role, name))
        known[role, name] = found or Identity(role=role, name=name, public="")
    made = tuple(_with_key(layout, one) for one in known.values())
    return replace_identities(config, made)


def _with_key(layout: Layout, identity: Identity) -> Identity:
    """The identity as its file says; a file that is missing is made. What was left by a rotation
    that broke off is put right."""
    try:
        public = parse_credentials(layout.key(identity.id).read_text()).public
    except FileNotFoundError:
        fresh = draw_key()
        write_key(layout, identity.id, fresh)
        public = fresh.public
    return msgspec.structs.replace(identity, public=public, former="")


def draw_key() -> Credentials:
    """A new key."""
    return Credentials(secrets.token_bytes(SEED_BYTES))


def write_key(layout: Layout, identity: str, credentials: Credentials) -> None:
    """Puts a key into the file of an identity, in one step."""
    write_private(layout.key(identity), f"{credentials.seed}\n".encode())


def replace_identities(config: ClusterConfig, identities: tuple[Identity, ...]) -> ClusterConfig:
    """The configuration with these identities."""
    assert isinstance(config.nats, EmbeddedNats)
    nats = msgspec.structs.replace(config.nats, identities=identities)
    return msgspec.structs.replace(config, nats=nats)


def identities_of(config: ClusterConfig) -> tuple[Identity, ...]:
    """The identities of a cluster. Raises InvalidArgument when its NATS server is not ours."""
    if not isinstance(config.nats, EmbeddedNats):
        raise InvalidArgument(
            "This cluster uses a NATS server of your own: its keys are in its configuration.",
            hint="docs/security.md shows the rights that each process needs.",
        )
    return config.nats.identities


def add_user(layout: Layout, config: ClusterConfig, name: str, *, is_reader: bool) -> ClusterConfig:
    """The configuration with one more user, whose key is made. Raises Conflict when the name is
    taken, InvalidArgument."""
    role = Role.READER if is_reader else Role.USER
    fresh = draw_key()
    one = Identity(role=role, name=name, public=fresh.public)
    if user_identity(name) in {known.id for known in identities_of(config)}:
        raise Conflict(f"There is a key of {name!r} already.", hint="`tcctl keys ls` shows it.")
    write_key(layout, one.id, fresh)
    return replace_identities(config, (*identities_of(config), one))


def remove_user(config: ClusterConfig, name: str) -> ClusterConfig:
    """The configuration without a user. Raises NotFound, and Conflict for the last one who may
    change anything."""
    known = identities_of(config)
    left = tuple(one for one in known if one.id != user_identity(name))
    if len(left) == len(known):
        raise NotFound(f"There is no key of {name!r}.", hint="`tcctl keys ls` shows the keys.")
    if not any(one.role is Role.USER for one in left):
        raise Conflict(f"{name!r} is the only user.", hint="Add another one first.")
    return replace_identities(config, left)


def choose(config: ClusterConfig, wanted: str | None) -> tuple[Identity, ...]:
    """The identities that a word means: `controlplane`, `mover.n1`, `mover`, `user`; all without
    one. Raises NotFound."""
    known = identities_of(config)
    found = tuple(one for one in known if wanted in (None, one.id, one.role))
    if not found:
        raise NotFound(f"There is no key of {wanted!r}.", hint="`tcctl keys ls` shows the keys.")
    return found


def access_of(layout: Layout, config: ClusterConfig) -> Access:
    """How the user of this process reaches NATS: by the key of their name, else the first user's;
    for a server of their own as the environment says."""
    if not isinstance(config.nats, EmbeddedNats):
        return read_access(os.environ)
    users = [one for one in config.nats.identities if one.role is Role.USER]
    if not users:
        return Access()
    mine = next((one for one in users if one.name == own_name()), users[0])
    return Access(credentials=str(Path(layout.key(mine.id))), identity=mine.id)
