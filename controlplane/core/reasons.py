"""Why a replica is evicted, as it stands in `Evict.reason`."""

from __future__ import annotations

from typing import Final

PRESSURE: Final = "pressure"
"""Its tier needs the room."""
REMOVED: Final = "removed"
"""Its artifact was removed."""
DRAINED: Final = "drained"
"""Its node gives its replicas away."""
