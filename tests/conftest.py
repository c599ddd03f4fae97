"""Fixtures for all tests. Unit tests use none of them: they start nothing and open nothing."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# `servers.py` beside this file starts real NATS and Postgres servers for the tests that need them.
pytest_plugins = ["servers"]

# Started in the background by a shell, we would ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Few examples at each run, new ones at every run; HYPOTHESIS_PROFILE=thorough looks longer.
settings.register_profile("fast", max_examples=15, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
