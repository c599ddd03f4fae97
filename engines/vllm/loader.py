"""`--load-format tensorcast`: the weights of a vLLM model from this node's replica.

vLLM's default loader stays in charge: it makes the model, checks that every parameter got its
weights and processes them. Here it is only given other tensors, those of the mapped replica, and
`Placement` sees to it that parameters which can lie in the replica do. Loading begins with the
tensors that are there while the node brings the rest. When the layer is away, the checkpoint on
disk is loaded, and the log says so; when it answers that it has no such weights, nothing is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import ClassVar

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from tensorcast.client import Client, InvalidArgument, NotFound, TensorCastError, connect
from tensorcast.client.model_files import read_mark
from tensorcast.client.sync import Arrival
from tensorcast.engines.arriving import tensors_as_they_come
from tensorcast.engines.placement import Memory, Placed, Placement
from tensorcast.engines.vllm import serving
from tensorcast.engines.vllm.announcing import announce
from tensorcast.engines.vllm.checkpoint import (
    Options,
    may_have_weights,
    name_weights,
    read_options,
)
from tensorcast.engines.vllm.plugin import LOGGER

Weights = Generator[tuple[str, torch.Tensor], None, None]


class TensorCastModelLoader(DefaultModelLoader):
    """The loader of the format `tensorcast`. vLLM makes one for each load; `model_at_start` is
    what this engine was started with, so that a reload of something else is told apart."""

    model_at_start: ClassVar[str | None] = None

    def __init__(self, load_config: LoadConfig) -> None:
        self.options = read_options(load_config.model_loader_extra_config)
        plain = copy.copy(load_config)
        plain.load_format = "auto"
        plain.model_loader_extra_config = {}
        super().__init__(plain)
        self._main: ModelConfig | None = None
        self._is_spread = False
        self._arrival: Arrival | None = None
        self._client: Client | None = None

    # ---- what vLLM calls -----------------------------------------------------------------------

    def download_model(self, model_config: ModelConfig) -> None:
        """Brings the weights to this node; nothing is written to disk."""
        with self._connected() as client:
            client.follow(name_weights(self.options, model_config.model))

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> torch.nn.Module:
        """As vLLM's; while the model is made the node begins to bring what it lacks."""
        self._main = vllm_config.model_config
        self._is_spread = is_spread(vllm_config)
        if model_config is self._main:
            TensorCastModelLoader.model_at_start = model_config.model
        with contextlib.ExitStack() as opened:
            if self._is_ours(model_config):
                self._begin(model_config, opened)
            model: torch.nn.Module = super().load_model(
                vllm_config=vllm_config, model_config=model_config, prefix=prefix
            )
        if model_config is self._main:
            announce(vllm_config)
        return model

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Gives a model its weights, in place where that can be."""
        if not self._is_ours(model_config):
            super().load_weights(model, model_config)
            return
        with contextlib.ExitStack() as opened:
            if self._client is None:
                self._begin(model_config, opened)
            if self._arrival is None:
                self._load_from_disk(model, model_config)
                return
            try:
                self._load(model, model_config)
            except TensorCastError as error:
                LOGGER.warning("The weights stopped coming (%s): once more, from the start.", error)
                self._load_again(model, model_config)

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Weights:
        """All tensors of the checkpoint as they come, mapped from the replica; what a model takes
        from further sources comes from where vLLM finds it."""
        with contextlib.ExitStack() as opened:
            arrival = self._arrival
            if arrival is None:
                if not self._is_ours(model_config):
                    yield from super().get_all_weights(model_config, model)
                    return
                client = opened.enter_context(self._connected())
                arrival = client.follow(self._name(model_config), timeout=self.options.timeout_s)
                opened.callback(serving.set_weights, arrival.artifact)
            self.counter_before_loading_weights = time.perf_counter()
            yield from tensors_as_they_come(arrival, skips_of(model), self.options.timeout_s)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    # ---- from the replica ----------------------------------------------------------------------

    def _begin(self, model_config: ModelConfig, opened: contextlib.ExitStack) -> None:
        """Asks the node for the weights; without an answer the disk is all that is left. What is
        asked for ends with `opened`."""
        opened.callback(self._end)
        name = self._name(model_config)
        try:
            self._client = opened.enter_context(self._connected())
            self._arrival = self._ask(self._client, name)
        except TensorCastError as error:
            if not self._may_fall_back(error, model_config):
                raise
            LOGGER.warning(
                "TensorCast has no weights %s for this engine (%s): it loads the checkpoint on"
                " disk.",
                name,
                error,
            )

    def _ask(self, client: Client, name: str) -> Arrival:
        arrival = client.follow(name, excerpt=self._wants_excerpt(), timeout=self.options.timeout_s)
        if arrival.is_whole:
            threading.Thread(target=arrival.prefault, name="prefault", daemon=True).start()
        while not (arrival.is_whole or arrival.is_excerpt or self.options.progressive):
            arrival.wait(timeout=self.options.timeout_s)
        return arrival

    def _wants_excerpt(self) -> bool:
        wanted = self._is_spread if self.options.partial is None else self.options.partial
        return wanted and self.options.in_place  # else nobody sees what is read

    def _end(self) -> None:
        self._client = self._arrival = None

    def _load(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        arrival = self._arrival
        assert arrival is not None
        begin = time.perf_counter()
        if arrival.memory is None or not self.options.in_place:
            super().load_weights(model, model_config)
            placed = None
        else:
            bring = None
            if arrival.is_excerpt:
                bring = functools.partial(arrival.bring, timeout=self.options.timeout_s)
            with Placement(model, Memory(memoryview(arrival.memory), bring)) as placement:
                super().load_weights(model, model_config)
            placed = placement.placed()
        serving.set_weights(arrival.artifact)
        _tell(self._name(model_config), arrival, placed, time.perf_counter() - begin)

    def _load_again(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Once more, when all of it is there; else from the disk."""
        assert self._client is not None
        try:
            name = self._name(model_config)
            self._client.get(name, names=(), timeout=self.options.timeout_s)
            self._arrival = self._client.follow(name, timeout=self.options.timeout_s)
            self._load(model, model_config)
        except TensorCastError as error:
            if not self._may_fall_back(error, model_config):
                raise
            LOGGER.warning("TensorCast gave no weights (%s): it loads those on disk.", error)
            self._load_from_disk(model, model_config)

    # ---- from the disk -------------------------------------------------------------------------

    def _may_fall_back(self, error: TensorCastError, model_config: ModelConfig) -> bool:
        """Whether the disk may stand in. Never for weights that the layer says it does not have: an
        engine that serves others than were asked for looks as if all were well. Says why not."""
        is_answer = isinstance(error, NotFound | InvalidArgument)
        if self.options.fallback and not is_answer and may_have_weights(model_config.model):
            return True
        LOGGER.error(
            "The weights %s cannot be had: %s (context %s).",
            self._name(model_config),
            error,
            self.options.context
            or os.environ.get("TENSORCAST_CONTEXT")
            or "of the last `tcctl up`",
        )
        return False

    def _load_from_disk(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        self._arrival = None
        self._is_on_disk = True
        try:
            super().load_weights(model, model_config)
        finally:
            self._is_on_disk = False
        serving.set_weights(None)

    _is_on_disk = False

    # ---- which weights -------------------------------------------------------------------------

    def _is_ours(self, model_config: ModelConfig) -> bool:
        """The options name the weights of the engine's model; a draft model beside it has its own
        only if its folder says so."""
        if self._is_on_disk:
            return False
        is_main = self._main is None or model_config is self._main
        return is_main or read_mark(Path(model_config.model)) is not None

    def _name(self, model_config: ModelConfig) -> str:
        """The options speak of the model that the engine was started with; any other model (a
        draft, or what a reload names) speaks for itself."""
        is_main = self._main is None or model_config is self._main
        is_main = is_main and self.model_at_start in (None, model_config.model)
        return name_weights(self.options if is_main else Options(), model_config.model)

    def _connected(self) -> Client:
        return connect(self.options.context, node=self.options.node)


def is_spread(vllm_config: VllmConfig) -> bool:
    """Whether the ranks of an engine are on several machines."""
    return int(getattr(vllm_config.parallel_config, "nnodes", 1)) > 1


def skips_of(model: torch.nn.Module) -> Callable[[str], bool]:
    """Which tensors another pipeline rank loads; where vLLM cannot say it, none is left out, and
    the model itself passes over them."""
    try:
        from vllm.distributed import get_pp_group, model_parallel_is_initialized
        from vllm.model_executor.models.utils import is_pp_missing_parameter
    except ImportError:
        return lambda name: False
    if not model_parallel_is_initialized() or get_pp_group().world_size == 1:
        return lambda name: False
    return lambda name: bool(is_pp_missing_parameter(name, model))


def _tell(name: str, arrival: Arrival, placed: Placed | None, took_s: float) -> None:
    if placed is None:
        LOGGER.info("TensorCast gave the weights %s in %.3f s, copied.", name, took_s)
        return
    LOGGER.info(
        "TensorCast gave the weights %s (artifact %s) in %.3f s: %d parameters of %.1f MiB in"
        " place, %.1f MiB copied, %.1f MiB converted.",
        name,
        arrival.artifact,
        took_s,
        placed.in_place,
        placed.in_place_bytes / 2**20,
        placed.copied_bytes / 2**20,
        placed.other_bytes / 2**20,
    )
    if arrival.is_excerpt:
        LOGGER.info(
            "TensorCast brought %.1f MiB of the weights' %.1f MiB to this node.",
            arrival.here_bytes / 2**20,
            arrival.size_bytes / 2**20,
        )
