"""Exceptions: for failed operations (they name artifact, node and operation), and for bad text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast.schema.api import OperationInfo
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.errors import Cancelled, InvalidArgument, TensorCastError, Unavailable
from tensorcast.schema.faults import RETRYABLE, Fault, FaultKind, to_error


def failure_of(info: OperationInfo) -> TensorCastError:
    """The exception for an operation that has failed or was cancelled."""
    hint = f"`tcctl op show {info.id}` tells more."
    about = f"{info.kind} of {info.artifact} on node {info.node}"
    if info.status == "cancelled":
        error: TensorCastError = Cancelled(f"Operation {info.id} ({about}) was cancelled.")
    elif info.fault is None:
        error = Unavailable(f"Operation {info.id} ({about}) has {info.status}.")
    else:
        error = _error_of(info.fault, f"Operation {info.id} ({about}) failed: {info.fault.detail}")
    error.artifact, error.node, error.operation = info.artifact, info.node, info.id
    error.hint = hint
    return error


def _error_of(fault: FaultInfo, message: str) -> TensorCastError:
    try:
        kind = FaultKind(fault.kind)
    except ValueError:  # a kind of a newer release
        return TensorCastError(message)
    known = Fault(kind=kind, detail=message, permanent=kind in RETRYABLE and not fault.retryable)
    return to_error(known, artifact=None, node=None, operation=None)


def failures_of(failed: Sequence[OperationInfo]) -> TensorCastError:
    """The exception for the first of several failed operations; it counts the others."""
    error = failure_of(failed[0])
    if len(failed) > 1:
        others = ", ".join(f"{info.id} on {info.node}" for info in failed[1:4])
        error.hint = f"{len(failed) - 1} more failed ({others}). {error.hint}"
    return error


def not_text(text: str) -> InvalidArgument:
    """The exception for text that has no bytes: it holds half a surrogate pair, as Python makes it
    of a command line that is not UTF-8."""
    return InvalidArgument(f"{text!r} is not valid text.", hint="Write it in UTF-8.")


def encode_request(request: msgspec.Struct) -> bytes:
    """A request as JSON. Raises InvalidArgument for text that has no bytes."""
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise not_text(error.object) from error
