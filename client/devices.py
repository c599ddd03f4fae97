"""The CUDA devices of this process, and checkpoints straight into their memory.

With kvikio (GPUDirect Storage) the disk writes into the device; without it, files go through a few
pinned buffers, each copied asynchronously while the next one is read. Only this module knows
torch.cuda, and it is imported only when a device is asked for.
"""

from __future__ import annotations

import ctypes
import os
import queue
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tensorcast.client.headers import SafetensorsFile, changed, check_unchanged
from tensorcast.client.load_plan import LoadPlan
from tensorcast.client.on_device import Block, Place
from tensorcast.client.tensors import torch_form
from tensorcast.gpu.fake import FakeGpu
from tensorcast.gpu.finding import VARIABLE, check_wish, find_gpus
from tensorcast.gpu.port import Gpu
from tensorcast.gpu.staging import Piece
from tensorcast.schema.errors import InvalidArgument
from tensorcast.storage.crew import choose_reads, spread
from tensorcast.storage.faults import told
from tensorcast.storage.memory import view_at
from tensorcast.storage.spans import Span, cut_blocks

if TYPE_CHECKING:
    import torch

BUFFERS: Final = 4
BUFFER_BYTES: Final = 16 << 20
Job = tuple[SafetensorsFile, Span]


class _Future(Protocol):
    def get(self) -> int: ...


class _DirectFile(Protocol):
    """What is used of `kvikio.CuFile`."""

    def pread(self, buffer: object, size: int, file_offset: int) -> _Future: ...

    def close(self) -> None: ...


OpenDirect = Callable[[str, str], _DirectFile]


class _Buffer(NamedTuple):
    memory: torch.Tensor
    copied: torch.Event


@cache
def _gpus() -> tuple[Gpu, ...]:
    return find_gpus(check_wish(os.environ.get(VARIABLE) or "auto")).gpus


def open_place(device: str | torch.device) -> Place:
    """A device by its name in torch. Raises InvalidArgument without such a device."""
    import torch

    gpus = _gpus()
    if gpus and isinstance(gpus[0], FakeGpu):
        return _fake_place(str(device))
    target = _find(device)
    return _cuda_place(torch.cuda.current_device() if target.index is None else target.index)


@cache
def _cuda_place(index: int) -> Place:
    import torch

    gpus, target = _gpus(), torch.device("cuda", index)

    def new_block(size_bytes: int) -> Block:
        flat = torch.empty(max(1, size_bytes), dtype=torch.uint8, device=target)
        # What is still queued there may use the memory that was freed for this.
        torch.cuda.current_stream(target).synchronize()
        return Block(flat, flat.data_ptr())

    if not 0 <= index < len(gpus):
        raise InvalidArgument(
            f"The CUDA driver does not show device {index}.", hint="See `tcctl doctor`."
        )
    return Place(gpus[index], new_block)


@cache
def _fake_place(device: str) -> Place:
    """A device of ordinary memory, in which tensors of the CPU can lie."""
    import torch

    gpus = _gpus()
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit() or int(number or 0) >= len(gpus):
        raise InvalidArgument(f"There is no device {device} here.", hint="Leave `device` out.")
    gpu = gpus[int(number or 0)]

    def new_block(size_bytes: int) -> Block:
        address, size = gpu.allocate(size_bytes), max(1, size_bytes)
        memory = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(memory, gpu.free, address).atexit = False
        return Block(torch.frombuffer(memory, dtype=torch.uint8), address)

    return Place(gpu, new_block)


def _find(device: str | torch.device) -> torch.device:
    """Raises InvalidArgument for what is no device of CUDA here."""
    import torch

    try:
        target = torch.device(device)
    except RuntimeError:  # torch knows none of that name
        target = torch.device("meta")
    if target.type != "cuda" or not torch.cuda.is_available():
        raise InvalidArgument(f"There is no device {device} here.", hint="Leave `device` out.")
    return target


def take_out(tensor: torch.Tensor, target: memoryview) -> None:
    """The bytes of a contiguous tensor of a device, through pinned buffers and on a stream of its
    own. What was queued for the tensor must be done. Blocks."""

    def move(part: memoryview, start: int) -> None:
        target[start : start + len(part)] = part

    place = open_place(tensor.device)
    place.staging.drain([Piece(tensor.data_ptr(), target.nbytes, move)])


def load_to_device(
    files: Sequence[SafetensorsFile],
    plan: LoadPlan,
    device: str | torch.device,
    threads: int | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a plan in one block of device memory. Raises InvalidArgument without such a
    device, and as `load`."""
    import torch

    target = _find(device)
    flat = torch.empty(plan.size_bytes, dtype=torch.uint8, device=target)
    direct = _find_kvikio() if all(file.reader is not None for file in files) else None
    if direct is not None:
        _read_direct(files, plan, flat, direct)
    else:
        _read_pinned(files, plan, flat, threads or choose_reads())
    check_unchanged(files)
    return _build(flat, plan)


def _find_kvikio() -> OpenDirect | None:
    """The class of files of kvikio, if it is installed and can load its libraries."""
    try:
        found: OpenDirect = import_module("kvikio").CuFile
    except (ImportError, OSError, RuntimeError):
        return None
    return found


def _jobs(files: Sequence[SafetensorsFile], plan: LoadPlan) -> Iterator[Job]:
    for file, spans in zip(files, plan.spans, strict=True):
        for block in cut_blocks(spans, block_bytes=BUFFER_BYTES, gap_bytes_max=0):
            yield from ((file, span) for span in block)


# ---- straight from the disk ------------------------------------------------------------------


def _read_direct(
    files: Sequence[SafetensorsFile],
    plan: LoadPlan,
    flat: torch.Tensor,
    open_direct: OpenDirect,
) -> None:
    """kvikio has threads of its own: all reads are handed over, then awaited. It bounces what the
    device or the file system cannot do directly."""
    opened = {file.place: open_direct(str(file.place), "r") for file in files}
    try:
        pending = [
            (file, span, opened[file.place].pread(_part(flat, span), span.size, span.position))
            for file, span in _jobs(files, plan)
        ]
        for file, span, future in pending:
            with told(str(file.place)):
                if future.get() != span.size:
                    raise changed(file)
    finally:
        for one in opened.values():
            one.close()


def _part(flat: torch.Tensor, span: Span) -> torch.Tensor:
    return flat[span.target : span.target + span.size]


# ---- through pinned memory -------------------------------------------------------------------


def _read_pinned(
    files: Sequence[SafetensorsFile], plan: LoadPlan, flat: torch.Tensor, threads: int
) -> None:
    """Reads into pinned buffers; a buffer is used again once its copy has ended."""
    import torch

    stream = torch.Stream(flat.device)
    stream.wait_stream(torch.cuda.current_stream(flat.device))
    free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
    for _ in range(max(BUFFERS, threads)):
        memory = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
        free.put(_Buffer(memory, torch.Event(flat.device)))

    def carry(job: Job) -> None:
        file, span = job
        buffer = free.get()
        try:
            buffer.copied.synchronize()
            file.read_exactly(view_at(buffer.memory.data_ptr(), span.size), span.position)
            with stream:
                _part(flat, span).copy_(buffer.memory[: span.size], non_blocking=True)
                buffer.copied.record(stream)
        finally:
            free.put(buffer)

    try:
        spread(carry, _jobs(files, plan), threads)
    finally:
        stream.synchronize()


def _build(flat: torch.Tensor, plan: LoadPlan) -> dict[str, torch.Tensor]:
    import torch

    found = {}
    for spec in plan.specs:
        dtype, shape = torch_form(spec)
        part = flat[spec.offset : spec.offset + spec.size_bytes]
        is_empty = not spec.size_bytes
        found[spec.name] = (
            torch.empty(shape, dtype=dtype, device=flat.device)
            if is_empty
            else part.view(dtype).view(shape)
        )
    return found
