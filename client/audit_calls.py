"""Proving, copying and bringing back the log; part of `AsyncClient`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tensorcast.client.log_copies import Copied, export_log, import_log
from tensorcast.client.log_files import read_anchors
from tensorcast.client.proofs import Count, prove
from tensorcast.schema.api_audit import VerifyInfo

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.export import PathLike


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...


def _silent(done: int, total: int) -> None:
    """Tells nobody."""


class AsyncAuditCalls:
    """The record as a whole."""

    async def verify_log(
        self: _Client,
        *,
        first: int | None = None,
        last: int | None = None,
        keys: Sequence[str] = (),
        anchors: PathLike | None = None,
        progress: Count = _silent,
    ) -> VerifyInfo:
        """Has every event (or those from position `first` to `last`) read and hashed, and compares
        the chain with the signed heads: those beside the log and in the control plane's file, or
        those in the file `anchors`, which may be a copy that was kept elsewhere.

        `keys` are the public keys that may have signed heads, hexadecimal; by default the control
        plane's own. `first_bad` of the answer names the first event that is not what it was, and
        `ok` is False then. `progress` is told how many events of how many are done.

        The control plane does the reading and hashing: who does not trust it exports the log and
        verifies the file. Raises InvalidArgument, NotFound for a missing file, Unavailable.
        """
        kept = None if anchors is None else read_anchors(anchors)
        return await prove(
            self.api, first=first, last=last, keys=keys, anchors=kept, count=progress
        )

    async def export_log(
        self: _Client,
        path: PathLike,
        *,
        first: int | None = None,
        last: int | None = None,
        parquet: bool = False,
        force: bool = False,
        progress: Count = _silent,
    ) -> Copied:
        """Copies the log (or its events from position `first` to `last`) into a file of JSON lines
        or Parquet, with the hashes and signed heads that prove it (`verify_log_file`).

        The file appears whole or not at all. Raises InvalidArgument when it exists and not `force`,
        when there are no such events, and when Parquet is asked for without pyarrow; Corrupt when
        the log is not what it was.
        """
        return await export_log(
            self.api, Path(path), first, last, parquet=parquet, force=force, count=progress
        )

    async def import_log(self: _Client, path: PathLike, *, progress: Count = _silent) -> Copied:
        """Brings an exported log into a cluster of the same name that has no events yet, event by
        event, as they were published: its state, its history and its chain are those of the log.

        The file is verified first. What broke off goes on when it is repeated; until then the
        cluster takes no changes. Raises Corrupt for a file that is not as it was written, Conflict
        for a cluster with other events, InvalidArgument for another cluster's log or a part of
        one, NotFound for a missing file.
        """
        return await import_log(self.api, Path(path), progress)
