"""What is wrong with a plan that has not the form of one: a sentence for each fault, which names
the step, and what would have been right. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import inspect

from tensorcast.schema.guesses import name_choices, suggest
from tensorcast.schema.plain import find_endless
from tensorcast.schema.plans import PlanSpec, Step

FAULTS_MAX: Final = 20
_NOWHERE: Final = " - at `$"
_PARTS: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_QUOTED: Final = re.compile(r"[`']([^`']*)[`']")
_PLAN: Final = inspect.type_info(PlanSpec)
_STEP: Final = inspect.type_info(Step)
_NAME_RULE: Final = "matching regex '^[A-Za-z]"
_EMIT: Final = {"kind": "emit", "id": "x", "topic": "x"}


def tell_faults(said: Mapping[object, object], first: Exception | None = None) -> tuple[str, ...]:
    """The faults of each step by itself, and of what is around them; `first` is told when there is
    no other. () for a plan that has the form of one."""
    steps = said.get("steps")
    found: list[str] = []
    if isinstance(steps, list):
        for number, step in enumerate(steps[:1000]):
            found += _of_step(step, number)
    found[:0] = _of_plan({**said, "steps": [_EMIT]} if found else dict(said))
    if not found and first is not None:
        return (say(first, said, _PLAN),)
    return tuple(found[:FAULTS_MAX])


def _of_step(step: object, number: int) -> Iterator[str]:
    name = step.get("id") if isinstance(step, dict) else None
    where = f"Step {name}" if isinstance(name, str) else f"Step number {number + 1}"
    try:
        msgspec.convert(step, Step)
    except (msgspec.ValidationError, RecursionError) as error:
        yield f"{where}{_inner_step(error, step)}: {say(error, step, _STEP)}"
        return
    yield from _endless(step, where)


def _of_plan(said: Mapping[object, object]) -> Iterator[str]:
    try:
        msgspec.convert(said, PlanSpec)
    except (msgspec.ValidationError, RecursionError) as error:
        yield f"The plan: {say(error, said, _PLAN)}"
        return
    yield from _endless({name: one for name, one in said.items() if name != "steps"}, "The plan")


def _endless(value: object, where: str) -> Iterator[str]:
    place = find_endless(value)
    if place is not None:
        yield f"{where}: {place} is NaN or infinite, which JSON cannot hold."


def say(error: Exception, said: object, kind: inspect.Type = _STEP) -> str:
    """What msgspec says about a value of a type, as a sentence, with what would be right."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    words, _, place = str(error).partition(_NOWHERE)
    if _NAME_RULE in words:
        words = "expected a name: letters, digits, '_' and '-', a letter first"
    words = words[:1].lower() + words[1:]
    place = place.rstrip("`").lstrip(".")
    at = f" (at {place})" if place else ""
    choices = _choices(words, f".{place}" if place[:1] not in ("", "[") else place, said, kind)
    return f"{words}{at}{choices or '.'}"


def _choices(words: str, place: str, said: object, kind: inspect.Type) -> str:
    """`: use one of ...`, for a name that nobody knows."""
    quoted = _QUOTED.search(words)
    if quoted is None:
        return ""
    if words.startswith("object contains unknown field"):
        last, value, _ = list(_walk(place, said, kind))[-1]
        known = _field_names(_chosen(last, value))
    elif words.startswith("invalid value") and place.endswith("kind"):
        last, _, _ = list(_walk(place.removesuffix(".kind"), said, kind))[-1]
        known = [str(one.tag) for one in _structs(last)]
    elif words.startswith("invalid enum value"):
        last, _, _ = list(_walk(place, said, kind))[-1]
        known = [str(value) for one in _members(last) for value in _values(one)]
    else:
        return ""
    if not known:
        return ""
    return f": use one of {name_choices(known)}" + (suggest(quoted[1], known) or ".")


def _inner_step(error: Exception, step: object) -> str:
    """`/inner` for a fault of a step within a step."""
    _, _, place = str(error).partition(_NOWHERE)
    if isinstance(error, RecursionError):
        return ""
    names = [
        str(value["id"])
        for _, value, is_item in _walk(place.rstrip("`"), step, _STEP)
        if is_item and isinstance(value, dict) and isinstance(value.get("id"), str)
    ]
    return "".join(f"/{name}" for name in names)


# ---- types along a path ------------------------------------------------------------------------


def _walk(
    place: str, said: object, kind: inspect.Type
) -> Iterator[tuple[inspect.Type, object, bool]]:
    """The types and values from the whole to the place; whether each is an item of a list."""
    yield kind, said, False
    for field, item in _PARTS.findall(place):
        if field:
            kind = _field(kind, said, field)
            said = said.get(field) if isinstance(said, dict) else None
        else:
            kind = _item(kind)
            is_there = isinstance(said, list) and item.isdigit() and int(item) < len(said)
            said = said[int(item)] if is_there and isinstance(said, list) else None
        yield kind, said, not field


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _members(one)
    else:
        yield kind


def _structs(kind: inspect.Type) -> list[inspect.StructType]:
    return [one for one in _members(kind) if isinstance(one, inspect.StructType)]


def _chosen(kind: inspect.Type, said: object) -> inspect.StructType | None:
    """The one of several that a value says it is."""
    found = _structs(kind)
    tag = said.get("kind") if isinstance(said, dict) else None
    return next((one for one in found if one.tag in (tag, None)), None)


def _field(kind: inspect.Type, said: object, name: str) -> inspect.Type:
    chosen = _chosen(kind, said)
    fields = chosen.fields if chosen is not None else ()
    return next((one.type for one in fields if one.encode_name == name), inspect.AnyType())


def _item(kind: inspect.Type) -> inspect.Type:
    for one in _members(kind):
        if isinstance(one, inspect.ListType | inspect.VarTupleType):
            return one.item_type
        if isinstance(one, inspect.DictType):
            return one.value_type
    return inspect.AnyType()


def _field_names(kind: inspect.StructType | None) -> list[str]:
    return [] if kind is None else [field.encode_name for field in kind.fields]


def _values(kind: inspect.Type) -> Iterable[object]:
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return [one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else ()
