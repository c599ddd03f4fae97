"""The order in which the tensors of a model are laid out, so that engines can use them in place.

Engines keep some matrices as one (query, key and value; gate and up; all experts of a layer). They
can use such a group where it lies only if its members follow each other. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

FUSED: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("query", "key", "value"),
)
"""Modules whose tensors vLLM and SGLang keep as one, in their order."""
_PLACES = {name: (group, n) for group in FUSED for n, name in enumerate(group)}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


class _Seat(NamedTuple):
    """Tensors of the same `group` follow each other, by their `place`."""

    group: str
    place: tuple[int, int]


def order_fused(tensors: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """The tensors in their order, except that those which are used as one follow each other from
    where the first of them was."""
    groups: dict[str, list[tuple[tuple[int, int], int, T]]] = {}
    for order, tensor in enumerate(tensors):
        seat = _seat(name(tensor))
        groups.setdefault(seat.group, []).append((seat.place, order, tensor))
    return [
        tensor
        for members in groups.values()
        for _, _, tensor in sorted(members, key=lambda member: member[:2])
    ]


def _seat(name: str) -> _Seat:
    expert = 0
    found = _EXPERT.fullmatch(name)
    if found is not None:
        expert = int(found[2])
        name = f"{found[1]}.*.{found[3]}"
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part in _PLACES:
            group, place = _PLACES[part]
            fused = ".".join([*parts[:at], "+".join(group), *parts[at + 1 :]])
            return _Seat(fused, (expert, place))
    return _Seat(name, (expert, 0))
