"""How far a client has seen the log: what it wrote, it reads back."""

from __future__ import annotations

from tensorcast.schema.ids import Seq


class Position:
    """The highest position of the log that this client was told. It goes along with each read as
    `after`, so an answer never misses the client's own writes."""

    def __init__(self) -> None:
        self.seq = Seq(0)

    def advance(self, seq: Seq) -> None:
        """Moves forward to `seq`; never back."""
        self.seq = max(self.seq, seq)
