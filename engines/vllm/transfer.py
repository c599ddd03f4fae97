"""The weight-transfer back end `tensorcast` of vLLM: new weights come from the node's replica.

--weight-transfer-config '{"backend": "tensorcast"}'

init     {"context": ..., "node": ..., "url": ...}   all optional
start    -
update   {"version": "policy@7", "artifact": "<id>"}  brings, checks and keeps them; touches nothing
         {"cancel": true}                              forgets them, and ends the update by an error
finish   applies them, and puts it on record           (weight_version: "policy@7")

Nothing of the model changes before `finish`, and then all of it does, or nothing (`updating.py`).
The scheduler should be paused around `finish`, so that no request meets both versions;
`updates.py` does all that from outside.

Only the last rank raises: vLLM's executor reads the answers of the ranks in their order, up to the
first error, and takes what it has left unread for answers to its next call. So an update that fails
is over on some ranks and open on the others (`Session`); who drives it must mend that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

import torch
from vllm.distributed import parallel_state
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    layerwise,
)
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo

from tensorcast.client import Client, TensorCastError, connect
from tensorcast.client.tensors import name_dtypes
from tensorcast.engines.updating import Updater, Weights, explain
from tensorcast.engines.vllm import serving
from tensorcast.engines.vllm.announcing import announce, find_start
from tensorcast.engines.vllm.calls import mark
from tensorcast.engines.vllm.disk import DiskWeights
from tensorcast.engines.vllm.plugin import LOGGER
from tensorcast.engines.vllm.updates import SESSION, Session
from tensorcast.schema.errors import InvalidArgument, Rejected, Unavailable
from tensorcast.schema.ids import is_artifact_id

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

    from tensorcast.engines.presence import Presence

GET_S = 600.0
RECORD_S = 10.0
TEXT_BYTES = 512
TORN = 70
"""The exit status of a process that ends so as not to serve weights of two versions."""
_finalize = cast("Callable[..., None]", finalize_layerwise_reload)  # vLLM gives it no types
_reset = cast("Callable[..., None]", LayerReloadingInfo.reset)
GROUPS = ("get_tp_group", "get_pp_group", "get_pcp_group")


class _Loads(Protocol):
    """Every model of vLLM."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str] | None: ...


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Which cluster and node the weights come from, when the environment does not say it; the
    address where this engine answers."""

    context: str | None = None
    node: str | None = None
    url: str = ""
    problem: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What to bring: the id of an artifact, and what it is called from then on. `check`: compare
    all its bytes with their digests first."""

    version: str = ""
    artifact: str = ""
    check: bool = True
    timeout_s: float = GET_S
    cancel: bool = False
    problem: str = ""


class TensorCastWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """One rank's side of it. vLLM makes one for each worker, when the model is loaded."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._client: Client | None = None
        self._presence: Presence | None = announce(vllm_config)
        self._updater: Updater | None = None
        self._disk = DiskWeights(vllm_config, model)
        parallel = vllm_config.parallel_config
        self._is_alone = parallel.world_size == 1
        self._speaks = parallel.rank == parallel.world_size - 1
        self._has_failed = False

    # ---- what vLLM calls -----------------------------------------------------------------------

    def parse_init_info(self, init_dict: dict[str, object]) -> InitInfo:
        """What cannot be parsed is told later, by one rank."""
        try:
            found: InitInfo = super().parse_init_info(init_dict)
            return found
        except ValueError as error:
            return InitInfo(problem=f"{error}. {name_fields(InitInfo)}")

    def parse_update_info(self, update_dict: dict[str, object]) -> UpdateInfo:
        """As `parse_init_info`."""
        try:
            found: UpdateInfo = super().parse_update_info(update_dict)
            return found
        except ValueError as error:
            return UpdateInfo(problem=f"{error}. {name_fields(UpdateInfo)}")

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connects; may be repeated, and changes nothing then."""
        failed: TensorCastError | None = None
        try:
            self._init(init_info)
        except TensorCastError as error:
            failed = error
        problem = self.agree(explain(failed))
        if problem:
            self._tell(failed or Unavailable(f"On another rank of this engine: {problem}"))

    def start_weight_update(self) -> None:
        """Begins anew: what an update that never ended has brought is forgotten."""
        if self._updater is not None:
            self._updater.cancel()
        self._has_failed = False
        self._note(Session.OPEN)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Brings new weights to this rank, and checks them. When it raises, nothing has changed."""
        updater = self._find_updater()
        if update_info.cancel:
            updater.cancel()
            self._fail(Rejected("The weight update was cancelled.", hint="The old weights stay."))
            return
        try:
            updater.stage(lambda: self._bring(update_info))
        except Exception as error:
            self._fail(error)

    def finish_weight_update(self) -> None:
        """Makes them those of the model. When it raises, the old ones serve on."""
        updater = self._find_updater()
        if self._has_failed and not self._speaks:
            self._note(Session.OVER)  # the last rank's is over since it failed
            return
        try:
            new = updater.commit()
        except Exception as error:
            self._note(Session.OPEN_ON_LAST)
            self._tell(error)
            return
        serving.set_weights(new.artifact)
        self._note(Session.OVER)
        LOGGER.info("The weights are %s now (artifact %s).", new.version, new.artifact)

    def shutdown(self) -> None:
        """Lets go of the cluster; the weights stay."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # ---- what the updater needs ----------------------------------------------------------------

    def apply(self, weights: Weights) -> None:
        """Loads weights into the model, layer by layer, where their parameters lie now."""
        drop_partial(self.model)
        initialize_layerwise_reload(self.model)
        loaded = cast("_Loads", self.model).load_weights(weights.tensors())
        _finalize(self.model, self.model_config)
        if self.model_config.quantization is None and loaded is not None:
            self._disk.check_complete(self.model, loaded)

    def agree(self, problem: str) -> str:
        """The first of the problems that the ranks of this engine have."""
        for group in map(find_group, GROUPS):
            if group is not None and group.world_size > 1:
                told = [torch.empty(TEXT_BYTES, dtype=torch.uint8) for _ in range(group.world_size)]
                torch.distributed.all_gather(told, pack_text(problem), group=group.cpu_group)
                problem = next((text for text in map(unpack_text, told) if text), "")
        return problem

    def record(self, weights: Weights, *, wait: bool) -> None:
        """Tells the cluster, on one rank; from now on they serve."""
        if self._presence is None:
            return
        self._presence.serve(weights.version, weights.artifact, datetime.now(UTC))
        if wait:
            self._presence.wait_recorded(RECORD_S)

    def abandon(self, reason: str) -> NoReturn:
        """Ends this worker, and so the engine."""
        LOGGER.critical(
            "This model has weights of two versions and must not serve: the engine ends. %s", reason
        )
        os._exit(TORN)

    def _fail(self, error: Exception) -> None:
        """An update ends by an error: on the last rank, which raises it."""
        self._has_failed = True
        self._note(Session.OVER if self._is_alone else Session.OVER_ON_LAST)
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Raises the error on the one rank that may; the others only write it down."""
        LOGGER.error("The weights stay as they are: %s", explain(error))
        if not self._speaks:
            return
        if isinstance(error, TensorCastError):
            raise mark(error) from error
        raise RuntimeError(f"The old weights serve on. {explain(error)}") from error

    def _note(self, session: Session) -> None:
        """Says how the update stands, for who has to mend it."""
        if self._presence is not None:
            self._presence.tell_load({SESSION: float(session)})

    # ---- bringing ------------------------------------------------------------------------------

    def _init(self, info: InitInfo) -> None:
        if info.problem:
            raise InvalidArgument(info.problem)
        if self._client is None:
            self._client = self._connect(info)
        if self._presence is None:
            self._presence = announce(self.vllm_config)
        if self._presence is not None:
            self._presence.describe(url=info.url)
        self._find_updater()

    def _find_updater(self) -> Updater:
        if self._updater is None:
            self._updater = Updater(self, self._find_serving())
        return self._updater

    def _find_serving(self) -> Weights | None:
        """The weights that the model has now, from where they can be had once more."""
        artifact = serving.current_weights()
        if artifact is None or not is_artifact_id(artifact):
            return self._disk.weights()
        served = self._presence.served if self._presence is not None else None
        version = served.version if served is not None else artifact
        try:
            return self._get(version, artifact, check=False, timeout_s=GET_S)
        except TensorCastError as error:
            LOGGER.warning("The weights of now are not in the cluster any more: %s", error)
            return None

    def _bring(self, info: UpdateInfo) -> Weights:
        if info.problem:
            raise InvalidArgument(info.problem)
        if not is_artifact_id(info.artifact) or not info.version:
            raise InvalidArgument(
                "A weight update names an artifact by its id, and a version.",
                hint='As in {"version": "policy@7", "artifact": "f9a2..."}; updates.py does it.',
            )
        return self._get(info.version, info.artifact, check=info.check, timeout_s=info.timeout_s)

    def _get(self, version: str, artifact: str, *, check: bool, timeout_s: float) -> Weights:
        """Their tensors stay mapped, unchanged and readable, as long as these are kept."""
        tensors = self._connected().get(artifact, check=check, timeout=timeout_s)
        shapes = {name: describe(tensor) for name, tensor in tensors.items()}
        return Weights(version, artifact, lambda: iter(tensors.items()), shapes)

    def _connect(self, info: InitInfo) -> Client:
        options = find_start(self.vllm_config)
        return connect(info.context or options.context, node=info.node or options.node)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect(InitInfo())
        return self._client


def name_fields(info: type[InitInfo | UpdateInfo]) -> str:
    """A sentence that says what an info may name."""
    return f"Known are {', '.join(one.name for one in fields(info) if one.name != 'problem')}."


def pack_text(text: str) -> torch.Tensor:
    """A text as a tensor that each rank can send."""
    content = text.encode()[:TEXT_BYTES]
    return torch.tensor(list(content.ljust(TEXT_BYTES, b"\0")), dtype=torch.uint8)


def unpack_text(tensor: torch.Tensor) -> str:
    """The text of another rank."""
    return bytes(tensor.tolist()).rstrip(b"\0").decode(errors="replace")


def describe(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """The dtype of a tensor, as safetensors writes it, and its shape."""
    return name_dtypes()[tensor.dtype], tuple(tensor.shape)


def find_group(name: str) -> parallel_state.GroupCoordinator | None:
    """One of the groups of ranks that make up this engine; None where vLLM has none."""
    find = getattr(parallel_state, name, None)
    try:
        return find() if find is not None else None
    except AssertionError:  # it is not made
        return None


def drop_partial(model: torch.nn.Module) -> None:
    """Forgets a reload that broke off: each layer that was not done gets its tensors of before, so
    that the next reload begins with nothing of it."""
    for layer in _unfinished(model):
        info = layerwise.get_layerwise_info(layer)
        layerwise._place_kernel_tensors(layer, info)
        _reset(info)


def _unfinished(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            yield layer
