"""The messages of both sides in the wrappers that vLLM carries."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from tensorcast.engines.vllm.connector.messages import StepPlan, StepReport, WorkerFacts


@dataclass
class PlanMetadata(KVConnectorMetadata):
    """A step's plan, on its way to the workers."""

    plan: StepPlan


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """A worker's report, on its way back."""

    report: StepReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Both as one."""
        assert isinstance(other, ReportMetadata)
        self.report.add(other.report)
        return self


@dataclass
class FactsMetadata(KVConnectorHandshakeMetadata):
    """What a worker says of itself, once."""

    facts: WorkerFacts
