"""The two sides as parts of an engine: made out of vLLM's configuration."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tensorcast.client.blocks import Blocks
from tensorcast.client.blocks_calls import make_blocks
from tensorcast.client.context import Context, resolve_context
from tensorcast.client.identity import name_actor
from tensorcast.engines.vllm import serving
from tensorcast.engines.vllm.connector.addresses import Addresses, ask_control_plane
from tensorcast.engines.vllm.connector.facts import describe_layout, engine_facts
from tensorcast.engines.vllm.connector.fingerprint import begin_naming
from tensorcast.engines.vllm.connector.inquiries import Naming
from tensorcast.engines.vllm.connector.link import Link
from tensorcast.engines.vllm.connector.lookups import Lookups
from tensorcast.engines.vllm.connector.memory import CacheMemory
from tensorcast.engines.vllm.connector.messages import WorkerFacts
from tensorcast.engines.vllm.connector.scheduling import SchedulerSide
from tensorcast.engines.vllm.connector.settings import Settings
from tensorcast.engines.vllm.connector.space import name_space
from tensorcast.engines.vllm.connector.versions import Versions
from tensorcast.engines.vllm.connector.working import WorkerSide
from tensorcast.schema.block_wire import State
from tensorcast.schema.errors import TensorCastError

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

LOGGER = logging.getLogger("vllm.tensorcast")
OUR_TRANSFER = "tensorcast"


def make_link(settings: Settings) -> Link:
    """The way to the node that the settings or the environment name; connects when it is used."""

    def context() -> Context:
        return resolve_context(settings.context, settings.node, os.environ)

    def connect() -> Blocks:
        return make_blocks(context(), name_actor(), settings.patience_s)

    return Link(connect, Addresses(lambda: ask_control_plane(context(), name_actor())))


def find_node(settings: Settings) -> str | None:
    """The node of this engine; None where no cluster is known yet."""
    try:
        return resolve_context(settings.context, settings.node, os.environ).default_node
    except TensorCastError:
        return None


class SchedulerPart:
    """The scheduler's side, and how it comes to know under which space blocks belong."""

    def __init__(self, config: VllmConfig, cache: KVCacheConfig, settings: Settings) -> None:
        self._config = config
        self._cache = cache
        self._settings = settings
        self._link = make_link(settings)
        self._workers: Sequence[WorkerFacts] = ()
        self._naming: Future[str | None] | None = None
        self._said: str | None = None
        transfer = config.kv_transfer_config
        assert transfer is not None
        self.side = SchedulerSide(
            Lookups(self._link.find_states, State.ABSENT),
            Versions(self._name_space, is_open=False),
            config.cache_config.block_size,
            loads=transfer.kv_role != "kv_producer",
            saves=transfer.kv_role != "kv_consumer",
            node=find_node(settings),
        )

    def meet(self, workers: Sequence[WorkerFacts]) -> None:
        """What the workers say of themselves: from now on it is known where blocks belong, or will
        be as soon as the files of weights are read that nobody has a name for."""
        if len({one.parts for one in workers}) > 1:
            LOGGER.warning(
                "TensorCast: the pipeline's stages have blocks of very different sizes, so no KV "
                "block is shared."
            )
            return
        self._workers = workers
        self.side.know_workers([one.rank for one in workers], workers[0].parts)
        versions, model = self.side.versions, self._config.model_config
        versions.is_open = True
        versions.hear({one.rank: one.weights for one in workers})
        if not versions.are_told and self._settings.weights:
            versions.rename(f"named:{self._settings.weights}")
        elif not versions.are_told and self._config.load_config.load_format == "dummy":
            self._say_unknown()
        elif not versions.are_told:
            self._naming = begin_naming(model.model, model.revision)
        # The space is named in the first step: vLLM has not made the root of its hashes yet.

    def catch_up(self) -> None:
        """Takes the name of the weights, when it has been found out, and says where blocks belong
        when that has changed."""
        self.say_space()
        if self._naming is None or not self._naming.done():
            return
        name, self._naming = self._naming.result(), None
        self.side.versions.rename(name)
        if name is None:
            self._say_unknown()

    def forget_cache(self) -> None:
        """The engine's own cache was emptied, perhaps because its weights are changed by somebody
        who does not tell us: then blocks are this engine's own from now on."""
        versions = self.side.versions
        versions.clear()
        self.side.doubt_weights()
        transfer = getattr(self._config, "weight_transfer_config", None)
        if transfer.backend == OUR_TRANSFER if transfer is not None else versions.are_told:
            return
        versions.seclude(uuid.uuid4().hex)
        LOGGER.warning(
            "TensorCast: the engine's caches were reset, and nobody says whether its weights "
            "change: its KV blocks are not shared with other engines from now on. With "
            "--load-format tensorcast and the weight transfer `tensorcast` they stay shared."
        )

    def say_space(self) -> None:
        """For the log, when it is another one than before."""
        space = self.side.versions.space()
        if space is not None and space != self._said:
            LOGGER.info("TensorCast: KV blocks are shared in space %s.", space)
            self._said = space

    def _say_unknown(self) -> None:
        LOGGER.warning(
            "TensorCast: nobody says which weights these are, so no KV block is shared: load them "
            "with --load-format tensorcast, or set `weights` in kv_connector_extra_config to a "
            "name that no other weights have."
        )

    def naming(self) -> Naming:
        """How this engine names blocks."""
        from vllm.v1.core import kv_cache_utils

        config = self._config.cache_config
        algorithm = str(config.prefix_caching_hash_algo)
        return Naming(config.block_size, algorithm, bytes(kv_cache_utils.NONE_HASH))

    def _name_space(self, weights: str) -> str:
        from vllm.v1.core import kv_cache_utils

        root = bytes(kv_cache_utils.NONE_HASH)
        found = engine_facts(self._config, self._cache, self._workers, root)
        model = str(self._config.model_config.served_model_name or self._config.model_config.model)
        return name_space(model, {**found, "weights": weights})

    def close(self) -> None:
        """Safe to repeat."""
        self.side.close()
        self._link.close()


class WorkerPart:
    """A worker's side."""

    def __init__(self, config: VllmConfig, settings: Settings, rank: int) -> None:
        self._config = config
        self._rank = rank
        self.side = WorkerSide(make_link(settings), rank, serving.current_weights)
        self._memory: CacheMemory | None = None
        self._layout = ""

    def use_caches(self, caches: Mapping[str, torch.Tensor]) -> None:
        """The engine's cache. Raises InvalidArgument for one that is not in the host's memory."""
        self._memory = CacheMemory(caches)
        context = self._config.compilation_config.static_forward_context
        sets = {name: getattr(context.get(name), "isa", None) for name in caches}
        self._layout = describe_layout(caches, sets)
        self.side.use_memory(self._memory)

    def tell_facts(self) -> WorkerFacts | None:
        """What the scheduler's side must know; None without a cache."""
        if self._memory is None:
            return None
        return WorkerFacts(
            rank=self._rank,
            parts=self._memory.parts,
            part_bytes=self._memory.part_bytes,
            layout=self._layout,
            weights=serving.current_weights(),
        )
