"""How a process reaches a NATS server: by which identity, and by which certificates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from tensorcast.schema.errors import InvalidArgument

CREDENTIALS: Final = "TENSORCAST_NATS_CREDENTIALS"
USER: Final = "TENSORCAST_USER"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_-]")
_TLS: Final = ("TENSORCAST_NATS_CA", "TENSORCAST_NATS_CERT", "TENSORCAST_NATS_CERT_KEY")


class Access(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Paths of files, and who one is. `credentials` holds a seed (nkey) or a JWT with a seed; it is
    read at every connection, so that a rotated key is used by the next one. `identity` is what the
    server knows the key as: `controlplane`, `mover.<node>`, `user.<name>`. `ca` are certificates
    that sign the server's, `certificate` and `key` are those that this side shows."""

    credentials: str = ""
    identity: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def inbox(self) -> str:
        """Where answers come to: each identity hears its own alone."""
        return f"_INBOX.{self.identity}" if self.identity else "_INBOX"

    @property
    def user(self) -> str:
        """The name of a user's identity; empty for any other."""
        kind, _, name = self.identity.partition(".")
        return name if kind == "user" else ""

    @property
    def is_mover(self) -> bool:
        """Whether it is a mover's, whose rights make and delete nothing at the server."""
        return self.identity.startswith("mover.")

    @property
    def has_tls(self) -> bool:
        """Whether certificates are named."""
        return bool(self.ca or self.certificate)


def read_access(environ: Mapping[str, str], identity: str = "") -> Access:
    """The access that an environment asks for; without an `identity` that of the user that it
    names. Raises InvalidArgument."""
    credentials = environ.get(CREDENTIALS, "")
    ca, certificate, key = (environ.get(name, "") for name in _TLS)
    if bool(certificate) != bool(key):
        raise InvalidArgument(
            f"{_TLS[1]} and {_TLS[2]} go together.", hint="Set both to files, or none of them."
        )
    user = environ.get(USER, "")
    own = identity or (user_identity(user) if user else "")
    return Access(
        credentials=credentials,
        identity=own if credentials else "",
        ca=ca,
        certificate=certificate,
        key=key,
    )


def user_identity(name: str) -> str:
    """The identity of a user. Raises InvalidArgument for a name that NATS could misread."""
    if not is_user_name(name):
        raise InvalidArgument(
            f"{name!r} is no name for a user.", hint="Use letters, digits, '_' and '-', at most 64."
        )
    return f"user.{name}"


def user_name(login: str) -> str:
    """A login as the name of a user: other characters become '_'."""
    return _STRANGE.sub("_", login)[:64]


def is_user_name(name: str) -> bool:
    """Whether it can be the name of a user: one token of a subject."""
    return _NAME.fullmatch(name) is not None


def user_of(actor: str) -> str:
    """Who stands behind an actor that `actor_of` made; "" for none, as of a policy or a mover."""
    kind, _, name = actor.partition(":")
    if kind in ("policy", "mover"):
        return ""
    before, at, after = name.partition("@")
    found = before if kind == "user" else after if at else ""
    return found if is_user_name(found) else ""


def actor_of(user: str, claimed: str) -> str:
    """Who did something, for the log: `user` is authenticated, `claimed` is what the process calls
    itself. `user:eve@desk` becomes `user:ada@desk`, `engine:e1` becomes `engine:e1@ada`."""
    kind, _, name = claimed.partition(":")
    if kind != "user":
        return claimed if claimed.endswith(f"@{user}") else f"{claimed}@{user}"
    _, at, place = name.partition("@")
    return f"user:{user}{at}{place}"
