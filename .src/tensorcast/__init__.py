"""TensorCast: one layer under every tensor that an LLM cluster moves.

The public names are loaded on first use, so that `tensorcast.schema` never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcast.client import (
        Artifact,
        AsyncArtifact,
        AsyncClient,
        AsyncOperation,
        AsyncPlanRun,
        AsyncReplication,
        BlockKey,
        BlockPut,
        Cancelled,
        Client,
        Conflict,
        Corrupt,
        InvalidArgument,
        NotFound,
        Operation,
        OutOfCapacity,
        PermissionDenied,
        Plan,
        PlanRun,
        Rejected,
        Replication,
        Retry,
        TensorCastError,
        Timeout,
        Unavailable,
        View,
        connect,
        connect_async,
        load,
        load_into,
        pack_keys,
        read_plan,
    )

__all__ = [
    "Artifact",
    "AsyncArtifact",
    "AsyncClient",
    "AsyncOperation",
    "AsyncPlanRun",
    "AsyncReplication",
    "BlockKey",
    "BlockPut",
    "Cancelled",
    "Client",
    "Conflict",
    "Corrupt",
    "InvalidArgument",
    "NotFound",
    "Operation",
    "OutOfCapacity",
    "PermissionDenied",
    "Plan",
    "PlanRun",
    "Rejected",
    "Replication",
    "Retry",
    "TensorCastError",
    "Timeout",
    "Unavailable",
    "View",
    "connect",
    "connect_async",
    "load",
    "load_into",
    "pack_keys",
    "read_plan",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from tensorcast import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
