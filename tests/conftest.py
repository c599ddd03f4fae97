"""Fixtures for all tests. Unit tests use none of them: they start nothing and open nothing."""

from __future__ import annotations

import importlib.util

# `servers.py` beside this file starts real NATS and Postgres servers for the tests that need them.
pytest_plugins = ["servers"] if importlib.util.find_spec("servers") else []
