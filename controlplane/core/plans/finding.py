"""Which engines there are for a plan to speak to. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tensorcast.controlplane.core.names import resolve_artifact
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Key, family_of
from tensorcast.schema.plans import FindEngines


def find_engines(
    view: ClusterView, step: FindEngines, values: Mapping[str, object]
) -> dict[str, object]:
    """The outputs of a step that looks for engines. Raises NotFound for weights that nobody
    knows."""
    unless = resolve_artifact(view, str(values["unless"])) if values.get("unless") else None
    weights = str(values["weights"])
    found = [
        engine
        for engine in (view.engines[name] for name in sorted(view.engines_up))
        if serves(engine, weights)
        and step.labels.items() <= engine.labels.items()
        and (unless is None or engine.artifact != unless)
    ]
    nodes = sorted({engine.node for engine in found if engine.node})
    return {"engines": [engine.id for engine in found], "nodes": nodes}


def serves(engine: Engine, weights: str) -> bool:
    """Whether an engine serves a version of these weights (empty: of any)."""
    return not weights or family_of(Key(engine.weights)) == weights
