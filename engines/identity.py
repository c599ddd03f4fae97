"""Which engine a process belongs to. Imports nothing that an engine would have to pay for.

An engine is several processes, started by one another, so its name, its life and its address are in
the environment: the first process sets them, and all below it have them.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

NAME_VARIABLE = "TENSORCAST_ENGINE"
URL_VARIABLE = "TENSORCAST_ENGINE_URL"
LIFE_VARIABLE = "TENSORCAST_ENGINE_LIFE"
_HOST_CHARS_MAX = 64
_EVERYWHERE = ("0.0.0.0", "::", "")


class Identity(NamedTuple):
    """The name of an engine, one life of it, and where it answers (empty: not known)."""

    name: str
    life: str
    url: str


def identify(
    kind: str,
    environ: MutableMapping[str, str],
    arguments: Sequence[str] = (),
    default_port: str = "",
) -> Identity:
    """Who the engine of this process is. Modifies the environment when nothing is said there yet,
    so that the processes which this one starts belong to the same engine. `arguments` are those of
    a server: they tell its address, which without a port in them has the `default_port`, if any."""
    host = socket.gethostname()
    plain = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:_HOST_CHARS_MAX]
    name = environ.setdefault(NAME_VARIABLE, f"{kind}-{plain}-{os.getpid()}")
    life = environ.setdefault(LIFE_VARIABLE, secrets.token_hex(8))
    url = environ.setdefault(URL_VARIABLE, guess_url(arguments, host, default_port))
    return Identity(name, life, url)


def is_first_process(environ: Mapping[str, str]) -> bool:
    """Whether no process of the engine has said yet who it is: to be asked before `identify`."""
    return LIFE_VARIABLE not in environ


def guess_url(arguments: Sequence[str], host: str, default_port: str = "") -> str:
    """Where a server with these arguments answers, on the machine `host`; empty when they do not
    say it."""
    port, named = _option(arguments, "--port") or default_port, _option(arguments, "--host")
    if not port.isdecimal():
        return ""
    where = host if named in _EVERYWHERE else named
    return f"http://[{where}]:{port}" if ":" in where else f"http://{where}:{port}"


def _option(arguments: Sequence[str], name: str) -> str:
    """The value of an option: the last one counts."""
    found = ""
    for at, argument in enumerate(arguments):
        if argument == name and at + 1 < len(arguments):
            found = arguments[at + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found
