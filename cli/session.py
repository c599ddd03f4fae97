"""What one call of `tcctl` works with: the global options and the world outside.

The world is a value, so that tests give another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from tensorcast.cli.output import Format

if TYPE_CHECKING:
    import typer

    from tensorcast.cli.progress import Bar
    from tensorcast.client import Client

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """The global options. Each may stand before or after the command; the last one counts."""

    context: str | None = None
    output: Format = Format.TABLE
    quiet: bool = False
    color: bool = True


def connect_client(context: str | None, node: str | None) -> Client:
    """A client of the real cluster. Raises Unavailable."""
    from tensorcast.client import connect

    return connect(context=context, node=node)


def _read_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything outside that commands touch."""

    connect: Callable[[str | None, str | None], Client] = connect_client
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    read_clock: Callable[[], datetime] = _read_clock
    replace_process: Callable[[str, list[str], dict[str, str]], None] = os.execve
    inp: TextIO = field(default_factory=lambda: sys.stdin)
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at the output (both ways out are a terminal)."""
        return self.out.isatty() and self.err.isatty()


class Session:
    """One call of `tcctl`. Modified only while the command line is parsed."""

    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options

    @contextmanager
    def client(self, node: str | None = None) -> Iterator[Client]:
        """A connected client, closed at the end. Raises Unavailable."""
        with self.world.connect(self.options.context, node) as client:
            yield client

    @property
    def shows_progress(self) -> bool:
        """Progress is for a terminal, and only when nobody asked for quiet."""
        return self.world.is_terminal and not self.options.quiet

    @contextmanager
    def progress(self, title: str, *, counts: bool = False) -> Iterator[Bar]:
        """A progress bar on a terminal, nothing anywhere else; of bytes, or of things that are
        counted."""
        from tensorcast.cli.progress import NoBar, show_bar

        if not self.shows_progress:
            yield NoBar()
            return
        with show_bar(title, self.world.err, color=self.options.color, counts=counts) as bar:
            yield bar

    def now(self) -> datetime:
        """The time on the wall, UTC."""
        return self.world.read_clock()


def session_of(context: typer.Context) -> Session:
    """The session that `main` has put into the command's context."""
    session = context.find_object(Session)
    assert session is not None, "commands run under main()"
    return session
