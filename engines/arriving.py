"""The tensors of an artifact in the order in which they come to this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from tensorcast.client.memory import Mapping
from tensorcast.client.tensors import build_tensors
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.files import without_files
from tensorcast.schema.tensors import Index
from tensorcast.schema.views import Selected


class Arriving(Protocol):
    """What is needed of an `Arrival`."""

    @property
    def index(self) -> Index: ...

    @property
    def memory(self) -> Mapping | None: ...

    @property
    def is_excerpt(self) -> bool: ...

    def has(self, place: ByteRange) -> bool: ...

    def wait(self, *, timeout: float) -> None: ...


def tensors_as_they_come(
    arrival: Arriving, skips: Callable[[str], bool], timeout_s: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor once all its bytes are there, those that are there already first; in place, and
    without those that `skips` names. Of an excerpt all at once, before their bytes: who reads them
    has them brought. Raises what waiting for an arrival raises."""
    left = [spec for spec in without_files(arrival.index) if not skips(spec.name)]
    while left:
        ready = [spec for spec in left if arrival.is_excerpt or arrival.has(spec.extent)]
        if not ready:
            arrival.wait(timeout=timeout_s)
            continue
        names = {spec.name for spec in ready}
        left = [spec for spec in left if spec.name not in names]
        yield from build_tensors(arrival.memory, [Selected(spec) for spec in ready]).items()
