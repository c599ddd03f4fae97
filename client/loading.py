"""Checkpoints into tensors without a cluster: `tc.load` and `tc.load_into`.

Two ways, the better one taken by itself (`mode="auto"`):

    map   The tensors lie in the page cache, mapped privately: nothing is copied, processes share
          the bytes, and a write to a tensor is seen by nobody else. For files on this machine's
          disks that are cached, or that the kernel reads in large pieces.
    copy  The tensors lie in memory of their own. Read from the page cache what is in it, and past
          it what is not. For network file systems and stores, for files that somebody may overwrite
          in place, and for views that cut rows out of tensors.

Only the bytes that a view needs are read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tensorcast.client.files import find_files, is_torch_file
from tensorcast.client.headers import (
    SafetensorsFile,
    changed,
    check_unchanged,
    choose_reads,
    is_cached,
    open_files,
)
from tensorcast.client.load_plan import LoadPlan, is_mappable, plan_load, select
from tensorcast.client.naming import view_of
from tensorcast.schema.errors import InvalidArgument, OutOfCapacity, Unavailable
from tensorcast.schema.views import Selected, View
from tensorcast.storage.crew import choose_copies, spread
from tensorcast.storage.faults import told
from tensorcast.storage.kernel import available_bytes, is_remote, readahead_bytes
from tensorcast.storage.memory import address_of, allocate, populate_from_file
from tensorcast.storage.objects import RANGE_BYTES
from tensorcast.storage.reader import FileReader, read_block
from tensorcast.storage.spans import BLOCK_BYTES, Block, Span, cut_blocks, join_spans

if TYPE_CHECKING:
    import torch

PathLike = str | os.PathLike[str]
Mode = Literal["auto", "copy", "map"]
Files = Sequence[SafetensorsFile]
Selection = Sequence[Sequence[Selected]]

POPULATE_BYTES = 8 << 20
READAHEAD_BYTES_MIN = 1 << 20
THREADS_MAX = 256


def load(
    what: PathLike | Sequence[PathLike],
    *,
    view: View | None = None,
    mode: Mode = "auto",
    threads: int | None = None,
    device: str | torch.device | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint (or of a view of it): safetensors files, a folder of them with or
    without an index, a `.pt` file with weights only, or a URL (s3://, gs://, az://, http://). Needs
    no cluster.

    `mode` is "map" (nothing is copied; do not overwrite the file in place while the tensors are in
    use), "copy" (memory of their own) or "auto". `threads` is how many reads are under way at once.
    With `device` they are copied there ("cuda": straight from the disk when kvikio is installed).

    Raises NotFound, InvalidArgument, Corrupt for a file that breaks its format or changes
    meanwhile, PermissionDenied, Unavailable when a disk or store does not answer, OutOfCapacity.
    """
    _check(mode, threads)
    places = find_files(_several(what))
    if is_torch_file(places):
        return _load_torch_file(places[0], view, device)
    with open_files(places) as files:
        selected = select(view_of(view), [file.header for file in files])
        if device is not None and str(device) != "cpu":
            from tensorcast.client.devices import load_to_device

            return load_to_device(files, plan_load(selected), device, threads)
        if mode == "map" or (mode == "auto" and _should_map(files, selected)):
            return _map(files, selected)
        return _copy(files, plan_load(selected), threads)


def load_into(
    what: PathLike | Sequence[PathLike],
    tensors: Mapping[str, torch.Tensor],
    *,
    view: View | None = None,
    strict: bool = True,
    threads: int | None = None,
) -> None:
    """Reads a checkpoint (or a view of it) into tensors that exist, by name.

    Names, dtypes and shapes are checked before anything is written. Without `strict`, names that
    only one side has are left out. Raises as `load`; when reading fails half-way, some of the
    targets have new values.
    """
    from tensorcast.client.copying import copy_bits
    from tensorcast.client.tensors import check_targets

    _check("copy", threads)
    places = find_files(_several(what))
    if is_torch_file(places):
        raise InvalidArgument(
            f"{places[0]} is a torch file.", hint="Use load(), or convert it to safetensors."
        )
    with open_files(places) as files:
        chosen = select(view_of(view), [file.header for file in files])
        wanted = check_targets([i for items in chosen for i in items], tensors, strict=strict)
        names = {item.spec.name for item in wanted}
        direct = {name for name in names if _is_plain(tensors[name])}
        _read(files, _plan_into(chosen, {n: tensors[n].data_ptr() for n in direct}), 0, threads)
        others = [[i for i in items if i.spec.name in names - direct] for items in chosen]
        for name, tensor in _copy(files, plan_load(others), threads).items():
            copy_bits(tensor, tensors[name])


# ---- which way ---------------------------------------------------------------------------------


def _check(mode: str, threads: int | None) -> None:
    if mode not in ("auto", "copy", "map"):
        raise InvalidArgument(f"{mode!r} is no mode.", hint="Use auto, copy or map.")
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= THREADS_MAX):
        raise InvalidArgument(
            f"{threads!r} threads cannot read.", hint=f"Use 1 to {THREADS_MAX}, or leave it out."
        )


def _several(what: PathLike | Sequence[PathLike]) -> Sequence[object]:
    if isinstance(what, str | bytes | os.PathLike):
        return (what,)
    if not isinstance(what, Sequence):
        raise InvalidArgument(
            f"A {type(what).__name__} is no checkpoint.", hint="Give a path, a URL, or several."
        )
    return what


def _should_map(files: Files, selected: Selection) -> bool:
    return is_mappable(selected) and all(file.reader and _maps(file.reader) for file in files)


def _maps(reader: FileReader) -> bool:
    """Whether a file is better mapped than copied. A mapping is read in steps of the device's
    readahead: often 128 KiB, with which a disk is far from its limit."""
    if is_remote(reader.descriptor):
        return False
    return reader.is_cached() or (readahead_bytes(reader.descriptor) or 0) >= READAHEAD_BYTES_MIN


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in ordinary memory, in order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel() > 0


def _choose_threads(files: Files, threads: int | None) -> int:
    if threads is not None:
        return threads
    return choose_copies() if is_cached(files) else choose_reads(files)


# ---- copy --------------------------------------------------------------------------------------


def _copy(files: Files, plan: LoadPlan, threads: int | None) -> dict[str, torch.Tensor]:
    from tensorcast.client.tensors import build_tensors

    memory = allocate(plan.size_bytes) if plan.size_bytes else None
    if memory is not None:
        _read(files, plan.spans, address_of(memory), threads)
    return build_tensors(memory, [Selected(spec) for spec in plan.specs])


def _plan_into(chosen: Selection, addresses: Mapping[str, int]) -> tuple[tuple[Span, ...], ...]:
    """The spans of those selected tensors that have an address; it is their target."""
    found = []
    for items in chosen:
        plans = [
            (addresses[item.spec.name], plan_load([[item]]).spans[0])
            for item in items
            if item.spec.name in addresses
        ]
        found.append(
            tuple(
                span._replace(target=address + span.target - spans[0].target)
                for address, spans in plans
                for span in spans
            )
        )
    return tuple(found)


def _read(files: Files, spans: Sequence[Sequence[Span]], address: int, threads: int | None) -> None:
    """Reads spans into memory from `address` on, in several threads."""

    def read(job: tuple[SafetensorsFile, Block]) -> None:
        file, block = job
        with told(str(file.place)):
            is_whole = read_block(file.source, block, address)
        if not is_whole:
            raise changed(file)

    jobs = (
        (file, block)
        for file, wanted in zip(files, spans, strict=True)
        for block in cut_blocks(
            wanted, block_bytes=BLOCK_BYTES if file.reader is not None else RANGE_BYTES
        )
    )
    spread(read, jobs, _choose_threads(files, threads))
    check_unchanged(files)


# ---- map ---------------------------------------------------------------------------------------


def _map(files: Files, selected: Selection) -> dict[str, torch.Tensor]:
    from tensorcast.client.tensors import build_tensors

    found: dict[str, torch.Tensor] = {}
    for file, items in zip(files, selected, strict=True):
        if items:
            found.update(build_tensors(_map_file(file, items), items))
    return found


def _map_file(file: SafetensorsFile, items: Sequence[Selected]) -> memoryview:
    """Maps a file privately. What is not in the page cache is read into it first: then the disk's
    errors are exceptions, and the reads are large."""
    reader = file.reader
    if reader is None:
        raise InvalidArgument(f"{file.place} cannot be mapped.", hint="Use mode='copy'.")
    try:
        pages = mmap.mmap(
            reader.descriptor,
            reader.size_bytes,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    except OSError as error:
        raise OutOfCapacity(
            f"{file.place} cannot be mapped: {error.strerror}.", hint="Use mode='copy'."
        ) from error
    memory = memoryview(pages)
    room = available_bytes()
    has_room = room is None or 2 * reader.size_bytes < room
    if not reader.is_cached() and has_room and not _populate(memory, items):
        raise Unavailable(f"The disk cannot read {file.place}.", hint="`dmesg` may tell why.")
    return memory


def _populate(memory: memoryview, items: Sequence[Selected]) -> bool:
    extents = sorted(item.spec.extent for item in items)
    return all(
        populate_from_file(memory[start : min(start + POPULATE_BYTES, span.end)])
        for span in join_spans(Span(place.offset, place.size, place.offset) for place in extents)
        for start in range(span.position, span.end, POPULATE_BYTES)
    )


# ---- torch's own files -------------------------------------------------------------------------


def _load_torch_file(
    path: Path, view: View | None, device: str | torch.device | None
) -> dict[str, torch.Tensor]:
    from tensorcast.client.torchfile import read_torch_file

    if view is not None:
        raise InvalidArgument(
            f"{path} is a torch file, which has no views.", hint="Convert it to safetensors."
        )
    found = read_torch_file(path)
    return found if device is None else {name: t.to(device) for name, t in found.items()}
