"""Progress bars for people, and their stand-in for everybody else. rich is loaded when needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar(Protocol):
    """Shows how many of `total_bytes` are done."""

    def advance_to(self, done_bytes: int, total_bytes: int) -> None: ...


class NoBar:
    """Shows nothing."""

    def advance_to(self, done_bytes: int, total_bytes: int) -> None:
        """Do nothing."""


class RichBar:
    """A bar of rich on a terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance_to(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=done_bytes, total=total_bytes or None)


@contextmanager
def show_bar(title: str, stream: TextIO, *, color: bool, counts: bool = False) -> Iterator[RichBar]:
    """A bar that disappears at the end: the result is printed by `render`. With `counts` it shows
    how many things are done, not how many bytes."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    console = Console(file=stream, no_color=None if color else True, markup=False)
    sizes = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        *((MofNCompleteColumn(),) if counts else sizes),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield RichBar(progress, progress.add_task(title, total=None))
