"""Room on the disk that is kept for a bad day: given up when the disk is full, so that the little
that must still be written can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 1 << 20


class Reserve:
    """A file that only takes room. Its methods block; one thread at a time calls them."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._is_held = False

    def refill(self) -> bool:
        """Takes the room; safe to repeat. False: the disk has not so much."""
        if self._is_held:
            return True
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._size_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        self._is_held = True
        return True

    def release(self) -> bool:
        """Gives the room up. False: it was given up before."""
        was_held, self._is_held = self._is_held, False
        if was_held:
            self._path.unlink(missing_ok=True)
        return was_held
