"""What the connector counts, in the shapes that vLLM logs and shows on /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from tensorcast.engines.vllm.connector.counters import NAMES, add_up

if TYPE_CHECKING:
    from prometheus_client import Counter

PREFIX = "vllm:tensorcast_kv_"


class Statistics(KVConnectorStats):
    """Sums by their name in `counters.NAMES`, since the last step that told any."""

    def reset(self) -> None:
        """Begins at nothing."""
        self.data: dict[str, float] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Takes in those of another worker, or of later steps."""
        self.data = add_up(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the line in the log."""
        return {f"TensorCast {name}": round(value, 3) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class PrometheusMetrics(KVConnectorPromMetrics):
    """One counter for each name, by engine."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: cast(
                "Counter",  # or what Ray has for it
                self._counter_cls(
                    name=f"{PREFIX}{name}", documentation=f"{text}.", labelnames=labelnames
                ),
            )
            for name, text in NAMES.items()
        }
        for counter in self._counters.values():  # so that it is shown from the start, as 0
            for labels in per_engine_labelvalues.values():
                counter.labels(*labels)

    def observe(self, transfer_stats_data: Mapping[str, float], engine_idx: int = 0) -> None:
        """Adds what was counted."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*labels).inc(value)
