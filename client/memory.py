"""The mapping behind tensors: a segment, mapped privately, and the lifeline of its reader.

The mapping belongs to whoever still uses it, not to the client: it outlives the connection, the
eviction of the replica and the mover. Its lifeline tells the mover that somebody reads; it closes
when the last tensor over the mapping is gone, and by the kernel when the process dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Self

from tensorcast.schema.errors import Corrupt, OutOfCapacity


class Mapping(mmap.mmap):
    """Bytes of a segment, copy-on-write. Keep it alive as long as its bytes are used; never
    `close` it: tensors may lie in it."""

    def __new__(cls, descriptor: int, size_bytes: int, lifeline: int) -> Self:
        """Maps the first `size_bytes` bytes and takes over `lifeline`."""
        # From 3.13 on Python can leave out its own duplicate of the descriptor.
        options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        mapping = super().__new__(
            cls,
            descriptor,
            size_bytes,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            **options,
        )
        # At interpreter exit the kernel closes it, after the last tensor is gone for sure.
        weakref.finalize(mapping, os.close, lifeline).atexit = False
        return mapping


def map_segment(descriptors: Sequence[int], size_bytes: int) -> Mapping | None:
    """Maps a segment from what the mover handed over: the segment and a lifeline. Takes over both
    descriptors. None for an artifact without bytes.

    Raises Corrupt when it was not two descriptors or the segment is too small, OutOfCapacity when
    the process can map no more.
    """
    with contextlib.ExitStack() as unused:
        for descriptor in descriptors:
            unused.callback(os.close, descriptor)
        if len(descriptors) != 2:
            raise Corrupt(
                f"The mover handed over {len(descriptors)} descriptors in place of two.",
                hint="Client and mover may be of different releases.",
            )
        segment, lifeline = descriptors
        if size_bytes == 0:
            return None
        if os.fstat(segment).st_size < size_bytes:
            raise Corrupt(f"The mover's segment is smaller than {size_bytes} bytes.")
        mapping = _map(segment, size_bytes, lifeline)
        unused.pop_all()
    os.close(segment)
    return mapping


def _map(segment: int, size_bytes: int, lifeline: int) -> Mapping:
    try:
        return Mapping(segment, size_bytes, lifeline)
    except OSError as error:
        raise OutOfCapacity(
            f"{size_bytes} bytes cannot be mapped: {error.strerror}.",
            hint="See `ulimit -n`, `ulimit -v` and vm.max_map_count.",
        ) from error
