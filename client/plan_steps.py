"""One step of a plan in Python, as it is written: what it is given is checked at once, and what is
wrong is told with the name of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

import msgspec

from tensorcast.client.plan_faults import tell_faults
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.guesses import suggest
from tensorcast.schema.plain import check_numbers
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import Input, PlanSpec, Step

S = TypeVar("S", bound=Step)
_OPTIONS = {"timeout": "timeout_s", "deadline": "deadline_s", "after": "depends_on"}
_COMMON = ("timeout", "deadline", "retry", "on_failure", "priority", "after")


class Output(str):
    """What a step will give, as a text that stands for it: `${step.output}`."""

    __slots__ = ()

    def part(self, name: str | int) -> Output:
        """What lies under a name, or at a place from 0, in what the step gives."""
        return Output(f"{self.removesuffix('}')}.{name}}}")


def make_step(kind: type[S], name: str, options: Mapping[str, object], /, **given: object) -> S:
    """A step of a kind; what is None is as the step says by itself. Raises InvalidArgument, naming
    the step."""
    needless = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    fields = {**given, **_options(name, options)}
    said = {n: value for n, value in fields.items() if value is not None or n not in needless}
    tag = kind.__struct_config__.tag
    plain = as_plain({"kind": tag, "id": name, **said}, f"Step {name}")
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(" ".join(tell_faults({"steps": [plain]}, error)[-1:])) from error


def as_plain(value: object, what: str) -> object:
    """A value as JSON holds it. Raises InvalidArgument, naming `what`, for what it cannot hold."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_write)
        check_numbers(plain, what)
        return msgspec.json.decode(msgspec.json.encode(plain))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be written: {error}.") from error


def _write(value: object) -> str:
    """Outputs are written as texts; nothing else may stand for something else."""
    if isinstance(value, Output):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that a plan can hold")


def _options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    for option in options:
        if option not in _COMMON:
            raise InvalidArgument(
                f"Step {name} has no option {option!r}{_meant(option)}",
                hint=f"Every step may have {', '.join(_COMMON)}.",
            )
    found = {_OPTIONS.get(option, option): value for option, value in options.items()}
    if "after" in options:
        found["depends_on"] = ids_of(options["after"])
    return found


def _meant(option: str) -> str:
    """The end of a sentence about an option that is none: perhaps it is called so in plans that
    are written as YAML."""
    called = {field: name for name, field in _OPTIONS.items()}
    if option in called:
        return f", which is called {called[option]!r} in Python."
    return suggest(option, _COMMON) or "."


def ids_of(steps: object) -> object:
    """The names of steps, which are given as steps or by name."""
    named = [steps] if isinstance(steps, str) else listed(steps)
    if not isinstance(named, list):
        return [named.id] if hasattr(named, "id") else named
    return [getattr(one, "id", one) for one in named]


def listed(value: object) -> object:
    """What holds several things as a list of them; anything else as it is."""
    is_one = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    return value if is_one else list(cast("Iterable[object]", value))


def mapping(value: object) -> object:
    """A mapping as a dict; None as an empty one; anything else as it is."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else value


def write_plan_of(fields: Mapping[str, object], steps: tuple[Step, ...]) -> PlanSpec:
    """A plan of what is around its steps, and of its steps. Raises InvalidArgument that tells all
    that has not the form of a plan."""
    said = as_plain(dict(fields), "The plan")
    assert isinstance(said, dict)
    said["steps"] = [as_plain(step, f"Step {getattr(step, 'id', '?')}") for step in steps]
    faults = tell_faults(said)
    if faults:
        raise InvalidArgument(
            f"The plan {said.get('name')!r} cannot be written: " + " ".join(faults)
        )
    return msgspec.convert(said, PlanSpec)


def input_types(plan: str, given: object) -> dict[str, Input]:
    """The inputs of a plan with their types. Raises InvalidArgument."""
    named = mapping(given)
    if not isinstance(named, dict):
        raise InvalidArgument(
            f"The inputs of plan {plan!r} are {given!r}, no mapping of names to types.",
            hint='As in inputs={"weights": "artifact"}.',
        )
    known = [kind.value for kind in ValueType]
    for name, kind in named.items():
        if kind not in known:
            raise InvalidArgument(
                f"Input {name!r} of plan {plan!r} has the type {kind!r}, which is none"
                f"{suggest(str(kind), known) or '.'}",
                hint=f"Types are {', '.join(known)}.",
            )
    return {name: Input(type=ValueType(kind)) for name, kind in named.items()}


def check_step(step: object) -> None:
    """Raises InvalidArgument for what is no step."""
    if not isinstance(step, Step):
        raise InvalidArgument(
            f"{type(step).__name__} is no step of a plan.",
            hint="Add steps by its methods (plan.operation, plan.emit, ...).",
        )
