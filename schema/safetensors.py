"""The header of a safetensors file, read with suspicion and written in a stable order.

Format: https://github.com/huggingface/safetensors (8 bytes little-endian header length, a JSON
object of {name: {dtype, shape, data_offsets}}, then the bytes without gaps or overlaps). Nothing
here opens a file: the callers bring the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import msgspec

from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.tensors import NAME_RESERVED, TENSORS_MAX, check_name, tensor_bytes
from tensorcast.schema.wording import tell_count

HEADER_BYTES_MAX = 100_000_000
PREFIX_BYTES = 8
METADATA = NAME_RESERVED
BRACKETS_MAX = 8 * TENSORS_MAX
"""Most opening brackets of a header that is parsed: a cheap bound on the memory it can take."""


class FileTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a file; `place` is its byte range from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    place: ByteRange


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a safetensors file holds, in the order of its bytes."""

    tensors: tuple[FileTensor, ...]
    metadata: dict[str, str]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header_bytes(prefix: bytes, file_bytes: int, file_name: str) -> int:
    """Length of the JSON header from the first 8 bytes of a file of `file_bytes` bytes.

    Raises Corrupt when the file cannot be a safetensors file; nothing is allocated before that.
    """
    if file_bytes < PREFIX_BYTES or len(prefix) < PREFIX_BYTES:
        raise Corrupt(
            f"{file_name} has {tell_count(file_bytes, 'byte')} and so is no safetensors file.",
            hint="It may be empty or cut off: fetch it again.",
        )
    (length,) = struct.unpack("<Q", prefix[:PREFIX_BYTES])
    if length > HEADER_BYTES_MAX or length + PREFIX_BYTES > file_bytes:
        raise Corrupt(
            f"{file_name} claims a header of {length} bytes, but the file has {file_bytes}.",
            hint="It is cut off or no safetensors file: fetch it again.",
        )
    return int(length)


def parse_header(header: bytes, file_bytes: int, file_name: str) -> Header:
    """The tensors of a file from its JSON header (without the 8 bytes before it).

    Raises Corrupt for a header that breaks the format: no JSON, a name twice, a dtype or shape that
    does not fit the byte range, ranges that overlap, leave gaps or end beyond or before the file's
    end.
    """
    if header.count(b"{") + header.count(b"[") > BRACKETS_MAX:
        raise Corrupt(f"{file_name} holds more than {TENSORS_MAX} tensors.")
    entries, metadata = _read_entries(header, file_name)
    if len(entries) > TENSORS_MAX:
        raise Corrupt(f"{file_name} holds more than {TENSORS_MAX} tensors.")
    start = PREFIX_BYTES + len(header)
    tensors = [_file_tensor(name, entry, start, file_name) for name, entry in entries.items()]
    tensors.sort(key=lambda t: (t.place.offset, t.place.size))
    end = start
    for tensor in tensors:
        if tensor.place.offset != end:
            what = "overlaps the tensor before it" if tensor.place.offset < end else "leaves a gap"
            raise Corrupt(
                f"{file_name}: the bytes of {tensor.name!r} begin at {tensor.place.offset} where "
                f"{end} is expected: it {what}.",
                hint="The file is damaged or hostile; do not use it.",
            )
        end = tensor.place.end
    if end != file_bytes:
        raise Corrupt(
            f"{file_name} should have {end} bytes by its header, but has {file_bytes}.",
            hint="It is cut off or has bytes added: fetch it again.",
        )
    return Header(tensors=tuple(tensors), metadata=metadata)


def _read_entries(header: bytes, file_name: str) -> tuple[dict[str, _Entry], dict[str, str]]:
    def reject_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Corrupt(
                f"{file_name} names the same tensor or field twice.",
                hint="The file is damaged or hostile; do not use it.",
            )
        return found

    try:
        raw = json.loads(header.decode(), object_pairs_hook=reject_twice)
        table = msgspec.convert(raw, dict[str, object])
        metadata = msgspec.convert(table.pop(METADATA, {}), dict[str, str])
        msgspec.json.encode(metadata)  # refuses text that is no valid Unicode
        return msgspec.convert(table, dict[str, _Entry]), metadata
    except RecursionError as error:
        raise Corrupt(
            f"{file_name} has a header that is nested too deeply.",
            hint="The file is damaged or hostile; do not use it.",
        ) from error
    except ValueError as error:
        raise Corrupt(
            f"{file_name} has a header that is not valid: {error}.",
            hint="It is damaged or no safetensors file: fetch it again.",
        ) from error


def _file_tensor(name: str, entry: _Entry, start: int, file_name: str) -> FileTensor:
    begin, end = entry.data_offsets
    try:
        check_name(name)
        wanted = tensor_bytes(entry.dtype, entry.shape)
    except InvalidArgument as error:
        raise Corrupt(f"{file_name}: tensor {name!r}: {error.message}", hint=error.hint) from error
    if begin < 0 or end - begin != wanted:
        raise Corrupt(
            f"{file_name}: {name!r} is {entry.dtype} {list(entry.shape)}, which takes {wanted} "
            f"bytes, but its range {begin}..{end} has {end - begin}.",
            hint="The file is damaged or hostile; do not use it.",
        )
    return FileTensor(
        name=name, dtype=entry.dtype, shape=entry.shape, place=ByteRange(start + begin, wanted)
    )


def write_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> bytes:
    """The head of a file (length and JSON) for contiguous tensors written in this order.

    Padded with spaces to a multiple of 8 bytes, as the format's own writer does. Raises
    InvalidArgument for a tensor that the format cannot hold.
    """
    table: dict[str, object] = {METADATA: metadata} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        size = tensor_bytes(dtype, shape)
        check_name(name)
        if name in table:
            raise InvalidArgument(f"Two tensors have the name {name!r}.", hint="Rename one.")
        table[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
