"""A plan that has not the form of one, mended as far as it takes to go on looking. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec import inspect

from tensorcast.client.plan_places import PARTS, chosen, members, odd_name, walk
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import Input, PlanSpec, Step

EMIT: Final[Mapping[str, object]] = {"kind": "emit", "id": "x", "topic": "x"}
"""A step that is in order."""
_NOWHERE: Final = " - at `$"
_FIELD: Final = re.compile(r"(unknown|missing required) field `([^`]*)`")
_PLAN: Final = inspect.type_info(PlanSpec)
_WHEN: Final = "2000-01-01T00:00:00Z"


def mend(error: Exception, said: object, kind: inspect.Type) -> bool:
    """Takes out of a value what msgspec said is wrong with it, or puts something right there.
    False when it cannot. Modifies `said`."""
    words, nowhere, place = str(error).partition(_NOWHERE)
    place = place.rstrip("`")
    spots = list(walk(place, said, kind))
    at_kind, at, _ = spots[-1]
    odd = _mend_odd(place, spots)
    if odd is not None:
        return odd
    named = _FIELD.search(words)
    if named is not None:
        return isinstance(at, dict) and _mend_field(at, at_kind, named[1] == "unknown", named[2])
    if not nowhere or len(spots) < 2:
        return False
    holder = spots[-2][1]
    field, item = PARTS.findall(place)[-1]
    if field == "kind" and isinstance(holder, dict):
        name = holder.get("id")
        holder.clear()
        holder.update(EMIT if not isinstance(name, str) else {**EMIT, "id": name})
    elif field and isinstance(holder, dict):
        holder[field] = _dummy(at_kind)
    elif item == "..." and isinstance(holder, dict):
        holder.clear()
    elif item.isdigit() and isinstance(holder, list) and int(item) < len(holder):
        holder[int(item)] = _dummy(at_kind)
    else:
        return False
    return True


def _mend_odd(place: str, spots: Sequence[tuple[inspect.Type, object, bool]]) -> bool | None:
    """Puts another value in the place of the one in a mapping that is odd, and leaves the others:
    whoever refers to them is right. None where there is no such mapping."""
    at = next((i for i, part in enumerate(PARTS.findall(place), 1) if part[1] == "..."), None)
    if at is None:
        return None
    kind, holder, _ = spots[at - 1]
    name = odd_name(holder, kind) if isinstance(holder, dict) else None
    if name is None or not isinstance(holder, dict):
        return None
    kind = spots[at][0]
    is_input = isinstance(kind, inspect.StructType) and kind.cls is Input
    holder[name] = {"type": ValueType.ANY.value} if is_input else _dummy(kind)
    return True


def _mend_field(said: dict[str, object], kind: inspect.Type, is_unknown: bool, name: str) -> bool:
    if is_unknown:
        said.pop(name, None)
        return True
    struct = chosen(kind, said)
    if struct is not None and struct.tag_field == name:
        said.update(EMIT)
        return True
    wanted = [one.type for one in struct.fields if one.encode_name == name] if struct else []
    if wanted:
        said[name] = _dummy(wanted[0])
    return bool(wanted)


def _dummy(kind: inspect.Type) -> object:
    """Some value of a type."""
    one = next(iter(members(kind)))
    match one:
        case inspect.StrType():
            return "x"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return False
        case inspect.DateTimeType():
            return _WHEN
        case inspect.EnumType():
            first: Enum = next(iter(one.cls))
            return first.value
        case inspect.LiteralType():
            return one.values[0]
        case inspect.DictType():
            return {}
        case inspect.ListType() | inspect.VarTupleType():
            return [_dummy(one.item_type)] if one.min_length else []
        case inspect.StructType() if one.tag_field == "kind":
            return dict(EMIT)
        case inspect.StructType():
            return {field.encode_name: _dummy(field.type) for field in one.fields if field.required}
        case _:
            return None


def mend_plan(said: Mapping[object, object]) -> PlanSpec | None:
    """The plan with another step of the same name in the place of each that has not the form of
    one; None when it is beyond that."""
    steps = said.get("steps")
    if not isinstance(steps, list):
        return None
    text = msgspec.json.encode(said, enc_hook=repr).decode()
    mended = {**said, "steps": [one if _is_step(one) else _stand_in(one, text) for one in steps]}
    for _ in range(len(_PLAN.fields) if isinstance(_PLAN, inspect.StructType) else 0):
        try:
            return msgspec.convert(mended, PlanSpec)
        except (msgspec.ValidationError, RecursionError) as error:
            if not mend(error, mended, _PLAN):
                return None
    return None


def _is_step(said: object) -> bool:
    try:
        msgspec.convert(said, Step)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _stand_in(step: object, text: str) -> dict[str, object]:
    """A step that gives whatever the others take from the one in whose place it is."""
    name = step.get("id") if isinstance(step, dict) else None
    if not isinstance(name, str) or not _is_step({**EMIT, "id": name}):
        return dict(EMIT)
    taken = set(re.findall(r"\$\{" + re.escape(name) + r"\.([A-Za-z][A-Za-z0-9_-]*)", text))
    returns = dict.fromkeys(sorted(taken), "any")
    return {"kind": "call", "id": name, "engine": "x", "verb": "x", "returns": returns}
