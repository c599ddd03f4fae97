"""Indexes of a view: persistent maps to sets. A changed copy shares all the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from immutables import Map

K = TypeVar("K")
V = TypeVar("V")
Members = Map[V, None]
"""A set that grows without bound: a copy with one member more or less shares all the rest."""


def group(pairs: Iterable[tuple[K, V]]) -> Map[K, frozenset[V]]:
    """For each first of some pairs, the seconds that go with it."""
    return Map({at: frozenset(members) for at, members in _listed(pairs).items()})


def group_members(pairs: Iterable[tuple[K, V]]) -> Map[K, Members[V]]:
    """As `group`, for sets that grow without bound."""
    return Map({at: Map(dict.fromkeys(found)) for at, found in _listed(pairs).items()})


def _listed(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for at, member in pairs:
        groups.setdefault(at, []).append(member)
    return groups


def add(index: Map[K, frozenset[V]], at: K, member: V) -> Map[K, frozenset[V]]:
    """The index with a member more."""
    members = index.get(at, frozenset())
    return index if member in members else index.set(at, members | {member})


def join(index: Map[K, Members[V]], at: K, member: V, *, is_in: bool = True) -> Map[K, Members[V]]:
    """The index of unbounded sets with a member in one of them, or not in it."""
    before: Members[V] = index.get(at, Map())
    members = mark(before, member, is_in=is_in)
    if members is before:
        return index
    return index.set(at, members) if members else index.delete(at)


def mark(members: Members[V], member: V, *, is_in: bool) -> Members[V]:
    """The set with a member in it, or not in it; the same object when it is so already."""
    if is_in == (member in members):
        return members
    return members.set(member, None) if is_in else members.delete(member)


def remove(index: Map[K, frozenset[V]], at: K, member: V) -> Map[K, frozenset[V]]:
    """The index with a member less; no empty sets are kept."""
    members = index.get(at, frozenset()) - {member}
    if members:
        return index.set(at, members)
    return index.delete(at) if at in index else index
