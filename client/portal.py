"""An event loop in a background thread, and the way into it from any other thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from tensorcast.schema.errors import InvalidArgument, TensorCastError, Unavailable

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., object])


class Portal:
    """Starts its thread at the first call. After a fork, `forget` makes the child start its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._left_behind: list[object] = []
        self.is_closed = False

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Runs `work` in the loop and waits for its answer. When the waiting thread is interrupted
        (Ctrl-C) the work is cancelled. Raises what the work raises, Unavailable after `close`,
        InvalidArgument in the loop's own thread, where nobody could answer."""
        try:
            loop = self._running_loop()
        except TensorCastError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        finally:
            # It holds the error, which holds this frame and those of the callers: their tensors
            # would stay until the next collection of cycles.
            del future

    def close(self) -> None:
        """Stops the thread. Safe to repeat; not from within the loop."""
        with self._lock:
            self.is_closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def forget(self) -> None:
        """In a forked child: the parent's loop is not ours. It is kept, untouched, for ever: it
        shares the parent's epoll set."""
        self._left_behind.append((self._loop, self._thread))
        self._lock = threading.Lock()
        self._loop = None
        self._thread = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.is_closed:
                raise Unavailable("This client is closed.", hint="Connect again.")
            if threading.current_thread() is self._thread:
                raise InvalidArgument(
                    "A waiting call was made from within the client's own thread.",
                    hint="A `report` function may not call the client.",
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="tensorcast client", daemon=True
                )
                self._thread.start()
            return self._loop


def documented_as(awaitable: Callable[..., object]) -> Callable[[Method], Method]:
    """Gives a method that waits the documentation of the one it stands for: `help` shall tell all.
    What its own docstring says beyond "As `...`" comes last."""

    def document(method: Method) -> Method:
        own = (method.__doc__ or "").partition("`")[2].partition("`")[2].lstrip(".; \n")
        text = inspect.cleandoc(awaitable.__doc__ or "")
        text = text.replace("`await ", "`").replace("`async with`", "`with`")
        method.__doc__ = f"{text}\n\n{own[:1].upper()}{own[1:]}".rstrip()
        return method

    return document
