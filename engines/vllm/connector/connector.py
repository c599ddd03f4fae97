"""The connector as vLLM knows it: `--kv-transfer-config
'{"kv_connector":"TensorCastConnector",...}'`.

vLLM makes one for the scheduler and one in each worker, and calls each from one thread only. Here
is nothing but handing over; the package's page says who decides and who moves. No failure of the
store comes out of a method: an exception in one would end the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tensorcast.engines.vllm.connector.events import stored_events
from tensorcast.engines.vllm.connector.facts import refusal
from tensorcast.engines.vllm.connector.inquiries import read_inquiry, with_manifest
from tensorcast.engines.vllm.connector.messages import StepPlan
from tensorcast.engines.vllm.connector.metadata import FactsMetadata, PlanMetadata, ReportMetadata
from tensorcast.engines.vllm.connector.parts import SchedulerPart, WorkerPart
from tensorcast.engines.vllm.connector.settings import read_settings
from tensorcast.engines.vllm.connector.statistics import PrometheusMetrics, Statistics
from tensorcast.schema.block_wire import State

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
        KVConnectorWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
        PromMetric,
        PromMetricT,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

LOGGER = logging.getLogger("vllm.tensorcast")

SOURCES = {
    State.IN_MEMORY: CacheHitSource.HOST,
    State.ON_DISK: CacheHitSource.DISK,
    State.ELSEWHERE: CacheHitSource.P2P,
}

Part = TypeVar("Part", SchedulerPart, WorkerPart)


class TensorCastConnector(KVConnectorBase_V1):
    """Shares KV blocks through the node of this machine. Raises ValueError for a configuration or
    a model that it does not share."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig,
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        reason = refusal(vllm_config, kv_cache_config)
        if reason is not None:
            raise ValueError(reason)
        settings = read_settings(self._kv_transfer_config.kv_connector_extra_config)
        self._scheduler: SchedulerPart | None = None
        self._worker: WorkerPart | None = None
        if role == KVConnectorRole.SCHEDULER:
            warn_of_policy(self._kv_transfer_config.kv_load_failure_policy)
            self._scheduler = SchedulerPart(vllm_config, kv_cache_config, settings)
        else:
            tensor, pipeline = get_tp_group(), get_pp_group()
            rank = pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group
            self._worker = WorkerPart(vllm_config, settings, rank)
        events = vllm_config.kv_events_config
        self._tells_events = events is not None and events.enable_kv_cache_events

    @property
    def requires_kv_delivery(self) -> bool:
        """What is not saved is computed again: nothing depends on it."""
        return False

    # ---- the scheduler's side ------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """What the workers say of themselves, before the first request."""
        found = [one.facts for one in metadata.values() if isinstance(one, FactsMetadata)]
        if found:
            _made(self._scheduler).meet(found)

    def on_new_request(self, request: Request) -> None:
        """Asks for its blocks ahead."""
        part = _made(self._scheduler)
        part.catch_up()
        part.side.begin(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens more the store has; they are loaded beside the steps of the others."""
        found = _made(self._scheduler).side.match(request, num_computed_tokens)
        return found, bool(found)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Memory and disk of the node, or another node."""
        found = _made(self._scheduler).side.sources(request, num_external_tokens)
        return {SOURCES[State(state)]: tokens for state, tokens in found.items()}

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Plans the load."""
        if num_external_tokens:
            (block_ids,) = blocks.get_block_ids()
            _made(self._scheduler).side.allocate(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """What the workers do in this step."""
        part = _made(self._scheduler)
        part.catch_up()
        return PlanMetadata(part.side.plan(scheduler_output))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What they did."""
        found = connector_output.kv_connector_worker_meta
        if isinstance(found, ReportMetadata):
            _made(self._scheduler).side.take_report(found.report)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, object] | None]:
        """Keeps the blocks while they are saved, and tells a decode engine what it will find, and
        who asked what the blocks are (`inquiries.py`)."""
        part, inquiry = _made(self._scheduler), read_inquiry(request.kv_transfer_params)
        manifest = part.side.describe(request, part.naming()) if inquiry.manifest else None
        is_read, told = part.side.finish(request)
        evict = getattr(self._kv_cache_manager, "evict_blocks", None)
        if inquiry.evict and evict is not None:
            evict(set(block_ids))
        return is_read, with_manifest(told, manifest) if manifest is not None else told

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Blocks that became stored, where the engine publishes KV events."""
        kept = _made(self._scheduler).side.take_kept()
        if not self._tells_events or not kept:
            return ()
        return stored_events(kept, self._vllm_config.cache_config.block_size)

    def reset_cache(self) -> bool:
        """The engine forgets its own cache. What others share stays."""
        _made(self._scheduler).forget_cache()
        return True

    # ---- the worker's side ---------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The cache, layer by layer. Raises InvalidArgument for one that we cannot move."""
        _made(self._worker).use_caches(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What the scheduler's side must know of this worker."""
        found = _made(self._worker).tell_facts()
        return FactsMetadata(found) if found is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """The blocks of preempted requests are not read any more after this."""
        if isinstance(kv_connector_metadata, PlanMetadata):
            _made(self._worker).side.give_up(kv_connector_metadata.plan.preempted)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        """Begins loads; nothing waits for them in this step."""
        _made(self._worker).side.load(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: what a step computes with is there before it."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: object,
    ) -> None:
        """Nothing: a block is saved with all its layers, after the step."""

    def wait_for_save(self) -> None:
        """Begins saves; nothing waits for them."""
        _made(self._worker).side.save(self._plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks are free, and those that are loaded."""
        free, loaded = _made(self._worker).side.take_ended(is_idle=self._plan().is_idle)
        return free or None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """What the engine computes instead."""
        return _made(self._worker).side.take_bad_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return ReportMetadata(_made(self._worker).side.take_report())

    def _plan(self) -> StepPlan:
        found = self._get_connector_metadata()
        assert isinstance(found, PlanMetadata)
        return found.plan

    # ---- both ----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends what is under way. Safe to repeat."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.side.close()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """What was counted since the last step."""
        part = self._scheduler or self._worker
        counted = part.side.take_counters() if part is not None else {}
        return Statistics(data=counted) if counted else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, float] | None = None
    ) -> KVConnectorStats | None:
        return Statistics(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        return PrometheusMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def warn_of_policy(policy: str) -> None:
    """Says loudly when a failed load would fail the request."""
    if policy != "recompute":
        LOGGER.warning(
            "TensorCast: kv_load_failure_policy is %r, vLLM's default: a KV block that is lost on "
            'its way FAILS THE REQUEST. Set "kv_load_failure_policy":"recompute" in '
            "--kv-transfer-config, and it is computed instead.",
            policy,
        )


def _made(part: Part | None) -> Part:
    assert part is not None, "vLLM called a method of the other side"
    return part
