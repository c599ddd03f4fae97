"""TensorCast: one layer under every tensor that an LLM cluster moves.

The public names are loaded on first use, so that `tensorcast.schema` never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcast.client import (
        AllAtOnce,
        Artifact,
        AsyncArtifact,
        AsyncClient,
        AsyncOperation,
        AsyncPlanRun,
        AsyncReplication,
        BlockKey,
        BlockPut,
        Canary,
        Cancelled,
        Check,
        Client,
        Conflict,
        Corrupt,
        Health,
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
        Rolling,
        RolloutLimits,
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
    "AllAtOnce",
    "Artifact",
    "AsyncArtifact",
    "AsyncClient",
    "AsyncOperation",
    "AsyncPlanRun",
    "AsyncReplication",
    "BlockKey",
    "BlockPut",
    "Canary",
    "Cancelled",
    "Check",
    "Client",
    "Conflict",
    "Corrupt",
    "Health",
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
    "Rolling",
    "RolloutLimits",
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
