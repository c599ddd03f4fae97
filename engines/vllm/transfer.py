"""The weight-transfer back end `tensorcast` of vLLM: new weights come from the node's replica.

--weight-transfer-config '{"backend": "tensorcast"}'

init     {"context": ..., "node": ..., "url": ...}   all optional
start    -
update   {"version": "policy@7", "artifact": "<id>"}  brings, checks and keeps them; touches nothing
         {..., "parts": ["<id>", "<id>"]}              a checkpoint in several artifacts
         {..., "ticket": 7}                            only begins that, and tells its load when it
                                                       is done; then the same without a ticket
         {"cancel": true}                              forgets them, and ends the update by an error
finish   applies them, and puts it on record           (weight_version: "policy@7")

Nothing of the model changes before `finish`, and then all of it does, or nothing (`updating.py`).
Where that can be, what it is to change to is made aside before (`aside.py`), while it serves.
The scheduler should be paused around `finish`, so that no request meets both versions;
`updates.py` does all that from outside.

Only the last rank raises: vLLM's executor reads the answers of the ranks in their order, up to the
first error, and takes what it has left unread for answers to its next call. So an update that fails
is over on some ranks and open on the others (`Session`); who drives it must mend that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
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
from tensorcast.engines.aside import NotAside
from tensorcast.engines.updating import Updater, Weights, explain
from tensorcast.engines.vllm import serving
from tensorcast.engines.vllm.announcing import announce, find_start
from tensorcast.engines.vllm.aside import METHODS, make_aside
from tensorcast.engines.vllm.bringing import Bringing, Brought, let_go, try_aside
from tensorcast.engines.vllm.calls import mark
from tensorcast.engines.vllm.disk import DiskWeights
from tensorcast.engines.vllm.plugin import LOGGER
from tensorcast.engines.vllm.updates import SESSION, TICKET, Session
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
PARTS = "+"
"""Stands between the artifacts of weights that are several."""
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
    all its bytes with their digests first. `parts`: all artifacts, where they are several, each
    with some of the tensors. `aside`: the new parameters may take memory beside those
    that serve. `ticket`: the engine serves meanwhile, and says this number when they are there."""

    version: str = ""
    artifact: str = ""
    check: bool = True
    parts: list[str] = field(default_factory=list)
    aside: bool = True
    ticket: int = 0
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
        self._bringing: Bringing[UpdateInfo] | None = None
        self._brought: Brought | None = None
        self._is_exchanged = False

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
        self._forget_brought()
        self._has_failed = False
        self._note(Session.OPEN)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Brings new weights to this rank, and checks them; with a ticket it only begins to. When
        it raises, nothing has changed."""
        updater = self._find_updater()
        if update_info.ticket:
            self._begin_to_bring(update_info)
            return
        if update_info.cancel:
            updater.cancel()
            self._forget_brought()
            self._fail(Rejected("The weight update was cancelled.", hint="The old weights stay."))
            return
        try:
            updater.stage(lambda: self._take_brought(update_info))
        except Exception as error:
            self._forget_brought()
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
        serving.set_weights(new.name or new.artifact)
        self._forget_brought()
        self._note(Session.OVER)
        LOGGER.info("The weights are %s now (artifact %s).", new.version, new.artifact)

    def shutdown(self) -> None:
        """Lets go of the cluster; the weights stay."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # ---- what the updater needs ----------------------------------------------------------------

    def apply(self, weights: Weights) -> None:
        """Makes weights those of the model: by what was made aside, else layer by layer where its
        parameters lie now."""
        if not self._exchange(weights):
            self._load(weights)

    def _exchange(self, weights: Weights) -> bool:
        """Whether the model has these weights by what was made aside: the new ones, or again those
        of before."""
        brought = self._brought
        if brought is None or brought.aside is None:
            return False
        is_new = weights is brought.weights
        if is_new or self._is_exchanged:
            if is_new != self._is_exchanged:
                try:
                    brought.aside.exchange()
                except NotAside as reason:
                    LOGGER.warning("New weights cannot be exchanged with the old ones: %s.", reason)
                    return False
                self._is_exchanged = is_new
            return True
        return False

    def _load(self, weights: Weights) -> None:
        self._forget_brought()
        keep_apart(self.model)
        drop_partial(self.model)
        initialize_layerwise_reload(self.model)
        loaded = cast("_Loads", self.model).load_weights(weights.tensors())
        _finalize(self.model, self.model_config)
        if self.model_config.quantization is None and loaded is not None:
            self._disk.check_complete(self.model, loaded)
        pack_tied(self.model)

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

    def _begin_to_bring(self, info: UpdateInfo) -> Bringing[UpdateInfo]:
        """In a thread. Tells the ticket when it is over."""
        self._forget_brought()
        what = replace(info, ticket=0)
        found = Bringing(what, partial(self._bring, what), partial(self._tell_ticket, info.ticket))
        self._bringing = found
        return found

    def _take_brought(self, info: UpdateInfo) -> Weights:
        """What was asked for before, or is asked for now."""
        bringing = self._bringing
        if bringing is None or bringing.what != info:
            bringing = self._begin_to_bring(info)
        self._brought = bringing.wait()
        return self._brought.weights

    def _tell_ticket(self, ticket: int) -> None:
        if self._presence is not None and ticket:
            self._presence.tell_load({TICKET: float(ticket)})

    def _forget_brought(self) -> None:
        """What is brought or made aside is not wanted any more, or it is what the model has."""
        if self._bringing is not None:
            self._bringing.stop()
        let_go([self._bringing, self._brought])
        self._bringing, self._brought, self._is_exchanged = None, None, False

    def _bring(self, info: UpdateInfo, stop: threading.Event) -> Brought:
        weights = self._fetch(info)
        aside = None
        if info.aside and self._updater is not None and self._updater.serving is not None:
            aside = try_aside(lambda: make_aside(self.model, weights.tensors(), stop))
        return Brought(weights, aside)

    def _fetch(self, info: UpdateInfo) -> Weights:
        if info.problem:
            raise InvalidArgument(info.problem)
        parts = info.parts or [info.artifact]
        if not all(map(is_artifact_id, [info.artifact, *parts])) or not info.version:
            raise InvalidArgument(
                "A weight update names an artifact by its id, and a version.",
                hint='As in {"version": "policy@7", "artifact": "f9a2..."}; updates.py does it.',
            )
        found = [
            self._get(info.version, part, check=info.check, timeout_s=info.timeout_s)
            for part in parts
        ]
        return found[0] if len(found) == 1 else join(info.artifact, found)

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


def join(artifact: str, parts: Sequence[Weights]) -> Weights:
    """Weights whose tensors are those of several artifacts. Raises InvalidArgument for a tensor
    that two of them have: which would it be?"""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for part in parts:
        twice = sorted(shapes.keys() & part.shapes.keys())
        if twice:
            raise InvalidArgument(
                f"Two parts of {part.version} have {twice[0]}.",
                hint="The parts of an engine's weights are those of a checkpoint: each tensor is"
                " whole, and in one of them.",
            )
        shapes.update(part.shapes)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for part in parts:
            yield from part.tensors()

    ids = [str(part.artifact) for part in parts]
    return Weights(parts[0].version, artifact, tensors, shapes, name=PARTS.join(sorted(ids)))


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


def keep_apart(model: torch.nn.Module) -> None:
    """Gives parameters that lie in mapped bytes memory of their own: the bytes may be those that
    are loaded again when something goes wrong."""
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()


def pack_tied(model: torch.nn.Module) -> None:
    """vLLM's reload gives new weights to one of the layers that share a parameter, and leaves what
    the others have made of the old ones: it is made anew."""
    owners: dict[int, list[torch.nn.Module]] = {}
    for layer in model.modules():
        for parameter in layer.parameters(recurse=False):
            if parameter.numel():
                owners.setdefault(id(parameter), []).append(layer)
    for layers in owners.values():
        for layer in layers if len(layers) > 1 else ():
            if isinstance(method := getattr(layer, "quant_method", None), METHODS):
                method.process_weights_after_loading(layer)


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
