"""What an artifact holds: named tensors over one canonical byte space.

The byte space is cut from the tensors in order, each at a multiple of 64 bytes; gaps are zero.
Tensors that share a storage keep sharing it: their byte ranges overlap, and `strides` (in elements)
keeps a view that is not contiguous. The identity of the content is BLAKE3 over the index and the
BLAKE3 digests of the chunks; the XXH3-64 digests in the manifest guard each transfer.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import blake3
import msgspec

from tensorcast.schema.chunks import ByteRange, choose_chunk_bytes, count_chunks
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.ids import ArtifactId

ALIGNMENT_BYTES = 64
CHUNK_DIGEST_BYTES = 8
TENSORS_MAX = 100_000
NAME_BYTES_MAX = 1024
NAME_RESERVED = "__metadata__"
SIZE_BYTES_MAX = 1 << 48
DIMENSIONS_MAX = 64
ELEMENTS_MAX = (1 << 63) - 1
"""Limit of a dimension and of a stride: what a signed 64-bit integer holds, as in torch."""

DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
"""The dtypes of the safetensors format by name, and their width in bits."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One tensor: its dtype (a safetensors name), shape and place in the byte space.

    `strides` is None for a contiguous tensor, else the step of each dimension in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements, each counted once (what a contiguous copy takes)."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def extent(self) -> ByteRange:
        """The bytes from the first to the last element in the byte space."""
        if self.strides is None or self.size_bytes == 0:
            return ByteRange(self.offset, self.size_bytes)
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return ByteRange(self.offset, (last + 1) * DTYPE_BITS[self.dtype] // 8)


Index = tuple[TensorSpec, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a reader and a transfer need to know of an artifact: its index, its size in bytes,
    its chunk size in bytes, and an XXH3-64 digest (8 bytes, big-endian) for each chunk."""

    index: Index
    size_bytes: int
    chunk_bytes: int
    digests: bytes

    @property
    def chunks_total(self) -> int:
        return count_chunks(self.size_bytes, self.chunk_bytes)

    def digest(self, chunk: int) -> bytes:
        """The expected XXH3-64 digest of one chunk."""
        return self.digests[chunk * CHUNK_DIGEST_BYTES : (chunk + 1) * CHUNK_DIGEST_BYTES]


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a contiguous tensor in bytes. Raises InvalidArgument for an unknown dtype, too many
    dimensions, one out of range, or a sub-byte tensor that does not end at a byte."""
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise InvalidArgument(
            f"dtype {dtype!r} is not known.", hint=f"Known: {', '.join(DTYPE_BITS)}."
        )
    if len(shape) > DIMENSIONS_MAX:
        raise InvalidArgument(f"A tensor has at most {DIMENSIONS_MAX} dimensions.")
    if any(not 0 <= n <= ELEMENTS_MAX for n in shape):
        raise InvalidArgument(f"shape {shape} has a dimension that is negative or too large.")
    total = prod(shape) * bits
    if total % 8:
        raise InvalidArgument(f"a {dtype} tensor of shape {shape} does not end at a byte.")
    return total // 8


def check_name(name: str) -> None:
    """Raises InvalidArgument for a name that a tensor cannot have: empty, too long, with a zero
    byte or a path separator (a tool that names files by it could be led astray), no valid Unicode,
    or the one that safetensors files reserve."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument("A tensor name is no valid text.", hint="Rename it.") from error
    if not 0 < size <= NAME_BYTES_MAX:
        raise InvalidArgument(
            f"A tensor name must have 1 to {NAME_BYTES_MAX} bytes.", hint="Rename the tensor."
        )
    if "/" in name or "\\" in name:
        raise InvalidArgument(
            f"The tensor name {name!r} holds a path separator.", hint="Rename the tensor."
        )
    if "\0" in name or name == NAME_RESERVED:
        raise InvalidArgument(f"{name!r} cannot be the name of a tensor.", hint="Rename it.")


def align(offset: int) -> int:
    """The next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[Index, int]:
    """Places contiguous tensors (name, dtype, shape) one after another.

    Returns the index and the size of the byte space. Raises InvalidArgument as `check_index`.
    """
    specs: list[TensorSpec] = []
    offset = 0
    for name, dtype, shape in tensors:
        spec = TensorSpec(name=name, dtype=dtype, shape=shape, offset=align(offset))
        specs.append(spec)
        offset = spec.offset + spec.size_bytes
    index = tuple(specs)
    check_index(index, offset)
    return index, offset


def check_index(index: Index, size_bytes: int) -> None:
    """Raises InvalidArgument unless every tensor is well formed and lies inside the byte space."""
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise InvalidArgument(f"{size_bytes} bytes is not a possible size of an artifact.")
    if len(index) > TENSORS_MAX:
        raise InvalidArgument(
            f"An artifact holds at most {TENSORS_MAX} tensors.", hint="Split it into several."
        )
    names = {spec.name for spec in index}
    if len(names) != len(index):
        raise InvalidArgument("Two tensors have the same name.", hint="Rename one of them.")
    for spec in index:
        _check_spec(spec, size_bytes)


def _check_spec(spec: TensorSpec, size_bytes: int) -> None:
    check_name(spec.name)
    spec_bytes = spec.size_bytes
    if spec_bytes > SIZE_BYTES_MAX:
        raise InvalidArgument(f"Tensor {spec.name!r} has more elements than an artifact can hold.")
    if spec.strides is not None:
        if len(spec.strides) != len(spec.shape) or any(
            not 0 <= step <= ELEMENTS_MAX for step in spec.strides
        ):
            raise InvalidArgument(f"Tensor {spec.name!r} has strides that do not fit its shape.")
        if spec_bytes and DTYPE_BITS[spec.dtype] % 8:
            raise InvalidArgument(f"Tensor {spec.name!r} of a sub-byte dtype must be contiguous.")
    if spec.offset < 0 or spec.extent.end > size_bytes:
        raise InvalidArgument(f"Tensor {spec.name!r} reaches beyond the artifact's bytes.")


def check_manifest(manifest: Manifest) -> None:
    """Raises InvalidArgument or Corrupt unless the parts of a manifest fit each other."""
    check_index(manifest.index, manifest.size_bytes)
    if manifest.chunk_bytes != choose_chunk_bytes(manifest.size_bytes):
        raise Corrupt(f"{manifest.chunk_bytes} is not the chunk size of this artifact.")
    if len(manifest.digests) != manifest.chunks_total * CHUNK_DIGEST_BYTES:
        raise Corrupt("The manifest does not hold one digest for each chunk.")


def derive_artifact_id(index: Index, size_bytes: int, content: Iterable[bytes]) -> ArtifactId:
    """The identity of sealed content: 160 bits of BLAKE3 over the index and the 32-byte BLAKE3
    digests of its chunks, in order."""
    hasher = blake3.blake3(b"tensorcast artifact 1\n")
    hasher.update(msgspec.json.encode((size_bytes, index)))
    for digest in content:
        hasher.update(digest)
    return ArtifactId(hasher.hexdigest()[:40])
