"""How objects of the asynchronous client become objects whose calls wait."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, Generic, ParamSpec, TypeVar

from tensorcast.client.portal import Portal

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")
Inner_co = TypeVar("Inner_co", covariant=True)


class Facade(Generic[Inner_co]):
    """An object of the asynchronous client, and the portal in which its calls run."""

    def __init__(self, portal: Portal, inner: Inner_co) -> None:
        self._portal = portal
        self._inner = inner

    def become_known(self) -> None:
        """Waits for what others must know of it when it is an argument."""

    def __repr__(self) -> str:
        return repr(self._inner).replace("Async", "", 1)


def waited(
    method: Callable[Concatenate[Inner, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Facade[Inner], P], T]:
    """The same method for callers that wait: same arguments, answer and errors."""

    @functools.wraps(method)
    def call(self: Facade[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        settle(*args, *kwargs.values())
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call


def settle(*arguments: object) -> None:
    """Artifacts among the arguments must have their ids: nobody can wait for them later."""
    for argument in arguments:
        if isinstance(argument, Facade):
            argument.become_known()
