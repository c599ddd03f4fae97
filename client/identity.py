"""What a client calls itself, and ids of events that it chooses, so that what it asks for twice
happens once."""

from __future__ import annotations

import getpass
import os
import socket
import time

from tensorcast.schema.ids import EventId


def new_event_id() -> EventId:
    """A new id that sorts by time to the millisecond (UUID version 7, as text)."""
    octets = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
    octets[6] = (octets[6] & 0x0F) | 0x70
    octets[8] = (octets[8] & 0x3F) | 0x80
    text = octets.hex()
    return EventId("-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))


def name_actor() -> str:
    """Who this process is in the audit log: user:<login>@<host>."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # no name for this uid, as in many containers
        login = str(os.getuid())
    return f"user:{login}@{socket.gethostname()}"
