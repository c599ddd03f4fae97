"""KV blocks on the node's disk: files of many blocks, written at their end and dropped as a whole.

A block is copied when it is given, and a thread writes what has gathered in one go. Nothing is
synced: these are copies of what can be computed again, so a power cut may take some, and what a
crash tore is found by the digests. A start reads the heads of all records to learn what is there.
When the budget is reached the oldest file goes, with all that is in it (first in, first out, by
file). A disk that fails refuses blocks for a while, and the node goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.movers.blocks.base import BlockReporter
from tensorcast.movers.blocks.files import (
    File,
    Spare,
    Waiting,
    Where,
    copy_waiting,
    read_block,
    read_records,
    write_buffers,
)
from tensorcast.movers.core.block_records import NO_DIGEST, Kind, Record, pack_head
from tensorcast.movers.durable import explain
from tensorcast.schema.blocks import BLOCK_BYTES_MAX, name_key
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import Tier

SUFFIX: Final = ".blocks"
FILES: Final = 16
FILE_BYTES_MIN: Final = 1 << 20
FILE_BYTES_MAX: Final = 256 << 20
BATCH_BYTES: Final = 8 << 20
BATCH_RECORDS: Final = 400
"""Two buffers each; the kernel takes 1024 at once."""
LINGER_S: Final = 0.005
PENDING_BYTES_MAX: Final = 64 << 20
ROOM_S_MAX: Final = 1.0
REFUSE_S: Final = 5.0
REPORT_KEYS: Final = 4096
_logger = logging.getLogger(__name__)


class SpillStats(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that can be read, bytes of the files (dead ones included) and of what waits to be
    written, and counts since the start: blocks dropped for room, refused, and found damaged."""

    blocks: int
    file_bytes: int
    pending_bytes: int
    dropped: int
    refused: int
    damaged: int


class BlockFiles:
    """Keeps the contract of `BlockSpill` below `folder`, in files of at most `bytes_max` together.
    `start` makes it work, `close` ends it after what waits has been written. What it stores and
    drops it tells `reporter`."""

    def __init__(self, folder: Path, bytes_max: int, reporter: BlockReporter) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._file_bytes = min(FILE_BYTES_MAX, max(FILE_BYTES_MIN, bytes_max // FILES))
        self._batch_bytes = min(BATCH_BYTES, self._file_bytes)
        self._pending_bytes_max = min(PENDING_BYTES_MAX, max(1, bytes_max // 4))
        self._reporter = reporter
        self._changed = threading.Condition()
        self._files: list[File] = []
        self._index: dict[bytes, Where] = {}
        self._pending: dict[bytes, Waiting] = {}
        self._writing: dict[bytes, Waiting] = {}
        self._removed: list[bytes] = []
        self._pending_bytes = 0
        self._spare = Spare()
        self._next = 1
        self._is_open = False
        self._is_scanned = False
        self._adds = False  # to the last file: those of earlier lives are never added to
        self._refuse_until_s = 0.0
        self._dropped = self._refused = self._damaged = 0
        self._thread = threading.Thread(target=self._run, name="blocks", daemon=True)

    def start(self) -> None:
        """Begins to read what is there, and then to write. Does not block."""
        self._is_open = True
        self._thread.start()

    def close(self) -> None:
        """Writes what waits and ends. Safe to repeat."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        with self._changed:
            for file in self._files:
                self._drop(file)
            self._files, self._index = [], {}

    def stats(self) -> SpillStats:
        """How it is."""
        with self._changed:
            return SpillStats(
                blocks=len(self._index),
                file_bytes=sum(file.size for file in self._files),
                pending_bytes=self._pending_bytes,
                dropped=self._dropped,
                refused=self._refused,
                damaged=self._damaged,
            )

    # ---- the contract ----------------------------------------------------------------------

    def write(self, key: bytes, digest: bytes, memory: memoryview) -> bool:
        """As `BlockSpill.write`. True: it can be read from now on, and will be written; should the
        disk fail then, it is not there after all."""
        size = memory.nbytes
        with self._changed:
            if self._has(key):
                return True
            if not self._takes(size):
                self._refused += 1
                return False
            self._pending_bytes += size
            buffer = self._spare.take(size)
        content = bytearray(size) if buffer is None else buffer
        content[:] = memory
        with self._changed:
            if self._has(key):  # somebody was faster
                self._pending_bytes -= size
            else:
                self._pending[key] = Waiting(digest, content)
                if len(self._pending) == 1 or self._pending_bytes >= self._batch_bytes:
                    self._changed.notify_all()
            return True

    def _takes(self, size: int) -> bool:
        """Whether there is room for a block, perhaps after a moment."""
        if not 0 < size <= min(BLOCK_BYTES_MAX, self._bytes_max // 4):
            return False
        deadline_s = time.monotonic() + ROOM_S_MAX
        while self._is_open and time.monotonic() >= self._refuse_until_s:
            if self._pending_bytes + size <= self._pending_bytes_max:
                return True
            wait_s = deadline_s - time.monotonic()
            if wait_s <= 0 or not self._is_scanned:
                return False
            self._changed.wait(wait_s)
        return False

    def read(self, key: bytes, target: memoryview) -> bool:
        """As `BlockSpill.read`."""
        waiting = self._pending.get(key) or self._writing.get(key)
        if waiting is not None and copy_waiting(waiting, target):
            return True  # otherwise it has just been written, and its buffer used for another one
        with self._changed:
            where = self._index.get(key)
            if where is None:
                return False
            where.file.readers += 1
        try:
            if where.size != target.nbytes:
                return False
            if read_block(where, target):
                return True
        finally:
            self._release(where.file)
        self._forget_damaged(key, where)
        return False

    def remove(self, keys: Sequence[bytes]) -> None:
        """As `BlockSpill.remove`."""
        with self._changed:
            gone = [key for key in keys if self._is_forgotten(key)]
        if gone:
            self._reporter.evicted(Tier.DISK, gone)

    def contains(self, key: bytes) -> bool:
        """As `BlockSpill.contains`."""
        return self._has(key)

    def size(self, key: bytes) -> int:
        """As `BlockSpill.size`."""
        where = self._index.get(key)
        if where is not None:
            return where.size
        waiting = self._pending.get(key) or self._writing.get(key)
        return len(waiting.content) if waiting is not None else 0

    def keys_of(self, beginning: bytes) -> list[bytes]:
        """As `BlockSpill.keys_of`."""
        with self._changed:
            known = {**self._index, **self._pending, **self._writing}
        return [key for key in known if key.startswith(beginning)]

    def _has(self, key: bytes) -> bool:
        return key in self._index or key in self._pending or key in self._writing

    def _is_forgotten(self, key: bytes) -> bool:
        """Forgets a block; whether it was known to lie in a file."""
        waiting = self._pending.pop(key, None)
        if waiting is not None:
            self._pending_bytes -= len(waiting.content)
        is_written = self._index.pop(key, None) is not None
        if self._writing.pop(key, None) is not None or is_written:
            self._removed.append(key)
            self._changed.notify_all()
        return is_written

    def _forget_damaged(self, key: bytes, where: Where) -> None:
        with self._changed:
            if self._index.get(key) is not where:
                return
            self._damaged += 1
            self._is_forgotten(key)
        name = name_key(key)
        _logger.warning("KV block %s in %s is damaged: it is dropped", name, where.file.path)
        self._reporter.damaged(Tier.DISK, [key])

    # ---- files -----------------------------------------------------------------------------

    def _release(self, file: File) -> None:
        with self._changed:
            file.readers -= 1
            if file.is_dropped and not file.readers:
                os.close(file.fd)

    def _drop(self, file: File) -> None:
        """Nobody finds the file any more; it is closed when its last reader is done."""
        file.is_dropped = True
        if not file.readers:
            os.close(file.fd)

    def _drop_oldest(self) -> list[bytes]:
        """Deletes the oldest file; returns the keys whose blocks were there."""
        with self._changed:
            file = self._files.pop(0)
            gone = [key for key in file.keys if (at := self._index.get(key)) and at.file is file]
            for key in gone:
                del self._index[key]
            self._dropped += len(gone)
            self._drop(file)
        file.path.unlink(missing_ok=True)
        return gone

    def _make_room(self, size: int) -> None:
        """Drops the oldest files until `size` bytes more are within the budget."""
        while self._files and self._bytes_max < size + sum(file.size for file in self._files):
            gone = self._drop_oldest()
            if gone:
                self._reporter.evicted(Tier.DISK, gone)

    def _open_file(self, size: int) -> File:
        """The file to write `size` bytes to."""
        if self._files and self._adds and self._files[-1].size + size <= self._file_bytes:
            return self._files[-1]
        path = self._folder / f"{self._next:016x}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = File(path, os.open(path, flags, 0o600))
        self._next += 1
        self._adds = True
        with self._changed:
            self._files.append(file)
        return file

    # ---- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._scan()
        except OSError as error:
            self._refuse(error)
        with self._changed:
            self._is_scanned = True
            self._changed.notify_all()
        while (batch := self._take_batch()) is not None:
            removed, stored = batch
            try:
                where = self._append(removed, stored)
            except OSError as error:
                self._refuse(error)
                self._removed = [*removed, *self._removed]
                where = {}
            self._settle(stored, where)

    def _take_batch(self) -> tuple[list[bytes], dict[bytes, Waiting]] | None:
        """What is to be written next, once there is something; None at the end."""
        with self._changed:
            while not self._is_due():
                if not self._is_open:
                    return None
                self._changed.wait(REFUSE_S if self._removed else None)
            if self._is_open and self._pending_bytes < self._batch_bytes:
                self._changed.wait(LINGER_S)  # it may become more
            size = 0
            for key, waiting in self._pending.items():
                size += len(waiting.content)
                if self._writing and (
                    size > self._batch_bytes or len(self._writing) >= BATCH_RECORDS
                ):
                    break
                self._writing[key] = waiting
            for key in self._writing:
                del self._pending[key]
            removed, self._removed = self._removed, []
            return removed, dict(self._writing)

    def _is_due(self) -> bool:
        """Whether there is something to write; removals wait while the disk refuses."""
        is_refusing = time.monotonic() < self._refuse_until_s
        return bool(self._pending) or bool(self._removed and not is_refusing)

    def _append(self, removed: Sequence[bytes], stored: dict[bytes, Waiting]) -> dict[bytes, Where]:
        """Writes removals and blocks to the end of a file; says where the blocks are. Leaves the
        file as it was when that fails. Raises OSError."""
        buffers: list[bytes | bytearray] = [
            pack_head(Record(Kind.REMOVED, key, 0, NO_DIGEST)) for key in removed
        ]
        places: dict[bytes, int] = {}
        size = sum(map(len, buffers))
        for key, (digest, content) in stored.items():
            head = pack_head(Record(Kind.STORED, key, len(content), digest))
            places[key] = size + len(head)
            size += len(head) + len(content)
            buffers += [head, content]
        self._make_room(size)
        file = self._open_file(size)
        try:
            write_buffers(file.fd, buffers, file.size)
        except OSError:
            os.ftruncate(file.fd, file.size)
            raise
        start, file.size = file.size, file.size + size
        return {
            key: Where(file, start + place, len(stored[key].content), stored[key].digest)
            for key, place in places.items()
        }

    def _settle(self, stored: dict[bytes, Waiting], where: dict[bytes, Where]) -> None:
        """What was written can be read from its file; what was removed meanwhile is not there."""
        with self._changed:
            found = {key: at for key, at in where.items() if key in self._writing}
            for key, at in found.items():
                at.file.keys.append(key)
            self._index.update(found)
            self._refused += len(stored) - len(where)
            self._writing = {}
            self._pending_bytes -= sum(len(one.content) for one in stored.values())
            self._spare.give(one.content for one in stored.values())
            self._changed.notify_all()
        if found:
            self._reporter.stored(Tier.DISK, [(key, at.size) for key, at in found.items()])

    def _refuse(self, error: OSError) -> None:
        told: TensorCastError = explain(error, self._folder, "write blocks to")
        _logger.warning("%s KV blocks are not spilled for %g s.", told, REFUSE_S)
        with self._changed:
            self._refuse_until_s = time.monotonic() + REFUSE_S

    # ---- the start -------------------------------------------------------------------------

    def _scan(self) -> None:
        """Reads what earlier lives wrote, oldest first. Raises OSError."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                self._next = max(self._next, int(path.stem, 16) + 1)
            except ValueError:
                continue
            file = File(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
            self._learn(file)
        self._make_room(0)
        known = [(key, where.size) for key, where in list(self._index.items())]
        for start in range(0, len(known), REPORT_KEYS):
            part = known[start : start + REPORT_KEYS]
            self._reporter.stored(Tier.DISK, [one for one in part if one[0] in self._index])

    def _learn(self, file: File) -> None:
        """Takes a file in, and cuts off what cannot be trusted at its end."""
        found: dict[bytes, Where | None] = {}
        for position, record in read_records(file.fd):
            file.size = position + record.end
            is_stored = record.kind is Kind.STORED
            at = Where(file, position + record.data, record.size, record.digest)
            found[record.key] = at if is_stored else None
        os.ftruncate(file.fd, file.size)
        with self._changed:
            self._files.append(file)
            for key, where in found.items():
                if where is None:
                    self._index.pop(key, None)
                else:
                    self._index[key] = where
                    file.keys.append(key)
        if not file.size:
            with self._changed:
                self._files.remove(file)
                self._drop(file)
            file.path.unlink(missing_ok=True)
