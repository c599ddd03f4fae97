"""What the persister tells the rest of its process."""

from __future__ import annotations

import msgspec

from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq


class ChainHead(msgspec.Struct, frozen=True):
    """The last event that is committed, and its hash."""

    log_epoch: int
    seq: Seq
    hash: bytes


class Progress:
    """How far the persister is, whether it is the one that writes, and in one sentence what keeps
    it from going on (`problem`; None: nothing). `refusal` is there as long as the log is not the
    one whose events Postgres has: until then nothing may be added to it. `head` is known while
    it writes. `snapshots` says why no snapshot of the fold can be made; None: one can."""

    def __init__(self) -> None:
        self.committed_seq = Seq(0)
        self.head: ChainHead | None = None
        self.is_active = False
        self.problem: str | None = None
        self.refusal: Corrupt | None = None
        self.snapshots: str | None = None
