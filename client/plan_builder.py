"""Plans in Python: steps by name, each giving outputs that later steps take.

    plan = tc.Plan("bring it to n2")
    pull = plan.operation("pull", artifact="llama-8b@1", node="n2", timeout=60)
    plan.emit("say", "weights.ready", {"artifact": pull["artifact"], "node": pull["node"]})
    client.apply(plan).wait()

What a step takes from another one makes it wait for that one; `after` names others to wait for.
Nothing is sent before `apply`; `plan.spec` is what is sent, and can be kept as JSON or YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from tensorcast.client.plan_steps import (
    Output,
    check_step,
    ids_of,
    input_types,
    listed,
    make_step,
    mapping,
    write_plan_of,
)
from tensorcast.client.plan_watching import WatchingSteps
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.guesses import suggest
from tensorcast.schema.plan_checks import check_plan
from tensorcast.schema.plan_types import gives
from tensorcast.schema.plans import (
    CONCURRENCY,
    Barrier,
    CallStep,
    CancelStep,
    ConditionStep,
    EmitStep,
    MapStep,
    MoveKeyStep,
    OnFailure,
    OperationStep,
    PlanSpec,
    ReplicateStep,
    Retry,
    Step,
    SubPlanStep,
    WaitEngines,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
    WorkName,
)

TierName = Literal["dram", "disk", "object"]
Compared = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "is_ready", "is_set"]
Names = Sequence[str] | str


class Options(TypedDict, total=False):
    """What every step may have: seconds for one try and since the plan was submitted, how often it
    is tried, what follows its failure, which of those that could begin does first, and steps to
    wait for."""

    timeout: float
    deadline: float
    retry: Retry
    on_failure: Literal["stop", "continue"]
    priority: int
    after: Sequence[Planned | str]


class Planned:
    """A step of a plan: `step["output"]` is what it will give."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._undo: Steps | None = None

    @property
    def id(self) -> str:
        return self._step.id

    def __getitem__(self, output: str) -> Output:
        """Raises InvalidArgument for an output that it does not give."""
        known = gives(self.make())
        if output not in known:
            raise InvalidArgument(
                f"Step {self.id} gives no {output!r}{suggest(output, known) or '.'}",
                hint=f"It gives {', '.join(known) or 'nothing'}.",
            )
        return Output(f"${{{self.id}.{output}}}")

    @property
    def undo(self) -> Steps:
        """The steps that run when it has failed, before the plan fails: add to them."""
        if self._undo is None:
            self._undo = Steps()
        return self._undo

    def make(self) -> Step:
        """The step as it is written."""
        if self._undo is None:
            return self._step
        return msgspec.structs.replace(
            self._step, on_failure=OnFailure.COMPENSATE, compensate=self._undo.make_all()
        )


_P = TypeVar("_P", bound=Planned)


class Steps(WatchingSteps):
    """Steps that run together. Each method adds one of them and returns it."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []

    def add(self, step: Step) -> Planned:
        """Adds a step as it is written (`tensorcast.schema.plans`). Raises InvalidArgument."""
        check_step(step)
        return self._keep(Planned(step))

    def make_all(self) -> tuple[Step, ...]:
        """All its steps as they are written."""
        return tuple(planned.make() for planned in self._planned)

    def _keep(self, planned: _P) -> _P:
        self._planned.append(planned)
        return planned

    # ---- work ----------------------------------------------------------------------------------

    def operation(
        self,
        name: str,
        *,
        artifact: str,
        node: str,
        work: WorkName = "fill",
        tier: TierName = "dram",
        sources: Sequence[str] = (),
        **options: Unpack[Options],
    ) -> Planned:
        """Work of one node on one artifact: fill (from wherever is best), materialize (from
        `sources`), load, persist, evict, verify. Gives artifact, node, operation, bytes_moved,
        joined."""
        step = make_step(
            OperationStep,
            name,
            options,
            work=work,
            artifact=artifact,
            node=node,
            tier=tier,
            sources=listed(sources),
        )
        return self.add(step)

    def replicate(
        self,
        name: str,
        *,
        artifact: str,
        to: Names,
        tier: TierName = "dram",
        at_once: int | None = None,
        **options: Unpack[Options],
    ) -> Planned:
        """Fans the artifact out to nodes ("all": every node that accepts replicas). Gives artifact,
        nodes, operations, bytes_moved."""
        step = make_step(
            ReplicateStep,
            name,
            options,
            artifact=artifact,
            to=listed(to),
            tier=tier,
            concurrency_max=at_once,
        )
        return self.add(step)

    def call(
        self,
        name: str,
        *,
        engine: str,
        verb: str,
        arguments: Mapping[str, object] | None = None,
        returns: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Planned:
        """Asks an engine, or any program that serves calls under this name, and waits for its
        answer: outputs of the types in `returns` ({"artifact": "artifact", "tokens":
        "integer"})."""
        step = make_step(
            CallStep,
            name,
            options,
            engine=engine,
            verb=verb,
            arguments=mapping(arguments),
            returns=mapping(returns),
        )
        return self.add(step)

    # ---- waits ---------------------------------------------------------------------------------

    def wait_signal(
        self,
        name: str,
        topic: str,
        *,
        where: Mapping[str, object] | None = None,
        count: int | str = 1,
        distinct: str = "",
        since: Literal["plan", "step"] = "plan",
        **options: Unpack[Options],
    ) -> Planned:
        """Until `count` signals came whose data say what `where` says (`distinct`: that differ in
        this field, or in `topic`). Gives topic, data, seq, actor of the last, and all data."""
        step = make_step(
            WaitSignal,
            name,
            options,
            topic=topic,
            where=mapping(where),
            count=count,
            distinct=distinct,
            since=since,
        )
        return self.add(step)

    def wait_key(
        self, name: str, key: str, *, artifact: str = "", **options: Unpack[Options]
    ) -> Planned:
        """Until a key points to an artifact (or to anything). Gives key, artifact, version."""
        return self.add(make_step(WaitKey, name, options, key=key, artifact=artifact))

    def wait_replicas(
        self,
        name: str,
        *,
        artifact: str,
        count: int | str = 1,
        tier: TierName = "dram",
        nodes: Names = (),
        **options: Unpack[Options],
    ) -> Planned:
        """Until so many complete replicas are there. Gives artifact, nodes."""
        step = make_step(
            WaitReplicas,
            name,
            options,
            artifact=artifact,
            count=count,
            tier=tier,
            nodes=listed(nodes),
        )
        return self.add(step)

    def wait_engines(
        self,
        name: str,
        *,
        artifact: str,
        engines: Names = (),
        count: int | str = 0,
        **options: Unpack[Options],
    ) -> Planned:
        """Until so many of these engines (0: all) serve the weights. Gives artifact, engines."""
        whom = listed(engines)
        step = make_step(WaitEngines, name, options, artifact=artifact, engines=whom, count=count)
        return self.add(step)

    def wait_time(self, name: str, seconds: float | str, **options: Unpack[Options]) -> Planned:
        """For so many seconds."""
        return self.add(make_step(WaitTime, name, options, for_s=seconds))

    def barrier(
        self, name: str, steps: Sequence[Planned | str], count: int = 0, **options: Unpack[Options]
    ) -> Planned:
        """Until `count` (0: all) of these steps have succeeded. Gives succeeded."""
        return self.add(make_step(Barrier, name, options, steps=ids_of(steps), count=count))

    # ---- effects -------------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        topic: str,
        data: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> Planned:
        """Emits a signal, once. Gives topic, data."""
        return self.add(make_step(EmitStep, name, options, topic=topic, data=mapping(data)))

    def move_key(
        self, name: str, key: str, artifact: str, *, expect: str = "any", **options: Unpack[Options]
    ) -> Planned:
        """Points a key to an artifact, if it points to `expect` (an artifact, "absent", "any").
        Gives key, artifact, previous."""
        step = make_step(MoveKeyStep, name, options, key=key, artifact=artifact, expect=expect)
        return self.add(step)

    def cancel(
        self,
        name: str,
        *,
        step: Planned | str = "",
        operation: str = "",
        **options: Unpack[Options],
    ) -> Planned:
        """Cancels another step, with what it copies, or an operation."""
        target = step.id if isinstance(step, Planned) else step
        return self.add(make_step(CancelStep, name, options, step=target, operation=operation))

    # ---- bodies --------------------------------------------------------------------------------

    def condition(
        self,
        name: str,
        left: object,
        op: Compared = "eq",
        right: object = None,
        **options: Unpack[Options],
    ) -> Branch:
        """Runs the steps of its `then`, or of its `otherwise`. Gives met."""
        test = {"left": left, "op": op, "right": right}
        return self._keep(Branch(make_step(ConditionStep, name, options, test=test)))

    def map(
        self,
        name: str,
        *,
        nodes: Names = (),
        artifacts: Names = (),
        shards: int | str | None = None,
        items: Sequence[object] | str = (),
        at_once: int | None = None,
        **options: Unpack[Options],
    ) -> Mapped:
        """Runs the steps that are added to it once for each node, artifact, shard or item. Gives
        items, collected."""
        step = make_step(
            MapStep,
            name,
            options,
            nodes=listed(nodes),
            artifacts=listed(artifacts),
            shards=shards,
            items=listed(items),
            concurrency_max=at_once,
            steps=[EmitStep(id="x", topic="x")],  # those that are added take its place
        )
        return self._keep(Mapped(step))

    def plan(
        self,
        name: str,
        plan: Plan | PlanSpec,
        inputs: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> Planned:
        """Runs another plan; gives its outputs."""
        spec = plan.spec if isinstance(plan, Plan) else plan
        return self.add(make_step(SubPlanStep, name, options, plan=spec, inputs=mapping(inputs)))


class Branch(Planned):
    """A condition: add steps to `then` and to `otherwise`."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.then = Steps()
        self.otherwise = Steps()

    def make(self) -> Step:
        """The condition with its bodies, as it is written."""
        step = cast("ConditionStep", super().make())
        return msgspec.structs.replace(
            step, then=self.then.make_all(), otherwise=self.otherwise.make_all()
        )


class Mapped(Planned, Steps):
    """A map: add steps to it; in them `item` is what it goes over, `index` its number from 0."""

    item = Output("${item}")
    index = Output("${index}")

    def __init__(self, step: Step) -> None:
        Planned.__init__(self, step)
        Steps.__init__(self)
        self._collect = ""

    def collect(self, output: str) -> Self:
        """What each item adds to the output `collected`."""
        self._collect = output
        return self

    def make(self) -> Step:
        """The map with its body, as it is written."""
        step = cast("MapStep", super().make())
        return msgspec.structs.replace(step, steps=self.make_all(), collect=self._collect)


class Plan(Steps):
    """A program of steps (see the methods of `Steps`). At most `at_once` of its operations and
    calls run at a time; `deadline` is for all of it, in seconds. `inputs` names what is given when
    it is applied, with its type ("artifact", "node", "integer", ...)."""

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, str] | None = None,
        at_once: int = CONCURRENCY,
        deadline: float | None = None,
        dedup_id: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self._inputs = input_types(name, inputs)
        self._at_once = at_once
        self._deadline = deadline
        self._dedup_id = dedup_id
        self._labels = mapping(labels)
        self._outputs: dict[str, str] = {}

    def step(self, *steps: Step) -> Self:
        """Adds steps as they are written; returns the plan."""
        for one in steps:
            self.add(one)
        return self

    def input(self, name: str) -> Output:
        """What is given under this name when the plan is applied. Raises InvalidArgument."""
        if name not in self._inputs:
            raise InvalidArgument(
                f"The plan has no input {name!r}.", hint="Name it in `inputs` of the plan."
            )
        return Output(f"${{input.{name}}}")

    def gives(self, **outputs: str) -> Self:
        """What the plan gives in the end: `plan.gives(moved=pull["bytes_moved"])`."""
        self._outputs |= outputs
        return self

    @property
    def spec(self) -> PlanSpec:
        """The plan as it is written. Raises InvalidArgument that tells all that is wrong."""
        around = {
            "name": self.name,
            "inputs": self._inputs,
            "outputs": self._outputs,
            "concurrency_max": self._at_once,
            "deadline_s": self._deadline,
            "dedup_id": self._dedup_id,
            "labels": self._labels,
        }
        return checked(write_plan_of(around, self.make_all()))


def checked(spec: PlanSpec) -> PlanSpec:
    """The plan as whoever reads it gets it. Raises InvalidArgument that tells all that is wrong."""
    around = {n: getattr(spec, n) for n in spec.__struct_fields__ if n not in ("steps", "version")}
    read = write_plan_of(around, spec.steps)
    faults = check_plan(read)
    if faults:
        raise InvalidArgument(f"The plan {spec.name!r} makes no sense: " + " ".join(faults))
    return read
