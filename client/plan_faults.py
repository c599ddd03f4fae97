"""What is wrong with a plan that has not the form of one: a sentence for each fault, which names
the step, and what would have been right. Each fault is told once: then what it is about is put
right, or taken out, and the rest looked at. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Final

import msgspec
from msgspec import inspect

from tensorcast.client.plan_places import (
    chosen,
    field_names,
    members,
    odd_name,
    structs,
    values,
    walk,
)
from tensorcast.client.plan_repairs import EMIT, mend
from tensorcast.schema.guesses import name_choices, suggest
from tensorcast.schema.plain import find_number
from tensorcast.schema.plans import PlanSpec, Step

FAULTS_MAX: Final = 100
_NOWHERE: Final = " - at `$"
_QUOTED: Final = re.compile(r"[`']([^`']*)[`']")
_PLAN: Final = inspect.type_info(PlanSpec)
_STEP: Final = inspect.type_info(Step)
_NAME_RULE: Final = "matching regex '^[A-Za-z]"


def tell_faults(said: Mapping[object, object], first: Exception | None = None) -> tuple[str, ...]:
    """The faults of each step by itself, and of what is around them; `first` is told when there is
    no other. () for a plan that has the form of one."""
    steps = said.get("steps")
    found: list[str] = []
    if isinstance(steps, list):
        for number, step in enumerate(steps[:1000]):
            found += _of_step(step, number)
    found[:0] = _of_plan({**said, "steps": [EMIT]} if found else dict(said))
    if not found and first is not None:
        return (say(first, said, _PLAN),)
    return tuple(found[:FAULTS_MAX])


def _of_step(step: object, number: int) -> Iterator[str]:
    name = step.get("id") if isinstance(step, dict) else None
    where = f"Step {name}" if isinstance(name, str) else f"Step number {number + 1}"
    told = False
    for error, mended in _errors(step, Step, _STEP):
        told = True
        yield f"{where}{_inner_step(error, mended)}: {say(error, mended, _STEP)}"
    if not told:
        yield from _numbers(step, where)


def _errors(said: object, kind: object, places: inspect.Type) -> Iterator[tuple[Exception, object]]:
    """What msgspec says about a value of a kind, one fault after the other, each with the value in
    which the ones before are mended."""
    mended = deepcopy(said)
    for _ in range(FAULTS_MAX):
        try:
            msgspec.convert(mended, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            yield error, mended
            if not mend(error, mended, places):
                return
        else:
            return


def _of_plan(said: Mapping[object, object]) -> Iterator[str]:
    told = False
    for error, mended in _errors(dict(said), PlanSpec, _PLAN):
        told = True
        yield f"The plan: {say(error, mended, _PLAN)}"
    if not told:
        rest = {name: one for name, one in said.items() if name != "steps"}
        yield from _numbers(rest, "The plan")


def _numbers(value: object, where: str) -> Iterator[str]:
    found = find_number(value)
    if found is not None:
        yield f"{where}: {found.place} is {found.words}."


def say(error: Exception, said: object, kind: inspect.Type = _STEP) -> str:
    """What msgspec says about a value of a type, as a sentence, with what would be right."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    words, _, place = str(error).partition(_NOWHERE)
    if _NAME_RULE in words:
        words = "expected a name: letters, digits, '_' and '-', a letter first"
    words = words[:1].lower() + words[1:]
    place = place.rstrip("`").lstrip(".")
    at = f" (at {_named(place, said, kind)})" if place else ""
    choices = _choices(words, f".{place}" if place[:1] not in ("", "[") else place, said, kind)
    return f"{words}{at}{choices or '.'}"


def _named(place: str, said: object, kind: inspect.Type) -> str:
    """The place with the name in a mapping that msgspec does not say."""
    before, odd, after = place.partition("[...]")
    if not odd:
        return place
    spot, holder, _ = list(walk(f".{before}" if before[:1] != "[" else before, said, kind))[-1]
    name = odd_name(holder, spot) if isinstance(holder, Mapping) else None
    return place if name is None else f"{before}.{name}{after}"


def _choices(words: str, place: str, said: object, kind: inspect.Type) -> str:
    """`: use one of ...`, for a name that nobody knows."""
    quoted = _QUOTED.search(words)
    if quoted is None:
        return ""
    if words.startswith("object contains unknown field"):
        last, value, _ = list(walk(place, said, kind))[-1]
        known = field_names(chosen(last, value))
    elif words.startswith("invalid value") and place.endswith("kind"):
        last, _, _ = list(walk(place.removesuffix(".kind"), said, kind))[-1]
        known = [str(one.tag) for one in structs(last)]
    elif words.startswith("invalid enum value"):
        last, _, _ = list(walk(place, said, kind))[-1]
        known = [str(value) for one in members(last) for value in values(one)]
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
        for _, value, is_item in walk(place.rstrip("`"), step, _STEP)
        if is_item and isinstance(value, dict) and isinstance(value.get("id"), str)
    ]
    return "".join(f"/{name}" for name in names)
