"""When and how often the artifacts of this node are used, in memory and on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from tensorcast.movers.core.eviction import POPULAR, Heat
from tensorcast.schema.ids import ArtifactId


class Uses:
    """Safe in any thread. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heats: dict[ArtifactId, Heat] = {}

    def note(self, artifact: ArtifactId) -> None:
        """It is handed to a reader of the node, or to a peer."""
        with self._lock:
            self._heats[artifact] = self._heats.get(artifact, Heat()).warmed(self._clock())

    def used_at(self, artifact: ArtifactId) -> float:
        """When it was last used; long ago for what never was."""
        return self._heats.get(artifact, Heat()).at

    def popular(self, among: Collection[ArtifactId]) -> tuple[ArtifactId, ...]:
        """Those that are used often, the most popular first; ties by id."""
        now = self._clock()
        with self._lock:
            scores = {one: self._heats[one].now(now) for one in among if one in self._heats}
        hot = (one for one, score in scores.items() if score >= POPULAR)
        return tuple(sorted(hot, key=lambda one: (-scores[one], one)))

    def keep(self, artifacts: Collection[ArtifactId]) -> None:
        """Forgets all others."""
        with self._lock:
            self._heats = {one: heat for one, heat in self._heats.items() if one in artifacts}
