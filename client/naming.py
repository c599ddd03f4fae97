"""What callers give to name an artifact or a part of it: text, or an object that stands for it; and
how long a call of theirs may take."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tensorcast.schema.api import ArtifactInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index
from tensorcast.schema.views import View


@runtime_checkable
class ArtifactLike(Protocol):
    """An `Artifact` or `AsyncArtifact`."""

    @property
    def id(self) -> ArtifactId: ...

    @property
    def index(self) -> Index: ...


What = str | ArtifactLike | ArtifactInfo
"""A key, an id, the beginning of an id, or an artifact."""


def name_of(what: object) -> str:
    """The text by which an artifact is asked for. Raises InvalidArgument for what names none."""
    if isinstance(what, str):
        return what
    if isinstance(what, ArtifactLike | ArtifactInfo):
        return what.id
    raise InvalidArgument(
        f"A {type(what).__name__} does not name an artifact.",
        hint="Give a key, an id or an Artifact.",
    )


def view_of(view: object) -> View:
    """The view that is meant; None is the whole artifact. Raises InvalidArgument."""
    if view is None:
        return View()
    if isinstance(view, View):
        return view
    raise InvalidArgument(
        f"A {type(view).__name__} is not a view.",
        hint="Use View.tensors(), View.slice() or View.shard(), or parse_view() for text.",
    )


def check_timeout(timeout: object) -> None:
    """Raises InvalidArgument unless it is a number of seconds, 0 or more, or None."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgument(
            f"The timeout is {timeout!r}.", hint="Give a number of seconds, 0 or more."
        )
