"""Namespaces: keys that belong together, and who may do what with them. Pure.

`team/model@1` is in the namespace `team`; a key without a `/` is in `default`. Rules are events
(`namespace.granted`, `namespace.revoked`). A namespace without rules is open to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NewType

import msgspec

from tensorcast.schema.access import is_user_name
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Key

Namespace = NewType("Namespace", str)

DEFAULT: Final = Namespace("default")
EVERYBODY: Final = "*"
NAMESPACE_CHARS_MAX: Final = 256


class Right(StrEnum):
    """READ: get its artifacts, replicate them, hold leases. WRITE: put, pin, verify and remove
    artifacts. KEYS: move and remove keys that exist. PLANS: run plans on its artifacts. GRANT:
    change these rules."""

    READ = "read"
    WRITE = "write"
    KEYS = "keys"
    PLANS = "plans"
    GRANT = "grant"


Rights = tuple[Right, ...]


class NamespaceGranted(msgspec.Struct, frozen=True, kw_only=True):
    """`who` (a user, or `*` for everybody) has these rights from now on, beside those from before.
    The first rule of a namespace closes it to all others, and gives all rights to who made it."""

    namespace: Namespace
    who: str
    rights: Rights


class NamespaceRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """`who` has these rights no more. With its last rule a namespace is open to all again."""

    namespace: Namespace
    who: str
    rights: Rights


NamespaceEvent = NamespaceGranted | NamespaceRevoked

NAMESPACE_EVENT_TYPES: Final[dict[str, type[NamespaceEvent]]] = {
    "namespace.granted": NamespaceGranted,
    "namespace.revoked": NamespaceRevoked,
}


def namespace_of(key: Key) -> Namespace:
    """The namespace that a key is in."""
    before, slash, _ = key.partition("/")
    return Namespace(before) if slash and before else DEFAULT


def parse_namespace(text: str) -> Namespace:
    """A name that the keys of a namespace can begin with. Raises InvalidArgument."""
    is_name = text and text == text.strip() and text.isprintable() and "/" not in text
    if not is_name or len(text) > NAMESPACE_CHARS_MAX:
        raise InvalidArgument(
            f"{text!r} is not a namespace.",
            hint="It is what stands before the first '/' of keys, as team in team/model@1.",
        )
    return Namespace(text)


def check_name(namespace: Namespace) -> None:
    """Raises InvalidArgument for a namespace that nobody is to begin: one with space in it is
    most likely two words that were meant to be one."""
    if any(letter.isspace() for letter in namespace):
        raise InvalidArgument(
            f"{namespace!r} has space in it, which no new namespace may have.",
            hint="Write what keys begin with: team, for team/model@1.",
        )


def parse_who(text: str) -> str:
    """A user, or `*`. Raises InvalidArgument."""
    if text != EVERYBODY and not is_user_name(text):
        raise InvalidArgument(
            f"{text!r} is no user.", hint="Name one of `tcctl keys ls`, or '*' for everybody."
        )
    return text


def order_rights(rights: Iterable[Right]) -> Rights:
    """Each once, in the order of `Right`."""
    wanted = set(rights)
    return tuple(right for right in Right if right in wanted)


def is_allowed(rules: Mapping[str, Rights], user: str, right: Right) -> bool:
    """Whether a user may do this where these rules hold; without any, all may do all."""
    return not rules or right in rules.get(user, ()) or right in rules.get(EVERYBODY, ())
