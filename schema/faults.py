"""What went wrong with an operation, and whether trying again can help."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tensorcast.schema.errors import (
    Cancelled,
    Corrupt,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast.schema.ids import NodeId


class FaultKind(StrEnum):
    UNAVAILABLE = "unavailable"
    CORRUPT = "corrupt"
    OUT_OF_CAPACITY = "out_of_capacity"
    TIMED_OUT = "timed_out"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    INVALID = "invalid"
    CANCELLED = "cancelled"


RETRYABLE = frozenset(
    {FaultKind.UNAVAILABLE, FaultKind.CORRUPT, FaultKind.OUT_OF_CAPACITY, FaultKind.TIMED_OUT}
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence on what went wrong, and its kind. `permanent`: trying again cannot help,
    although it often does with this kind (what is larger than all of the memory never fits)."""

    kind: FaultKind
    detail: str
    permanent: bool = False

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE and not self.permanent


class Detour(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer went on with `peer` over the transport `after`, because `before` failed: `why` is
    one sentence."""

    peer: NodeId
    before: str
    after: str
    why: str


_ERRORS: dict[FaultKind, type[TensorCastError]] = {
    FaultKind.UNAVAILABLE: Unavailable,
    FaultKind.CORRUPT: Corrupt,
    FaultKind.OUT_OF_CAPACITY: OutOfCapacity,
    FaultKind.TIMED_OUT: Timeout,
    FaultKind.NOT_FOUND: NotFound,
    FaultKind.DENIED: PermissionDenied,
    FaultKind.INVALID: InvalidArgument,
    FaultKind.CANCELLED: Cancelled,
}


def to_error(
    fault: Fault, *, artifact: str | None, node: str | None, operation: str | None
) -> TensorCastError:
    """The exception that a waiting caller gets for a failed operation."""
    kind = _ERRORS[fault.kind]
    return kind(
        fault.detail,
        artifact=artifact,
        node=node,
        operation=operation,
        retryable=False if fault.permanent else None,
    )


def from_error(error: TensorCastError) -> Fault:
    """The fault that an exception of the mover becomes in the log."""
    for kind, error_type in _ERRORS.items():
        if isinstance(error, error_type):
            is_permanent = kind in RETRYABLE and error_type.retryable and not error.retryable
            return Fault(kind=kind, detail=str(error), permanent=is_permanent)
    return Fault(kind=FaultKind.INVALID, detail=str(error))
