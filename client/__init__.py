"""The SDK: what applications import to put, get, replicate and follow artifacts.

Names are loaded on first use: importing this package costs next to nothing, and neither torch nor
the NATS client is loaded before something needs it.

    session.py   AsyncClient: the whole surface, awaitable
    sync.py      Client: a thin facade over it, for ordinary programs and several threads
    api.py       what is asked of the control plane; socket.py what is asked of the local mover
    loading.py   checkpoints of this machine or of a store into tensors, without a cluster
    memory.py    the mapping behind tensors; tensors.py and files.py what goes in and comes out
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.context import Context, NodeContext, resolve_context
    from tensorcast.client.handles import AsyncArtifact, AsyncOperation, AsyncReplication
    from tensorcast.client.loading import load, load_into
    from tensorcast.client.log_copies import verify_log_file
    from tensorcast.client.plan_builder import Plan
    from tensorcast.client.plan_files import parse_plan, read_plan
    from tensorcast.client.plan_handles import AsyncPlanRun
    from tensorcast.client.plan_sync import PlanRun
    from tensorcast.client.queries import Queries
    from tensorcast.client.session import AsyncClient, connect_async
    from tensorcast.client.sync import Artifact, Client, Operation, Replication, connect
    from tensorcast.client.views import parse_view
    from tensorcast.schema.blocks import BlockKey, BlockPut, pack_keys
    from tensorcast.schema.errors import (
        Cancelled,
        Conflict,
        Corrupt,
        InvalidArgument,
        NotFound,
        OutOfCapacity,
        PermissionDenied,
        Rejected,
        TensorCastError,
        Timeout,
        Unavailable,
    )
    from tensorcast.schema.plans import Check, Retry
    from tensorcast.schema.rollouts import AllAtOnce, Canary, Health, Rolling, RolloutLimits
    from tensorcast.schema.views import View

_ERRORS = (
    "Cancelled",
    "Conflict",
    "Corrupt",
    "InvalidArgument",
    "NotFound",
    "OutOfCapacity",
    "PermissionDenied",
    "Rejected",
    "TensorCastError",
    "Timeout",
    "Unavailable",
)
_ROLLOUTS = ("AllAtOnce", "Canary", "Health", "Rolling", "RolloutLimits")
_HOMES = {
    "ControlPlane": "tensorcast.client.api",
    "Context": "tensorcast.client.context",
    "NodeContext": "tensorcast.client.context",
    "resolve_context": "tensorcast.client.context",
    "AsyncArtifact": "tensorcast.client.handles",
    "AsyncOperation": "tensorcast.client.handles",
    "AsyncReplication": "tensorcast.client.handles",
    "AsyncClient": "tensorcast.client.session",
    "connect_async": "tensorcast.client.session",
    "verify_log_file": "tensorcast.client.log_copies",
    "load": "tensorcast.client.loading",
    "load_into": "tensorcast.client.loading",
    "Artifact": "tensorcast.client.sync",
    "Client": "tensorcast.client.sync",
    "Operation": "tensorcast.client.sync",
    "Queries": "tensorcast.client.queries",
    "Replication": "tensorcast.client.sync",
    "connect": "tensorcast.client.sync",
    "parse_view": "tensorcast.client.views",
    "BlockKey": "tensorcast.schema.blocks",
    "BlockPut": "tensorcast.schema.blocks",
    "pack_keys": "tensorcast.schema.blocks",
    "Plan": "tensorcast.client.plan_builder",
    "parse_plan": "tensorcast.client.plan_files",
    "read_plan": "tensorcast.client.plan_files",
    "AsyncPlanRun": "tensorcast.client.plan_handles",
    "PlanRun": "tensorcast.client.plan_sync",
    "Check": "tensorcast.schema.plans",
    "Retry": "tensorcast.schema.plans",
    **dict.fromkeys(_ROLLOUTS, "tensorcast.schema.rollouts"),
    "View": "tensorcast.schema.views",
    **dict.fromkeys(_ERRORS, "tensorcast.schema.errors"),
}

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
    "Context",
    "ControlPlane",
    "Corrupt",
    "Health",
    "InvalidArgument",
    "NodeContext",
    "NotFound",
    "Operation",
    "OutOfCapacity",
    "PermissionDenied",
    "Plan",
    "PlanRun",
    "Queries",
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
    "parse_plan",
    "parse_view",
    "read_plan",
    "resolve_context",
    "verify_log_file",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
