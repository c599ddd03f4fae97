"""What clients ask the control plane about policies, and what it answers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.commands import ConfigurePolicy, DisablePolicy, EnablePolicy
from tensorcast.schema.ids import Seq


class PolicyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Verbs `policy.list` (all) and `policy.show` (the one of this name)."""

    policy: str = ""
    after: Seq = Seq(0)


class ChangePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Verb `policy.change`: turn a policy on or off, or set parameters. Answer: `Executed`."""

    command: EnablePolicy | ConfigurePolicy | DisablePolicy
    actor: str


class ParameterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is what it is now, `default` what it is when nobody sets it; `type` in words."""

    name: str
    type: str
    value: object
    default: object


class PolicyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: `state` is on, off or stopped (then `reason` and `detail` tell why); `origin` is
    where its code comes from; `set_by` and `set_at` tell of the last change (None: nobody has said
    anything). `seq` is the position of that change. The control
    plane that answers has refused so many commands of it since its start, the last one for the
    reason `refusal`."""

    policy: str
    state: str
    about: str
    origin: str
    parameters: tuple[ParameterInfo, ...]
    reason: str = ""
    detail: str = ""
    set_by: str = ""
    set_at: datetime | None = None
    seq: Seq = Seq(0)
    refused: int = 0
    refusal: str = ""
