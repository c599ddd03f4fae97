"""`tensorcast.load`: a checkpoint from disk, without a cluster."""

from __future__ import annotations

from importlib.metadata import version

import tensorcast as tc


def copied(path: str):
    """Into memory of its own; how much goes past the page cache, it decides."""
    return tc.load(path, mode="copy")


def mapped(path: str):
    """As a private mapping of the page cache, which is what it chooses by itself."""
    return tc.load(path, mode="map")


copied.version = mapped.version = version("tensorcast-taas")
