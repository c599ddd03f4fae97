"""Hypothesis strategies for every type of the language, read from the types themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from plan_specs import specs
from tensorcast.schema.chunks import CHUNKS_MAX, ChunkSet
from tensorcast.schema.plans import PlanSpec

INT64_MAX = (1 << 63) - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MOMENTS = st.datetimes(timezones=st.just(UTC))
CHUNK_NUMBERS = st.integers(0, CHUNKS_MAX - 1)


def chunk_sets(count: int = CHUNKS_MAX) -> st.SearchStrategy[ChunkSet]:
    """Any set of chunks below `count`, mostly a few runs."""
    edges = st.lists(st.integers(0, count), max_size=8)
    return edges.map(lambda e: ChunkSet.merge(zip(e[::2], e[1::2], strict=False)))


def values(cls: type) -> st.SearchStrategy[Any]:
    """Any value of a type that msgspec can decode."""
    return _strategy(inspect.type_info(cls))


def _struct(info: inspect.StructType) -> st.SearchStrategy[Any]:
    if info.cls is ChunkSet:
        return chunk_sets()
    if info.cls is PlanSpec:
        return specs
    fields = {f.name: _strategy(f.type) for f in info.fields}
    return st.builds(info.cls, **fields)


def _integer(info: inspect.IntType) -> st.SearchStrategy[int]:
    least = -INT64_MAX if info.ge is None else info.ge
    return st.integers(least, INT64_MAX if info.le is None else info.le)


_MAKERS: dict[type, Callable[[Any], st.SearchStrategy[Any]]] = {
    inspect.StructType: _struct,
    inspect.IntType: _integer,
    inspect.FloatType: lambda _: st.floats(allow_nan=False, allow_infinity=False),
    inspect.StrType: lambda _: TEXT,
    inspect.CustomType: lambda _: st.none() | st.booleans() | st.integers(0, 9) | TEXT,
    inspect.AnyType: lambda _: st.none() | st.booleans() | st.integers(0, 9) | TEXT,
    inspect.BoolType: lambda _: st.booleans(),
    inspect.BytesType: lambda _: st.binary(max_size=40),
    inspect.NoneType: lambda _: st.none(),
    inspect.DateTimeType: lambda _: MOMENTS,
    inspect.EnumType: lambda info: st.sampled_from(info.cls),
    inspect.RawType: lambda _: st.just(msgspec.Raw(b'{"any": [1, "json"]}')),
    inspect.UnionType: lambda info: st.one_of([_strategy(t) for t in info.types]),
    inspect.VarTupleType: lambda info: st.lists(_strategy(info.item_type), max_size=3).map(tuple),
    inspect.TupleType: lambda info: st.tuples(*(_strategy(t) for t in info.item_types)),
    inspect.DictType: lambda info: st.dictionaries(
        _strategy(info.key_type), _strategy(info.value_type), max_size=3
    ),
    inspect.Metadata: lambda info: _strategy(info.type),
}


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    return _MAKERS[type(info)](info)
