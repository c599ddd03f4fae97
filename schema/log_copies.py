"""What a file that copies a part of the log says of itself, of whichever format it is."""

from __future__ import annotations

from typing import Final

import msgspec

from tensorcast.schema.api_audit import Life
from tensorcast.schema.chain import GENESIS
from tensorcast.schema.errors import Corrupt, InvalidArgument

FORMAT: Final = 1


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is: a copy of the `lives` of the log of `cluster`. `previous` is the hash
    (hexadecimal) of the event before its first one; `key` the public key of the signed heads,
    `former` those that signed before."""

    tensorcast_log: int
    cluster: str
    previous: str
    lives: tuple[Life, ...]
    key: str | None = None
    former: tuple[str, ...] = ()


def check_heading(heading: Heading, name: str) -> Heading:
    """Raises InvalidArgument for a file of a newer format, Corrupt for a hash that is none."""
    if heading.tensorcast_log != FORMAT:
        raise InvalidArgument(
            f"{name} has format {heading.tensorcast_log}; this release reads {FORMAT}.",
            hint="Use the newer release.",
        )
    try:
        previous = bytes.fromhex(heading.previous)
    except ValueError:
        previous = b""
    if len(previous) != len(GENESIS):
        raise Corrupt(f"The hash in the first line of {name} is none.")
    return heading
