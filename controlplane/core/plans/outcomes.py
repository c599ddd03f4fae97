"""What has come of a step. Pure."""

from __future__ import annotations

import msgspec

from tensorcast.schema.faults import Fault
from tensorcast.schema.ids import Seq


class Done(msgspec.Struct, frozen=True):
    """A step has what it gives; `because` of the event at this position."""

    outputs: dict[str, object]
    because: Seq = Seq(0)


class Broken(msgspec.Struct, frozen=True):
    """A try of a step ends with a fault."""

    fault: Fault
    because: Seq = Seq(0)
