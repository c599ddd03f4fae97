"""Whether something goes wrong while a step watches: engines that stop or serve something else, and
signals that say what they must not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import Any, Final

from tensorcast.controlplane.core.plans.outcomes import Broken, Done
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.aggregates.plan import StepState
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import EngineId, Seq
from tensorcast.schema.plain import has_order, is_same
from tensorcast.schema.plans import SoakStep
from tensorcast.schema.signals import Signal

_OPS: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "lt": lt,
    "le": le,
    "gt": gt,
    "ge": ge,
}
_WORDS: Final = {
    "eq": "must be",
    "ne": "must not be",
    "lt": "must be less than",
    "le": "must be at most",
    "gt": "must be more than",
    "ge": "must be at least",
}


def look_at_soak(
    view: ClusterView, step: SoakStep, state: StepState, heard: Sequence[Signal], is_over: bool
) -> Done | Broken | None:
    """What has come of it so far, from the signals in the order of the log; None: all is well, and
    the time is not over."""
    wrong = next(_wrong(view, state, heard), None)
    if wrong is not None or not is_over:
        return wrong
    counted = _counted(state, heard)
    if counted < step.count:
        return _broken(
            f"{counted} signals came on {state.inputs['topic']}; {step.count} must.", Seq(0)
        )
    last = max((signal.seq for signal in heard), default=Seq(0))
    return Done({"signals": len(heard)}, last)


def _wrong(view: ClusterView, state: StepState, heard: Iterable[Signal]) -> Iterator[Broken]:
    engines = state.inputs.get("engines")
    for name in engines if isinstance(engines, list | tuple) else ():
        yield from _check_engine(view, EngineId(str(name)), state.inputs.get("artifact"))
    for signal in heard:
        yield from _check_signal(signal, _checks(state))


def _checks(state: StepState) -> list[Mapping[str, object]]:
    found = state.inputs.get("checks")
    known = found if isinstance(found, list | tuple) else ()
    return [check for check in known if isinstance(check, Mapping)]


def _counted(state: StepState, heard: Iterable[Signal]) -> int:
    """The signals that say something wherever it is asked."""
    fields = [str(check["field"]) for check in _checks(state)]
    return sum(all(_dig(one.data, field) is not None for field in fields) for one in heard)


def _check_engine(view: ClusterView, name: EngineId, artifact: object) -> Iterator[Broken]:
    engine = view.engines.get(name)
    if engine is None:
        yield _broken(f"There is no engine {name}.", Seq(0))
    elif engine.status is not EngineStatus.UP:
        yield _broken(f"Engine {name} is {engine.status}.", engine.version)
    elif artifact and engine.artifact != artifact:
        served = f"serves {engine.weights}" if engine.weights else "has not said what it serves"
        yield _broken(f"Engine {name} {served}.", engine.version)


def _check_signal(signal: Signal, checks: Sequence[Mapping[str, object]]) -> Iterator[Broken]:
    where = f"Signal {signal.seq} on {signal.topic}"
    if not checks:
        yield _broken(f"{where} came; none may.", signal.seq)
    for check in checks:
        field, op, wanted = str(check["field"]), str(check["op"]), check.get("value")
        said = _dig(signal.data, field)
        if said is None and check.get("optional"):
            continue
        if not _holds(op, said, wanted):
            what = f"nothing of {field}" if said is None else f"{field} {said!r}"
            yield _broken(f"{where} says {what}; it {_WORDS[op]} {wanted!r}.", signal.seq)


def _dig(data: object, field: str) -> object:
    for part in field.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(part)
    return data


def _holds(op: str, said: object, wanted: object) -> bool:
    """Who says nothing says nothing good; what has no order is no number that is small enough."""
    if said is None:
        return False
    if op in ("eq", "ne"):
        return is_same(said, wanted) is (op == "eq")
    return has_order(said, wanted) and bool(_OPS[op](said, wanted))


def _broken(detail: str, because: Seq) -> Broken:
    fault = Fault(kind=FaultKind.UNAVAILABLE, detail=detail, permanent=True)
    return Broken(fault, because)
