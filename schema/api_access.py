"""What clients ask the control plane about the rules of namespaces, and what it answers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from tensorcast.schema.namespaces import Namespace, Rights


class AccessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a user (`*`: everybody) may do in a namespace that has rules, and when these were
    changed last."""

    namespace: Namespace
    who: str
    rights: Rights
    changed_at: datetime
