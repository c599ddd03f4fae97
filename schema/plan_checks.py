"""Which plans make sense: everything that can be seen before a plan meets a cluster. Pure.

`check_plan` finds all faults and tells each in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tensorcast.schema.errors import InvalidArgument, TensorCastError
from tensorcast.schema.guesses import suggest
from tensorcast.schema.ids import Tier, parse_key, parse_node
from tensorcast.schema.plain import has_order
from tensorcast.schema.plan_types import (
    Field,
    free_references,
    gives,
    item_type,
    needs_of,
    own_values,
    takes,
)
from tensorcast.schema.plan_values import (
    INDEX,
    INPUT,
    ITEM,
    RESERVED,
    Reference,
    ValueType,
    check_value,
    describe_type,
    fits,
    named_in,
    parse_reference,
    texts_in,
    type_of,
    whole_reference,
)
from tensorcast.schema.plans import (
    ALL,
    DEPTH_MAX,
    PLAN_BYTES_MAX,
    STEPS_MAX,
    Barrier,
    CancelStep,
    Check,
    ConditionStep,
    EmitStep,
    Holder,
    MapStep,
    MoveKeysStep,
    OnFailure,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    SoakStep,
    Step,
    SubPlanStep,
    WaitSignal,
    WaitTime,
    all_steps,
    bodies_of,
    kind_of,
)
from tensorcast.schema.signals import parse_pattern, parse_topic

FAULTS_MAX: Final = 100


class Names(msgspec.Struct, frozen=True):
    """What a body sees: the outputs of steps by name, the inputs of its plan, the item. `holders`
    are the steps that it lies in: they give nothing yet, and their names are taken."""

    steps: Mapping[str, Mapping[str, ValueType]] = {}
    inputs: Mapping[str, ValueType] = {}
    item: ValueType | None = None
    holders: frozenset[str] = frozenset()


def check_plan(spec: PlanSpec) -> tuple[str, ...]:
    """What is wrong with a plan, one sentence for each fault; () when nothing is."""
    size_bytes = len(msgspec.json.encode(spec))
    if size_bytes > PLAN_BYTES_MAX:
        return (f"The plan takes {size_bytes} bytes; {PLAN_BYTES_MAX} are the limit.",)
    count = sum(1 for _ in all_steps(spec.steps))
    if count > STEPS_MAX:
        return (f"The plan has {count} steps; {STEPS_MAX} are the limit: use `map`.",)
    found = []
    for fault in _check_spec(spec, "", 1):
        found.append(fault)
        if len(found) == FAULTS_MAX:
            break
    return tuple(dict.fromkeys(found))


def check_inputs(spec: PlanSpec, given: Mapping[str, object]) -> tuple[str, ...]:
    """What is wrong with the inputs that somebody gives a plan, one sentence for each; what is not
    given yet is no fault."""
    found: list[str] = []
    for name, value in given.items():
        wanted = spec.inputs.get(name)
        if wanted is None:
            known = f"; it has {', '.join(spec.inputs)}" if spec.inputs else "; it has none"
            found.append(
                f"The plan has no input {name!r}{suggest(name, spec.inputs) or known + '.'}"
            )
            continue
        found += _said(lambda v=value, w=wanted, n=name: check_value(v, w.type, f"Input {n!r}"))
    return tuple(found)


def _check_spec(spec: PlanSpec, prefix: str, depth: int) -> Iterator[str]:
    for name, wanted in spec.inputs.items():
        if wanted.default is not None:
            yield from _said(lambda w=wanted, n=name: check_value(w.default, w.type, f"Input {n}"))
    names = Names(inputs={name: one.type for name, one in spec.inputs.items()})
    yield from _check_body(spec.steps, prefix, names, depth)
    inside = _seen_in(spec.steps, names)
    for name, text in spec.outputs.items():
        yield from _check_output(f"Output {name}", text, inside)
    yield from _check_references(spec.dedup_id, "The dedup_id", names)


def _check_output(what: str, text: str, names: Names) -> Iterator[str]:
    try:
        if whole_reference(text) is None:
            yield f"{what} must be one reference, as in ${{step.output}}, not {text!r}."
    except InvalidArgument:
        pass  # told with the references
    yield from _check_references(text, what, names)


def _seen_in(steps: tuple[Step, ...], names: Names) -> Names:
    own = {step.id: gives(step) for step in steps}
    return msgspec.structs.replace(names, steps={**names.steps, **own})


# ---- bodies ------------------------------------------------------------------------------------


def _check_body(steps: tuple[Step, ...], prefix: str, outside: Names, depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        yield f"Step {prefix.rstrip('/')} lies too deep: {DEPTH_MAX} bodies in each other at most."
        return
    seen: set[str] = set()
    for step in steps:
        where = f"Step {prefix}{step.id}"
        if step.id in seen:
            yield f"{where} is there twice; give each step a name of its own."
        elif step.id in RESERVED or step.id in outside.steps or step.id in outside.holders:
            yield f"{where} has a name that means something else here; choose another one."
        seen.add(step.id)
    names = _seen_in(steps, outside)
    for step in steps:
        yield from _check_step(step, frozenset(seen), prefix, names, depth)
    yield from _check_cycles(steps, prefix)


def _check_step(
    step: Step, beside: frozenset[str], prefix: str, names: Names, depth: int
) -> Iterator[str]:
    where = f"Step {prefix}{step.id}"
    for other in step.depends_on:
        if other not in beside:
            end = suggest(other, beside - {step.id}) or "."
            yield f"{where} depends on {other!r}, which is no step beside it{end}"
    yield from _check_common(step, where)
    yield from _check_kind(step, where, beside)
    yield from _check_own(step, where, names)
    for field in takes(step):
        yield from _check_field(field, where, names)
    yield from _check_inner(step, prefix, names, depth)


def _check_own(step: Step, where: str, names: Names) -> Iterator[str]:
    """The references in the step itself; what `collect` gathers sees the body."""
    if isinstance(step, MapStep):
        collected = _inside_map(step, names)
        yield from _check_references(step.collect, where, _seen_in(step.steps, collected))
        step = msgspec.structs.replace(step, collect="")
    yield from _check_references(own_values(step), where, names, own=step.id)


def _check_inner(step: Step, prefix: str, names: Names, depth: int) -> Iterator[str]:
    inner = f"{prefix}{step.id}/"
    beyond = {name: given for name, given in names.steps.items() if name != step.id}
    outside = msgspec.structs.replace(names, steps=beyond, holders=names.holders | {step.id})
    *own, compensate = bodies_of(step)
    ids = [one.id for body in own for one in body]
    if isinstance(step, ConditionStep) and len(set(ids)) < len(ids):
        yield f"Step {prefix}{step.id} has a step of one name in both of its bodies; rename one."
    within = _inside_map(step, outside) if isinstance(step, MapStep) else outside
    for body in own:
        yield from _check_body(body, inner, within, depth + 1)
    yield from _check_body(compensate, f"{inner}compensate/", outside, depth + 1)
    if isinstance(step, SubPlanStep):
        yield from _check_inputs(step, f"Step {prefix}{step.id}")
        yield from _check_spec(step.plan, inner, depth + 1)


def _inside_map(step: MapStep, names: Names) -> Names:
    return msgspec.structs.replace(names, item=item_type(step))


def _check_inputs(step: SubPlanStep, where: str) -> Iterator[str]:
    for name in step.inputs.keys() - step.plan.inputs.keys():
        yield f"{where} gives its plan an input {name!r}, which that does not have."
    for name, wanted in step.plan.inputs.items():
        if wanted.default is None and name not in step.inputs:
            yield f"{where} must give its plan the input {name!r}."


def _check_cycles(steps: tuple[Step, ...], prefix: str) -> Iterator[str]:
    """One sentence for a circle of steps that wait for each other."""
    beside = frozenset(step.id for step in steps)
    waits: dict[str, frozenset[str]] = {}
    for step in steps:
        try:
            needed = needs_of(step, beside)
        except InvalidArgument:
            needed = frozenset(step.depends_on)
        soft = frozenset(step.steps) if isinstance(step, Barrier) else frozenset[str]()
        waits[step.id] = (needed | soft) & beside
    while circle := find_cycle(waits):
        named = " -> ".join(prefix + one for one in (*circle, circle[0]))
        yield f"Steps wait for each other in a circle: {named}."
        gone = frozenset(circle)  # what waits for them is no circle of its own
        waits = {name: others - gone for name, others in waits.items() if name not in gone}


def find_cycle(waits: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """A circle in a graph, in order, beginning with its first name; () when there is none."""
    left = {name: set(others) for name, others in waits.items()}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    if not left:
        return ()
    path = [min(left)]
    while (following := min(left[path[-1]])) not in path:
        path.append(following)
    circle = path[path.index(following) :]
    start = circle.index(min(circle))
    return (*circle[start:], *circle[:start])


# ---- one step ----------------------------------------------------------------------------------


def _check_common(step: Step, where: str) -> Iterator[str]:
    compensates = step.on_failure is OnFailure.COMPENSATE
    if compensates != bool(step.compensate):
        yield f"{where} needs both, `on_failure: compensate` and the steps in `compensate`."
    if step.retry is not None and isinstance(step, Holder):
        yield (
            f"{where} is a {kind_of(step)} and cannot be retried as a whole: give `retry` to the"
            " steps in it, which are tried again where they stand."
        )


def _check_kind(step: Step, where: str, beside: frozenset[str]) -> Iterator[str]:
    match step:
        case OperationStep():
            yield from _check_operation(step, where)
        case ReplicateStep(tier=Tier.OBJECT):
            yield f"{where} fans out to nodes; use the operation `persist` for tier object."
        case WaitSignal(topic=topic) if "${" not in topic:
            yield from _said(lambda: parse_pattern(topic), where)
        case EmitStep(topic=topic) if "${" not in topic:
            yield from _said(lambda: parse_topic(topic), where)
        case SoakStep():
            yield from _check_soak(step, where, beside)
        case MoveKeysStep():
            keys = [move.key for move in step.moves]
            if len(set(keys)) < len(keys):
                yield f"{where} moves a key twice."
        case WaitTime() if (step.for_s is None) == (step.until is None):
            yield f"{where} needs one of `for_s` and `until`."
        case CancelStep() if bool(step.step) == bool(step.operation):
            yield f"{where} needs one of `step` and `operation`."
        case CancelStep() if step.step and step.step not in beside - {step.id}:
            yield f"{where} cancels {step.step!r}, which is no other step beside it."
        case Barrier():
            for name in step.steps:
                if name not in beside or name == step.id:
                    yield f"{where} waits for {name!r}, which is no other step beside it."
            if step.count > len(set(step.steps)):
                yield f"{where} waits for {step.count} steps and names {len(set(step.steps))}."
        case MapStep() if _sources_of_items(step) != 1:
            yield f"{where} needs one of `nodes`, `artifacts`, `shards` and `items`."
        case ConditionStep() if not (step.then or step.otherwise):
            yield f"{where} needs steps in `then` or in `otherwise`."
        case _:
            return


def _check_soak(step: SoakStep, where: str, beside: frozenset[str]) -> Iterator[str]:
    if step.since and step.since not in beside - {step.id}:
        yield f"{where} counts signals since {step.since!r}, which is no other step beside it."
    if step.topic and "${" not in step.topic:
        yield from _said(lambda: parse_pattern(step.topic), where)
    if not step.topic and (step.where or step.checks or step.count):
        yield f"{where} looks at signals, but names no `topic`."
    for check in step.checks:
        yield from _check_check(check, where)
    if step.count and not step.checks:
        yield f"{where} waits for signals of which none may come; give `checks`, or no `count`."


def _check_check(check: Check, where: str) -> Iterator[str]:
    """A check that no signal can ever pass."""
    if check.value is None and check.op != "ne":
        yield f"{where} compares {check.field!r} with nothing: give `value`."
    elif check.op not in ("eq", "ne") and not has_order(check.value, check.value):
        yield f"{where} compares {check.field!r} with {check.value!r}, which has no order."


def _sources_of_items(step: MapStep) -> int:
    return sum((bool(step.nodes), bool(step.artifacts), step.shards is not None, bool(step.items)))


def _check_operation(step: OperationStep, where: str) -> Iterator[str]:
    if step.sources and step.work != "materialize":
        yield f"{where} names sources, which only `work: materialize` takes."
    if step.tier is Tier.OBJECT and step.work in ("fill", "materialize"):
        yield f"{where} cannot {step.work} tier object; fill dram, then use `work: persist`."
    if step.tier is Tier.DRAM and step.work in ("load", "persist"):
        yield f"{where} must say which tier to {step.work}: `tier: disk` or `tier: object`."


def _check_field(field: Field, where: str, names: Names) -> Iterator[str]:
    name, value, wanted = field
    if isinstance(value, str) and "${" in value:
        try:
            whole = whole_reference(value)
        except InvalidArgument:
            return  # told with the references
        given = _type_at(whole, names) if whole is not None else ValueType.TEXT
        if given is not None and not fits(given, wanted):
            what = f"{value} is {describe_type(given)}"
            yield f"{where}: {name} wants {describe_type(wanted)}, and {what}."
        return
    if value == ALL and wanted in (ValueType.NODES, ValueType.ENGINES):
        return
    if value == () and wanted in (ValueType.NODES, ValueType.ENGINES):
        return
    yield from _said(lambda: _check_literal(value, wanted, f"{where}: {name}"))


def _check_literal(value: object, wanted: ValueType, what: str) -> None:
    check_value(value, wanted, what)
    if wanted is ValueType.NODES and isinstance(value, list | tuple):
        for one in value:
            if isinstance(one, str) and "${" not in one:
                parse_node(one)
    if isinstance(value, str):
        if wanted is ValueType.NODE:
            parse_node(value)
        elif wanted is ValueType.KEY:
            parse_key(value)


def _said(check: object, where: str = "") -> Iterator[str]:
    """The sentence of what a check raises."""
    assert callable(check)
    try:
        check()
    except TensorCastError as error:
        yield f"{where}: {error}" if where else str(error)


# ---- references --------------------------------------------------------------------------------


def _check_references(value: object, where: str, names: Names, own: str = "") -> Iterator[str]:
    for text in texts_in(value):
        for found in named_in(text):
            try:
                reference = parse_reference(found)
            except InvalidArgument as error:
                yield f"{where}: {error}"
            else:
                yield from _check_reference(reference, where, names, own)


def _check_reference(
    reference: Reference, where: str, names: Names, own: str = ""
) -> Iterator[str]:
    root, path = reference.root, reference.path
    if root == own:
        yield f"{where} takes {reference} from itself."
    elif root == INPUT:
        if not path or path[0] not in names.inputs:
            end = suggest(path[0] if path else "", names.inputs) or "."
            yield f"{where} takes {reference}, but the plan has no such input{end}"
    elif root in (ITEM, INDEX):
        if names.item is None:
            yield f"{where} takes {reference} outside of a map."
    elif root not in names.steps:
        end = suggest(root, (*names.steps, INPUT, ITEM)) or "."
        yield f"{where} takes {reference}, but sees no step {root!r}{end}"
    elif not path or path[0] not in names.steps[root]:
        outputs = ", ".join(names.steps[root]) or "nothing"
        end = suggest(path[0] if path else "", names.steps[root]) or "."
        yield f"{where} takes {reference}, but step {root} gives {outputs}{end}"


def _type_at(reference: Reference, names: Names) -> ValueType | None:
    """The type that a reference stands for; None when it stands for nothing."""
    root, path = reference.root, reference.path
    if root == ITEM:
        return names.item if not path else ValueType.ANY
    if root == INDEX:
        return ValueType.INTEGER
    known = names.inputs if root == INPUT else names.steps.get(root, {})
    if not path or path[0] not in known:
        return None
    return known[path[0]] if len(path) == 1 else ValueType.ANY


def describe_step(step: Step) -> str:
    """A step in a few words: its kind, and for an operation its work."""
    return step.work if isinstance(step, OperationStep) else kind_of(step)


def literal_names(step: Step, wanted: ValueType) -> Iterator[str]:
    """The names of one type that a step is given as they are, without references."""
    for _, value, field_type in takes(step):
        plural = {ValueType.NODE: ValueType.NODES, ValueType.ENGINE: ValueType.ENGINES}.get(wanted)
        values = [value] if field_type is wanted else []
        if plural is not None and field_type is plural and isinstance(value, list | tuple):
            values = list(value)
        for one in values:
            if isinstance(one, str) and "${" not in one and type_of(one) is ValueType.TEXT:
                yield one


def takes_from(step: Step, name: str) -> bool:
    """Whether anything in a step refers to this one. Raises InvalidArgument."""
    return any(reference.root == name for reference in free_references(step))
