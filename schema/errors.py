"""The exception tree that users see, drawn once.

    TensorCastError
    ├── NotFound           a key, artifact, node or operation that the cluster does not know
    ├── Conflict           a compare-and-set or a stale write lost; read again and decide again
    │   └── Rejected       the command may not happen in this state; nothing was written
    ├── Unavailable        the control plane, a mover or a source cannot be reached (retryable)
    ├── Timeout            it did not end in the time that was given (retryable)
    ├── Corrupt            bytes do not match their checksum, or a file breaks its format
    ├── InvalidArgument    what was asked for makes no sense; the message says what would
    ├── PermissionDenied   the operating system or the cluster refuses
    ├── OutOfCapacity      memory pool or disk is full (retryable: eviction may make room)
    └── Cancelled          somebody cancelled the operation

Each error is one sentence that says what is wrong, a `hint` that says what to do, and the
artifact, node and operation that it is about.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

E = TypeVar("E", bound=BaseException)


class TensorCastError(Exception):
    """The root of all errors that TensorCast raises.

    `retryable` says whether the same call can succeed later without a change by the caller. It goes
    with the class, except for an error that says otherwise of itself.
    """

    code = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        artifact: str | None = None,
        node: str | None = None,
        operation: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        if message.endswith("..") and not message.endswith("..."):
            message = message[:-1]  # it ends with another's sentence, and that with a full stop
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.message = message
        self.hint = hint
        self.artifact = artifact
        self.node = node
        self.operation = operation

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class NotFound(TensorCastError):
    """The cluster does not know a key, artifact, node or operation of this name."""

    code = "not_found"


class Conflict(TensorCastError):
    """A compare-and-set or a stale write lost. Read again, and decide again."""

    code = "conflict"


class Rejected(Conflict):
    """The command may not happen in this state; nothing was written."""

    code = "rejected"


class Unavailable(TensorCastError):
    """The control plane, a mover or a source cannot be reached. A retry can help."""

    code = "unavailable"
    retryable = True


class Timeout(TensorCastError):
    """It did not end in the time that was given. A retry can help."""

    code = "timeout"
    retryable = True


class Corrupt(TensorCastError):
    """Bytes do not match their checksum, or a file breaks its format."""

    code = "corrupt"


class InvalidArgument(TensorCastError):
    """What was asked for makes no sense; the message says what would."""

    code = "invalid_argument"


class PermissionDenied(TensorCastError):
    """The operating system or the cluster refuses."""

    code = "permission_denied"


class OutOfCapacity(TensorCastError):
    """The memory pool or the disk is full. A retry can help: eviction may make room; but not when
    something is larger than all the room that there is."""

    code = "out_of_capacity"
    retryable = True


class Cancelled(TensorCastError):
    """Somebody cancelled the operation."""

    code = "cancelled"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error on the wire: what `to_body` writes and `from_body` reads."""

    code: str
    message: str
    hint: str = ""
    artifact: str | None = None
    node: str | None = None
    operation: str | None = None
    permanent: bool = False


_BY_CODE: dict[str, type[TensorCastError]] = {
    kind.code: kind
    for kind in (
        NotFound,
        Conflict,
        Rejected,
        Unavailable,
        Timeout,
        Corrupt,
        InvalidArgument,
        PermissionDenied,
        OutOfCapacity,
        Cancelled,
    )
}


def to_body(error: TensorCastError) -> ErrorBody:
    """The wire form of an error."""
    return ErrorBody(
        code=error.code,
        message=error.message,
        hint=error.hint,
        artifact=error.artifact,
        node=error.node,
        operation=error.operation,
        permanent=type(error).retryable and not error.retryable,
    )


def from_body(body: ErrorBody) -> TensorCastError:
    """The error that a wire form stands for; an unknown code becomes the root class."""
    kind = _BY_CODE.get(body.code, TensorCastError)
    return kind(
        body.message,
        hint=body.hint,
        artifact=body.artifact,
        node=body.node,
        operation=body.operation,
        retryable=False if body.permanent else None,
    )


def find_leaves(group: BaseExceptionGroup[E] | None) -> list[E]:
    """The errors in a group of groups, without the groups."""
    found: list[E] = []
    for error in group.exceptions if group else ():
        found.extend(find_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
