"""What a stop would lose: memory that has to go to a disk without the room for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tensorcast.deploy.home import SERVERS_DISK_BYTES_MIN, Layout
from tensorcast.deploy.machine import format_bytes
from tensorcast.deploy.options import ClusterConfig
from tensorcast.schema.errors import Corrupt, OutOfCapacity
from tensorcast.schema.socket import (
    LENGTH,
    Answer,
    AskStats,
    Hello,
    Request,
    Stats,
    Welcome,
    body_bytes,
    decode_answer,
    encode_frame,
)

A = TypeVar("A", bound=Answer)

ASK_TIMEOUT_S: Final = 5.0


class Burden(msgspec.Struct, frozen=True, kw_only=True):
    """What one node has to write when it stops, and the room on its disk. `disk` tells file systems
    apart."""

    node: str
    disk: int
    unsaved_bytes: int
    free_bytes: int


def check_room(layout: Layout, config: ClusterConfig, progress: Callable[[str], None]) -> None:
    """Ask the movers whether all that they hold fits on the disk.

    A mover that does not answer is told of and left out. Raises `OutOfCapacity` when it does not
    fit.
    """
    burdens: list[Burden] = []
    for node in config.nodes:
        try:
            stats = ask_stats(Path(config.sockets) / f"{node.name}.sock")
            disk = os.stat(layout.nodes / node.name).st_dev
        except (OSError, Corrupt):
            progress(f"{node.name} does not say whether its memory fits on the disk")
            continue
        burdens.append(
            Burden(
                node=node.name,
                disk=disk,
                unsaved_bytes=stats.unsaved_bytes,
                free_bytes=stats.disk_free_bytes,
            )
        )
    refusal = find_shortage(burdens)
    if refusal is not None:
        raise refusal


def find_shortage(burdens: Sequence[Burden]) -> OutOfCapacity | None:
    """The refusal for the first disk that is too small for its nodes. Pure."""
    for disk in dict.fromkeys(burden.disk for burden in burdens):
        sharing = [burden for burden in burdens if burden.disk == disk and burden.unsaved_bytes]
        needed = sum(burden.unsaved_bytes for burden in sharing) + SERVERS_DISK_BYTES_MIN
        free = min((burden.free_bytes for burden in sharing), default=needed)
        if free < needed:
            nodes = ", ".join(burden.node for burden in sharing)
            return OutOfCapacity(
                f"The memory of {nodes} does not fit on the disk: {format_bytes(needed)} are"
                f" needed, {format_bytes(free)} are free.",
                hint="Free some space, remove artifacts (`tcctl artifact rm`), or lose what does"
                " not fit (`tcctl down --force`).",
                node=sharing[0].node if len(sharing) == 1 else None,
            )
    return None


def ask_stats(path: Path, *, timeout_s: float = ASK_TIMEOUT_S) -> Stats:
    """The counts of the mover behind a socket. Raises OSError without an answer, Corrupt for one
    that makes no sense."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout_s)
        channel.connect(str(path))
        _exchange(channel, Hello(actor="supervisor", pid=os.getpid()), Welcome)
        return _exchange(channel, AskStats(), Stats)


def _exchange(channel: socket.socket, request: Request, answer: type[A]) -> A:
    channel.sendall(encode_frame(request))
    with channel.makefile("rb", buffering=0) as stream:
        found = decode_answer(_read(stream.read, body_bytes(_read(stream.read, LENGTH.size))))
    if not isinstance(found, answer):
        raise Corrupt(f"The mover answered {type(found).__name__}, not {answer.__name__}.")
    return found


def _read(read: Callable[[int], bytes | None], size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        part = read(size_bytes - len(data))
        if not part:
            raise ConnectionError("the mover closed the connection")
        data += part
    return data
