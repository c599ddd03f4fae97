"""Old versions to new, one small function per step.

`CURRENT` names the version that this release writes; `STEPS[(type, v)]` turns the data of version
v into that of v + 1. Events in the log are never rewritten: this runs on every read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Data = dict[str, object]
Step = Callable[[Data], Data]

VERSION_FIRST = 1
CURRENT: dict[str, int] = {}
"""Types whose current version is not the first."""
STEPS: dict[tuple[str, int], Step] = {}


def current_version(event_type: str) -> int:
    """The version that this release writes for a type."""
    return CURRENT.get(event_type, VERSION_FIRST)


def upcast(
    event_type: str,
    version: int,
    data: Data,
    *,
    target: int | None = None,
    steps: Mapping[tuple[str, int], Step] | None = None,
) -> Data:
    """Brings `data` of an older version to `target` (the current one by default).

    Raises KeyError when a step is missing, which a test rules out for released versions.
    """
    steps = STEPS if steps is None else steps
    for old in range(version, current_version(event_type) if target is None else target):
        data = steps[event_type, old](data)
    return data
