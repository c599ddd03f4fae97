"""The signer: now and then it signs the head of the chain and keeps that outside the database.

Twice: at the end of a file of this control plane, and beside the log in NATS. What cannot be kept
in NATS now is signed again the next time; the file always comes first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tensorcast.controlplane.services.progress import ChainHead, Progress
from tensorcast.log.identity import now
from tensorcast.schema.errors import Corrupt, InvalidArgument, TensorCastError
from tensorcast.schema.heads import (
    KEY_BYTES,
    Head,
    parse_head,
    parse_public_key,
    public_key_of,
    sign,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGN_EVENTS: Final = 10_000
SIGN_S: Final = 300.0
LAST_S_MAX: Final = 3.0
_TICK_S: Final = 0.5
_logger = logging.getLogger(__name__)


class Heads(Protocol):
    """Where heads are kept beside the log."""

    async def append(self, head: bytes) -> None: ...


class HeadFile:
    """`heads.ndjson` in a folder: a signed head a line, each on disk before the next. Beside it the
    key pair: `heads.key` (0600) and `heads.pub`, both hexadecimal, and in `heads.former` the public
    keys of pairs whose private half was lost, a line each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "heads.ndjson"
        self._folder = folder

    def load_key(self) -> Ed25519PrivateKey:
        """The private key, made when there is none; then the public key of the one before, if it
        is there, goes on to count. Raises Corrupt for a file that holds none."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / "heads.key"
        if not path.exists():
            key = Ed25519PrivateKey.generate()
            _write_new(path, key.private_bytes_raw().hex(), 0o600)
        try:
            seed = bytes.fromhex(path.read_text().strip())
        except ValueError:
            seed = b""
        if len(seed) != KEY_BYTES:
            raise Corrupt(
                f"{path} holds no key.", hint="Restore it; or move it away, and a new one is made."
            )
        key = Ed25519PrivateKey.from_private_bytes(seed)
        self._publish(public_key_of(key))
        return key

    def _publish(self, public: str) -> None:
        path = self._folder / "heads.pub"
        before = path.read_text().strip() if path.exists() else public
        if before != public:
            _logger.warning(
                "heads are signed by a new key, %s: the one of %s is lost; what it signed counts",
                public,
                before,
            )
            _add_line(self._folder / "heads.former", before, 0o644)
            path.unlink()
        _write_new(path, public, 0o644)

    def former_keys(self) -> tuple[str, ...]:
        """The public keys that signed before; lines that are none do not count."""
        found = []
        with suppress(FileNotFoundError):
            for line in (self._folder / "heads.former").read_text().splitlines():
                with suppress(InvalidArgument):
                    found.append(parse_public_key(line))
        return tuple(dict.fromkeys(found))

    def read(self, after: int, limit: int) -> list[str]:
        """The lines after the first `after` ones, at most `limit`; a line that was cut off by a
        crash does not count."""
        try:
            with self.path.open() as file:
                lines = [line for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [line.rstrip("\n") for line in lines[after : after + limit]]

    def append(self, head: bytes) -> None:
        """Adds a line; it is on disk when this returns."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            if end and file.read(1) != b"\n":
                file.truncate(self._whole_bytes())
            file.write(head + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _whole_bytes(self) -> int:
        return self.path.read_bytes().rfind(b"\n") + 1


def _write_new(path: Path, content: str, mode: int) -> None:
    """Makes a file; one that is there stays."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())


def _add_line(path: Path, line: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


async def run_signer(
    cluster: str,
    file: HeadFile,
    heads: Heads,
    progress: Progress,
    *,
    sign_events: int = SIGN_EVENTS,
    sign_s: float = SIGN_S,
) -> None:
    """Signs for ever, while the persister of this process writes: after `sign_events` events, or
    `sign_s` seconds if there was one, and once more at the end. Raises Corrupt for a key file that
    holds none."""
    signer = Signer(cluster, file.load_key(), file, heads)
    clock = asyncio.get_running_loop().time
    signed_s = clock()
    try:
        while True:
            await asyncio.sleep(min(_TICK_S, sign_s))
            behind = signer.behind(progress.head) if progress.is_active else 0
            if behind >= sign_events or (behind and clock() - signed_s >= sign_s):
                await signer.sign(progress.head)
                signed_s = clock()
    finally:
        if progress.is_active and signer.behind(progress.head):
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_S_MAX):
                    await signer.sign(progress.head)


class Signer:
    """Signs heads of one cluster. `behind` tells how many events were not signed yet."""

    def __init__(
        self, cluster: str, private_key: Ed25519PrivateKey, file: HeadFile, heads: Heads
    ) -> None:
        self._cluster = cluster
        self._private_key = private_key
        self._file = file
        self._heads = heads
        last = [one for one in map(parse_head, file.read(0, 1 << 62)) if one is not None][-1:]
        self._signed = (last[0].log_epoch, int(last[0].seq)) if last else (0, 0)

    def behind(self, head: ChainHead | None) -> int:
        """Events since the last signed head."""
        if head is None or (head.log_epoch, head.seq) <= self._signed:
            return 0
        log_epoch, seq = self._signed
        return head.seq - seq if head.log_epoch == log_epoch else int(head.seq)

    async def sign(self, head: ChainHead | None) -> None:
        """Signs a head and keeps it. A disk or a NATS server that does not take it is told, and
        the next head comes soon."""
        assert head is not None
        at = now().isoformat()
        unsigned = Head(
            cluster=self._cluster,
            log_epoch=head.log_epoch,
            seq=head.seq,
            hash=head.hash.hex(),
            at=at,
        )
        line = msgspec.json.encode(sign(unsigned, self._private_key))
        try:
            self._file.append(line)
            self._signed = (head.log_epoch, int(head.seq))
            await self._heads.append(line)
        except (OSError, TensorCastError) as error:
            _logger.warning("the head of event %d is not kept everywhere: %s", head.seq, error)
