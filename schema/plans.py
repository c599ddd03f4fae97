"""Plans: programs of operations, as people write them and the log keeps them.

A plan is a graph of steps. A step begins when all that it depends on has ended: what `depends_on`
names, and the steps whose outputs it takes (`plan_values.py`). Some steps hold further steps (a
body): `condition`, `map`, `plan`, and whatever compensates a failed step. A body sees the steps
beside its holder and further out; nobody sees into it. The body of a `plan` sees its inputs only.

This file says what can be written; `plan_types.py` what each step takes and gives;
`plan_checks.py` which graphs make sense. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tensorcast.schema.ids import Tier
from tensorcast.schema.plan_values import ValueType

PLAN_VERSION: Final = 1
STEPS_MAX: Final = 1000
"""Most steps of a plan, all bodies together."""
DEPTH_MAX: Final = 8
ITEMS_MAX: Final = 1000
"""Most things that one map goes over."""
MOVES_MAX: Final = 256
"""Most keys that move together."""
CHECKS_MAX: Final = 16
CONCURRENCY: Final = 16
PLAN_BYTES_MAX: Final = 1 << 20

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_-]*\Z")]
Title = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=1, le=10_000)] | Text
Limit = Annotated[int, Meta(ge=1, le=10_000)]
ALL: Final = "all"


class OnFailure(StrEnum):
    """What follows when a step has failed for good. STOP: what runs beside it is cancelled, and its
    holder (in the end the plan) fails. CONTINUE: the plan goes on with whatever does not need its
    outputs. COMPENSATE: as STOP, but first the steps in `compensate` run."""

    STOP = "stop"
    CONTINUE = "continue"
    COMPENSATE = "compensate"


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`attempts` tries in all; `backoff_s` passes after the first, twice as much after each further
    one, up to `backoff_s_max`. Only what a retry can help is tried again."""

    attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    backoff_s: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    backoff_s_max: Annotated[float, Meta(ge=0, le=86_400)] = 30.0


ONCE: Final = Retry(attempts=1)


class _Step(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """What all steps have. `timeout_s` is for one try, `deadline_s` for all of it since the plan
    was submitted; of steps that could begin, those of the higher `priority` do first."""

    id: Name
    depends_on: tuple[Name, ...] = ()
    timeout_s: Seconds | None = None
    deadline_s: Seconds | None = None
    retry: Retry | None = None
    on_failure: OnFailure = OnFailure.STOP
    compensate: tuple[Step, ...] = ()
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0


WorkName = Literal["fill", "materialize", "load", "persist", "evict", "verify"]


class OperationStep(_Step, frozen=True, kw_only=True, tag="operation"):
    """Work of one node on one artifact. FILL brings it into the tier in whichever way is best (from
    its disk, its memory, the store or other nodes). What is there already is done; what another
    operation is doing already is waited for."""

    work: WorkName = "fill"
    artifact: Text
    node: Text
    tier: Tier = Tier.DRAM
    sources: tuple[Text, ...] = ()


class ReplicateStep(_Step, frozen=True, kw_only=True, tag="replicate"):
    """Fan-out: the artifact onto nodes ("all": those that accept replicas when it begins), as a
    chain or tree; on `concurrency_max` nodes at a time."""

    artifact: Text
    to: tuple[Text, ...] | Text
    tier: Tier = Tier.DRAM
    concurrency_max: Limit | None = None


class WaitSignal(_Step, frozen=True, kw_only=True, tag="wait_signal"):
    """Until `count` signals have come on topics of a pattern, whose data say what `where` says;
    with `distinct` (a field of the data, or `topic`) no two count that say the same there. Those
    count that were emitted since the plan was submitted, or since the step began."""

    topic: Text
    where: dict[str, object] = {}
    count: Count = 1
    distinct: Annotated[str, Meta(max_length=64)] = ""
    since: Literal["plan", "step"] = "plan"


class WaitKey(_Step, frozen=True, kw_only=True, tag="wait_key"):
    """Until a key points to the artifact (empty: to anything)."""

    key: Text
    artifact: Annotated[str, Meta(max_length=4096)] = ""


class WaitReplicas(_Step, frozen=True, kw_only=True, tag="wait_replicas"):
    """Until `count` complete replicas are in the tier of nodes that are up, whoever made them; with
    `nodes`, of these nodes only."""

    artifact: Text
    count: Count = 1
    tier: Tier = Tier.DRAM
    nodes: tuple[Text, ...] | Text = ()


class WaitEngines(_Step, frozen=True, kw_only=True, tag="wait_engines"):
    """Until `count` engines that are up (of these; none named: of all) serve the weights of an
    artifact. `count` 0: all of these."""

    artifact: Text
    engines: tuple[Text, ...] | Text = ()
    count: Annotated[int, Meta(ge=0, le=10_000)] | Text = 0


class WaitTime(_Step, frozen=True, kw_only=True, tag="wait_time"):
    """Until so many seconds have passed since it began, or until a time."""

    for_s: Annotated[float, Meta(ge=0, le=31_536_000)] | Text | None = None
    until: Annotated[datetime, Meta(tz=True)] | None = None


class FindEngines(_Step, frozen=True, kw_only=True, tag="find_engines"):
    """The engines that are up now: those that serve a version of `weights` (`policy` of `policy@7`;
    empty: any), have all `labels`, and do not serve the artifact `unless`."""

    weights: Annotated[str, Meta(max_length=4096)] = ""
    labels: dict[str, str] = {}
    unless: Annotated[str, Meta(max_length=4096)] = ""


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the data of a signal must say in a field (`ttft_s`, `loss.mean`). A signal that says
    nothing there, null, or something that has no order with `value`, fails. `optional`: nothing
    and null are passed over, and such a signal does not count."""

    field: Text
    op: Literal["eq", "ne", "lt", "le", "gt", "ge"] = "eq"
    value: object = None
    optional: bool = False


class SoakStep(_Step, frozen=True, kw_only=True, tag="soak"):
    """For so many seconds nothing may go wrong; it fails as soon as something does. None of the
    `engines` may stop, be lost, or serve anything but the `artifact`. Signals on `topic` whose data
    say what `where` says must pass all `checks`, and `count` of them must have come; without
    `checks` none may come at all. Signals count from when it began, or from when a step beside it
    did, `since`."""

    for_s: Annotated[float, Meta(ge=0, le=31_536_000)] | Text
    engines: tuple[Text, ...] | Text = ()
    artifact: Annotated[str, Meta(max_length=4096)] = ""
    topic: Annotated[str, Meta(max_length=4096)] = ""
    where: dict[str, object] = {}
    checks: Annotated[tuple[Check, ...], Meta(max_length=CHECKS_MAX)] = ()
    count: Annotated[int, Meta(ge=0, le=10_000)] = 0
    since: Annotated[str, Meta(max_length=64)] = ""


class Barrier(_Step, frozen=True, kw_only=True, tag="barrier"):
    """Until `count` (0: all) of the steps beside it have succeeded. It fails once so many cannot
    any more; the others go on."""

    steps: Annotated[tuple[Name, ...], Meta(min_length=1)]
    count: Annotated[int, Meta(ge=0, le=10_000)] = 0


class EmitStep(_Step, frozen=True, kw_only=True, tag="emit"):
    """Emits a signal; exactly once."""

    topic: Text
    data: dict[str, object] = {}


class CallStep(_Step, frozen=True, kw_only=True, tag="call"):
    """Asks an engine (or any program that serves calls under this name) to do something, and waits
    for its answer, which gives the outputs in `returns`. At least once: each try is a call."""

    engine: Text
    verb: Name
    arguments: dict[str, object] = {}
    returns: dict[Name, ValueType] = {}


class MoveKeyStep(_Step, frozen=True, kw_only=True, tag="move_key"):
    """Points a key to an artifact, if it points to `expect`: an artifact, `absent`, or `any`."""

    key: Text
    artifact: Text
    expect: Text = "any"


class KeyMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of several that move together; as `move_key`."""

    key: Text
    artifact: Text
    expect: Text = "any"


class MoveKeysStep(_Step, frozen=True, kw_only=True, tag="move_keys"):
    """Points several keys to artifacts, all at once or none of them: each `key` to its `artifact`,
    if it points to its `expect` (an artifact, `absent`, or `any`)."""

    moves: Annotated[tuple[KeyMove, ...], Meta(min_length=1, max_length=MOVES_MAX)]


class CancelStep(_Step, frozen=True, kw_only=True, tag="cancel"):
    """Cancels a step beside it (with what it copies), or an operation; what has ended stays so."""

    step: Annotated[str, Meta(max_length=64)] = ""
    operation: Annotated[str, Meta(max_length=4096)] = ""


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a condition asks. IS_READY: whether the artifact `left` is complete in the DRAM of node
    `right`; IS_SET: whether the key `left` points to something."""

    left: object
    op: Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "is_ready", "is_set"] = "eq"
    right: object = None


class ConditionStep(_Step, frozen=True, kw_only=True, tag="condition"):
    """Runs one body or the other."""

    test: Question
    then: tuple[Step, ...] = ()
    otherwise: tuple[Step, ...] = ()


class MapStep(_Step, frozen=True, kw_only=True, tag="map"):
    """Runs its body once for each node, artifact, shard (numbers from 0) or other item, at most
    `concurrency_max` at a time; one of the four is given. `collect` is what each gives for the
    output `collected`, in order."""

    nodes: tuple[Text, ...] | Text = ()
    artifacts: tuple[Text, ...] | Text = ()
    shards: Count | None = None
    items: tuple[object, ...] | Text = ()
    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    concurrency_max: Limit | None = None
    collect: Annotated[str, Meta(max_length=4096)] = ""


class SubPlanStep(_Step, frozen=True, kw_only=True, tag="plan"):
    """Runs another plan; its outputs are those of the step."""

    plan: PlanSpec
    inputs: dict[Name, object] = {}


Step = (
    OperationStep
    | ReplicateStep
    | WaitSignal
    | WaitKey
    | WaitReplicas
    | WaitEngines
    | WaitTime
    | FindEngines
    | SoakStep
    | Barrier
    | EmitStep
    | CallStep
    | MoveKeyStep
    | MoveKeysStep
    | CancelStep
    | ConditionStep
    | MapStep
    | SubPlanStep
)
Holder = ConditionStep | MapStep | SubPlanStep
"""Steps that are done when their bodies are."""
Work = OperationStep | ReplicateStep | CallStep
"""Steps that count against the concurrency limit of a plan."""


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that whoever submits the plan gives; `default` None: it must be given."""

    type: ValueType = ValueType.ANY
    default: object = None


class PlanSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A plan as it is written. At most `concurrency_max` of its operations and calls run at once,
    all bodies together (of a plan within a plan: its own). What is submitted with the same
    `dedup_id`, which may name inputs, is the same plan. `outputs` are given by whole references."""

    version: Literal[1] = PLAN_VERSION
    name: Title
    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    inputs: dict[Name, Input] = {}
    outputs: dict[Name, Text] = {}
    concurrency_max: Limit = CONCURRENCY
    deadline_s: Seconds | None = None
    dedup_id: Annotated[str, Meta(max_length=512)] = ""
    labels: dict[str, str] = {}


def kind_of(step: Step) -> str:
    """The kind of a step, as it is written."""
    return str(step.__struct_config__.tag)


def retry_of(step: Step) -> Retry:
    """How often a step is tried: operations several times unless it says otherwise, all else
    once."""
    if step.retry is not None:
        return step.retry
    return Retry() if isinstance(step, OperationStep | ReplicateStep) else ONCE


def bodies_of(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The bodies that a step holds, what compensates it last; not that of a plan within."""
    match step:
        case ConditionStep():
            own: tuple[tuple[Step, ...], ...] = (step.then, step.otherwise)
        case MapStep():
            own = (step.steps,)
        case _:
            own = ()
    return (*own, step.compensate)


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """These steps and all within them, a holder before its bodies."""
    for step in steps:
        yield step
        for body in bodies_of(step):
            yield from all_steps(body)
        if isinstance(step, SubPlanStep):
            yield from all_steps(step.plan.steps)


msgspec.json.Decoder(PlanSpec)  # resolves the types that name each other
