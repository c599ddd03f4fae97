"""Snapshots of the fold, so that any moment of a long history opens soon. Pure.

The snapshots of a history are numbered from 1, and each keeps a layer: the states that changed
since an earlier one. How far back a layer goes follows from its number, as in a Fenwick tree
(P. Fenwick, "A new data structure for cumulative frequency tables", 1994): number n goes back to
n minus its lowest bit. So the states after snapshot n are the layers of log2(n) + 1 numbers at
most, and N snapshots hold each change log2(N) times at most: nothing is ever made anew or thrown
away as the history grows.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.cluster import ClusterView, State
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.folds import STATES
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import Parked
from tensorcast.schema.tensors import Index

EVENTS_EVERY: Final = 8192
"""Events between two snapshots: at most so many are folded to open a moment, beside its layers."""
PART_STATES_MAX: Final = 2048
PART_BYTES: Final = 1 << 20
"""A part ends when it has grown so long."""
PART_BYTES_MAX: Final = 64 << 20
"""Nothing longer is unpacked: one state is never longer than the event that made it."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[str, msgspec.msgpack.Decoder[list[State | Parked]]]] = {
    name: msgspec.msgpack.Decoder(list[cls])  # type: ignore[valid-type]  # a type by its kind
    for name, cls in STATES.items()
}
_json_decoders: Final[dict[str, msgspec.json.Decoder[State | Parked]]] = {
    name: msgspec.json.Decoder(cls) for name, cls in STATES.items()
}


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a layer beside its parts: it holds the states that changed after event
    `after` as they are after event `seq`, whose id is `event_id`. `skipped` is the view's."""

    fold: str
    log_epoch: int
    number: int
    after: Seq
    seq: Seq
    event_id: str
    skipped: int
    states: int
    parts: int


class _Part(msgspec.Struct, array_like=True):
    """States of one kind. The indexes of artifacts are apart, each distinct one once: a model has
    the same tensors at every step of its training. `places` numbers them, one for each state.
    `as_json`: states as JSON, those with an integer beyond 64 bits (older releases took such),
    which the other form cannot hold."""

    name: str
    states: msgspec.Raw
    indexes: list[Index] = []
    places: list[int] = []
    as_json: list[str] = []


# ---- numbers -----------------------------------------------------------------------------------


def base_of(number: int) -> int:
    """The snapshot from which the layer of `number` goes on; 0 is the empty view."""
    return number & (number - 1)


def chain(number: int) -> tuple[int, ...]:
    """The layers that make up snapshot `number`, the oldest first."""
    found = []
    while number > 0:
        found.append(number)
        number = base_of(number)
    return tuple(reversed(found))


# ---- packing -----------------------------------------------------------------------------------


def pack(view: ClusterView, after: Seq) -> Iterator[tuple[bytes, int]]:
    """The parts of a layer, each with the number of its states: those of `view` that changed after
    event `after`. Each part takes some milliseconds."""
    for name in STATES:
        encoded: list[msgspec.Raw] = []
        size_bytes = 0
        indexes: dict[bytes, int] = {}
        places: list[int] = []
        for state in getattr(view, name).values():
            if state.version <= after:
                continue
            whole = _encode(state)
            if whole is None:
                yield _pack_as_json(name, state), 1
                continue
            if isinstance(state, Artifact):
                index = _encoder.encode(state.manifest.index)
                if index not in indexes:
                    indexes[index] = len(indexes)
                    size_bytes += len(index)
                places.append(indexes[index])
                whole = _encoder.encode(_with_index(state, ()))
            encoded.append(msgspec.Raw(whole))
            size_bytes += len(whole)
            if len(encoded) >= PART_STATES_MAX or size_bytes >= PART_BYTES:
                yield _pack_part(name, encoded, indexes, places), len(encoded)
                encoded, indexes, places, size_bytes = [], {}, [], 0
        if encoded:
            yield _pack_part(name, encoded, indexes, places), len(encoded)


def _pack_part(
    name: str, states: list[msgspec.Raw], indexes: dict[bytes, int], places: list[int]
) -> bytes:
    part = (name, states, [msgspec.Raw(index) for index in indexes], places)
    return zlib.compress(_encoder.encode(part), 1)


def _encode(state: State | Parked) -> bytes | None:
    try:
        return _encoder.encode(state)
    except OverflowError:
        return None


def _pack_as_json(name: str, state: State | Parked) -> bytes:
    text = msgspec.json.encode(state).decode()
    return zlib.compress(_encoder.encode((name, [], [], [], [text])), 1)


def _with_index(artifact: Artifact, index: Index) -> Artifact:
    manifest = msgspec.structs.replace(artifact.manifest, index=index)
    return msgspec.structs.replace(artifact, manifest=manifest)


def unpack(part: bytes) -> Sequence[State | Parked]:
    """The states of a part. Raises Corrupt for bytes that are none."""
    try:
        inflating = zlib.decompressobj()
        plain = inflating.decompress(part, PART_BYTES_MAX)
        if inflating.unconsumed_tail or not inflating.eof:
            raise Corrupt("A part of a snapshot is longer than any can be, or cut off.")
        read = msgspec.msgpack.decode(plain, type=_Part)
        states = _decoders[read.name].decode(read.states)
        if read.name == "artifacts":
            states = [
                _with_index(state, read.indexes[place])
                for state, place in zip(states, read.places, strict=True)
                if isinstance(state, Artifact)
            ]
        return [*states, *map(_json_decoders[read.name].decode, read.as_json)]
    except (zlib.error, msgspec.MsgspecError, LookupError, ValueError) as error:
        raise Corrupt(f"A part of a snapshot cannot be read: {error}.") from error


def digest(layer: Layer, parts: Iterable[bytes]) -> bytes:
    """What vouches for a layer: BLAKE2b over all that is known of it and its parts, in order."""
    hasher = hashlib.blake2b(_encoder.encode(layer), digest_size=32)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()
