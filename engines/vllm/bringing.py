"""New weights on their way to a worker of vLLM: brought, checked and made aside by a thread, while
the model serves. The worker hears of it when it asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from tensorcast.engines.aside import Aside
from tensorcast.engines.updating import Weights, explain, failure_of
from tensorcast.schema.errors import Cancelled

LOGGER = logging.getLogger("vllm.tensorcast")
T = TypeVar("T")


class Brought(NamedTuple):
    """New weights, and the parameters that were made of them (None: they are made when the engine
    stands still)."""

    weights: Weights
    aside: Aside | None


Bring = Callable[[threading.Event], Brought]
"""Brings weights; it may end early once the event is set."""


class Bringing(Generic[T]):
    """Weights that somebody has asked for by `what`. `tell` is called when they are there, or have
    failed."""

    def __init__(self, what: T, bring: Bring, tell: Callable[[], None]) -> None:
        self.what = what
        self._bring, self._tell = bring, tell
        self._stop = threading.Event()
        self._found: Future[Brought] = Future()
        threading.Thread(target=self._run, name="tensorcast-update", daemon=True).start()

    def wait(self) -> Brought:
        """What was brought. Raises what went wrong."""
        return self._found.result()

    def stop(self) -> None:
        """Nobody wants them any more."""
        self._stop.set()

    def _run(self) -> None:
        brought: list[Brought] = []
        error = failure_of(lambda: brought.append(self._bring(self._stop)))
        if error is None:
            self._found.set_result(brought[0])
        else:
            self._found.set_exception(error)
        self._tell()


def try_aside(make: Callable[[], Aside]) -> Aside | None:
    """What was made aside; None, with the reason in the log, when it could not be: the model's own
    code may raise anything there, and does so once more when the weights are wrong."""
    made: list[Aside] = []
    error = failure_of(lambda: made.append(make()))
    if error is None:
        return made[0]
    if isinstance(error, Cancelled):
        raise error
    LOGGER.info("New weights are loaded while the engine stands still: %s.", explain(error))
    return None


def let_go(things: list[object]) -> None:
    """Gives up what a list holds, in a thread: to give memory back takes a while."""
    threading.Thread(target=things.clear, name="tensorcast-freeing", daemon=True).start()
