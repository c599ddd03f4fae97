"""Starts the agent that watches an engine (`agent.py`) beside it, as a process of its own: it costs
the engine nothing, and ends with it.

Imports only what a process that starts anyway has: it is loaded where vLLM loads its plugins.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from tensorcast.engines.identity import URL_VARIABLE, Identity

WATCH_VARIABLE: Final = "TENSORCAST_WATCH"
AGENT: Final = "tensorcast.engines.vllm.agent"
LOGGER = logging.getLogger("vllm.tensorcast")
_YES: Final = ("1", "true", "yes", "on")
_started: list[subprocess.Popen[bytes]] = []
"""Kept, so that their standard input stays open as long as this process lives."""


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the engines that are started with this environment are to be watched."""
    return environ.get(WATCH_VARIABLE, "").lower() in _YES


def start_agent(engine: Identity, environ: Mapping[str, str]) -> None:
    """Starts the agent of the engine that this process begins. It writes to the engine's log, and
    ends when this process and those that it forked have ended."""
    if not engine.url:
        LOGGER.warning(
            "%s is set, but nothing says where this engine answers, so it is not watched. Start it "
            "with --port, or set %s.",
            WATCH_VARIABLE,
            URL_VARIABLE,
        )
        return
    command = [sys.executable, "-m", AGENT, engine.url, "--engine", engine.name, "--attached"]
    environ = {**environ, "PYTHONSAFEPATH": "1"}
    _started.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environ))
