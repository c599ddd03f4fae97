"""A transport without a network: pulls between movers of one process. For tests and simulation."""

from __future__ import annotations
