"""Makes new weights beside the model of a vLLM worker, while that serves (`engines/aside.py`).

For models of which it is known that vLLM makes what a layer computes with out of that layer's
parameters and nothing else: those without quantisation, on a CPU, with room for their parameters
twice. All others stand still while their weights are loaded.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MethodType
from typing import Final, Protocol, cast

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise

from tensorcast.engines.aside import Aside, NotAside, Slot

METHODS: Final = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
THREADS_MAX: Final = 8
ROOM: Final = 1.25
"""So many times the parameters must be free: they, and what is made of the largest meanwhile."""
NICE: Final = 5
"""The engine's own threads come first."""
WRAPPER: Final = "online_process_loader"
CGROUP: Final = Path("/sys/fs/cgroup")
_MAKING = threading.Lock()
Tensors = Iterable[tuple[str, torch.Tensor]]


class _Loads(Protocol):
    """The class of every model of vLLM."""

    def load_weights(self, model: torch.nn.Module, weights: Tensors) -> object: ...


def make_aside(model: torch.nn.Module, weights: Tensors, stop: threading.Event) -> Aside:
    """The model's parameters with these weights, ready to be exchanged. Raises NotAside with the
    reason when that cannot be, Cancelled after `stop`, and what the model's own code raises. To be
    called in a thread of its own: it may end with less of the machine than others."""
    check_kind(model)
    aside = Aside(model, find_slots)
    check_room(sum(slot.size_bytes for slot in aside.slots))
    with aside.recording():
        cast("_Loads", type(model)).load_weights(aside.copy, weights)
    cores = find_cores()
    with kept_threads():
        aside.make(_Work(cores), min(THREADS_MAX, len(cores)), stop)
    return aside


class _Work:
    """What is done with each layer. The threads that do it use one core each, any of these, after
    all others: torch would else divide each piece of work once more among all cores."""

    def __init__(self, cores: set[int]) -> None:
        self._cores = cores
        self._own = threading.local()

    def begin(self) -> None:
        if not getattr(self._own, "is_ready", False):
            self._own.is_ready = True
            set_threads(1)
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cores)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)

    def process(self, module: torch.nn.Module) -> None:
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(module)


@contextlib.contextmanager
def kept_threads() -> Iterator[None]:
    """Threads may be given fewer of torch's within; what it keeps for all others is as before after
    it. One at a time: one that is given up may still be busy when the next begins."""
    with _MAKING:
        threads = torch.get_num_threads()
        try:
            yield
        finally:
            set_threads(threads)


def set_threads(count: int) -> None:
    """As torch's function, which vLLM takes away where it has bound its own threads to cores."""
    getattr(torch._C, "set_num_threads", torch.set_num_threads)(count)


def check_kind(model: torch.nn.Module) -> None:
    """Raises NotAside unless all is known of what is made of this model's parameters."""
    for layer in model.modules():
        kind = type(layer).__name__
        method = getattr(layer, "quant_method", None)
        if isinstance(method, QuantizeMethodBase) and type(method) not in METHODS:
            raise NotAside(f"a {kind} is quantised or otherwise special ({type(method).__name__})")
        has_more = hasattr(layer, "process_weights_after_loading")
        if has_more and type(layer) is not Attention:
            raise NotAside(f"a {kind} makes more of its parameters")
        if any(tensor.device.type != "cpu" for tensor in layer.parameters(recurse=False)):
            raise NotAside("its parameters are not in the memory of the host")


def find_slots(copies: Mapping[torch.nn.Module, torch.nn.Module]) -> list[Slot]:
    """The parameters as they were when vLLM had made the model, before anything was made of them;
    one for those that are tied."""
    found: list[Slot] = []
    tied: dict[int, Slot] = {}
    for layer, copied in copies.items():
        restored = layerwise.get_layerwise_info(layer).restore_metadata[0]
        for name in dict.fromkeys([*restored, *layer._parameters]):
            serving = layer._parameters.get(name)
            like = restored.get(name, serving)
            if like is None:
                continue
            slot = tied.get(id(serving))
            if slot is not None and slot.meta.shape == like.shape:
                slot.places.append((layer, name))
                continue
            slot = Slot(_on_meta(like, layer, copied), [(layer, name)])
            found.append(slot)
            if serving is not None and serving.shape == like.shape:
                tied[id(serving)] = slot
    return found


def _on_meta(tensor: torch.Tensor, layer: torch.nn.Module, copied: torch.nn.Module) -> torch.Tensor:
    """A tensor without memory that is loaded as this one, by the copy's own methods."""
    meta = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=False
    )
    meta.__class__ = tensor.__class__
    owners = (layer, layerwise_sentinel())
    for name, value in tensor.__dict__.items():
        plain = unwrap(value)
        if isinstance(plain, MethodType) and any(plain.__self__ is one for one in owners):
            plain = MethodType(plain.__func__, copied)
        meta.__dict__[name] = plain
    return meta


def unwrap(value: object) -> object:
    """A loader without what an earlier reload of vLLM has put around it."""
    while getattr(value, "__name__", "") == WRAPPER:
        value = getattr(value, "__wrapped__", None)
    return value


def layerwise_sentinel() -> object:
    """What stands for a layer in what vLLM remembers of its parameters."""
    from vllm.model_executor.model_loader.reload import sanitize

    return getattr(sanitize, "layer_ref_sentinel", None)


# ---- room, and cores ----------------------------------------------------------------------------


def check_room(size_bytes: int) -> None:
    """Raises NotAside unless so many bytes can be had without others being driven out."""
    free_bytes = find_room()
    if free_bytes is not None and free_bytes < ROOM * size_bytes:
        raise NotAside(
            f"{size_bytes / 2**30:.1f} GiB of parameters have no room beside those that serve"
            f" ({free_bytes / 2**30:.1f} GiB are free)"
        )


def find_room() -> int | None:
    """Bytes of memory that this process can have; None when nobody says it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        rows = dict(line.split(":", 1) for line in lines)
        free_bytes = int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, ValueError, LookupError):
        return None
    with contextlib.suppress(OSError, ValueError):  # not in a container with a limit
        limit = int((CGROUP / "memory.max").read_text())
        free_bytes = min(free_bytes, limit - int((CGROUP / "memory.current").read_text()))
    return free_bytes


def find_cores() -> set[int]:
    """The cores that any thread of this process may use: vLLM binds its own to one each."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found |= os.sched_getaffinity(int(task.name))
    return found or os.sched_getaffinity(0)
