"""The states that a view holds, by name, and what tells two folds apart. Pure.

For whoever keeps states outside of the log: what another fold made is not read, but made anew.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.key import KeyState
from tensorcast.schema.aggregates.lease import Lease
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.policy import PolicyState
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.cluster import FOLD_VERSION, State
from tensorcast.schema.parking import Parked

STATES: Final[dict[str, type[State | Parked]]] = {
    "artifacts": Artifact,
    "keys": KeyState,
    "replicas": Replica,
    "operations": Operation,
    "nodes": Node,
    "leases": Lease,
    "engines": Engine,
    "signals": SignalTopic,
    "plans": Plan,
    "parked": Parked,
    "namespaces": NamespaceRules,
    "policies": PolicyState,
}
"""The type of the states in each map of a `ClusterView`."""

MAPS: Final[Mapping[str, str]] = {
    "artifact": "artifacts",
    "key": "keys",
    "replica": "replicas",
    "operation": "operations",
    "node": "nodes",
    "lease": "leases",
    "engine": "engines",
    "signal": "signals",
    "plan": "plans",
    "namespace": "namespaces",
    "policy": "policies",
}
"""The map in a `ClusterView` of each kind of aggregate, in the order in which they are told."""


@functools.cache
def fold_name() -> str:
    """The name of this release's fold. It changes with `FOLD_VERSION` and with any field of the
    states."""
    _, components = msgspec.json.schema_components(
        STATES.values(), schema_hook=lambda _: {"type": "any"}
    )
    shape = msgspec.json.encode(_without_words(components), order="deterministic")
    return f"{FOLD_VERSION}-{hashlib.blake2b(shape, digest_size=8).hexdigest()}"


def _without_words(schema: object) -> object:
    """A schema without its docstrings."""
    if isinstance(schema, dict):
        return {k: _without_words(v) for k, v in schema.items() if k != "description"}
    return [_without_words(item) for item in schema] if isinstance(schema, list) else schema
