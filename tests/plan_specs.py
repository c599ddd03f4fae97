"""Plans for tests: one with every kind of step, and a strategy for small ones."""

from __future__ import annotations

from hypothesis import strategies as st

from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import (
    Barrier,
    CallStep,
    CancelStep,
    Check,
    ConditionStep,
    EmitStep,
    FindEngines,
    Input,
    KeyMove,
    MapStep,
    MoveKeysStep,
    MoveKeyStep,
    OnFailure,
    OperationStep,
    PlanSpec,
    Question,
    ReplicateStep,
    Retry,
    SoakStep,
    SubPlanStep,
    WaitEngines,
    WaitKey,
    WaitReplicas,
    WaitSignal,
    WaitTime,
)

INNER = PlanSpec(
    name="inner",
    inputs={"node": Input(type=ValueType.NODE)},
    steps=(OperationStep(id="inner", artifact="a", node="${input.node}"),),
    outputs={"moved": "${inner.bytes_moved}"},
)
EVERY_KIND = PlanSpec(
    name="every kind of step",
    inputs={"run": Input(type=ValueType.TEXT, default="1")},
    dedup_id="run-${input.run}",
    steps=(
        CallStep(
            id="publish",
            engine="e1",
            verb="publish",
            arguments={"run": "${input.run}"},
            returns={"artifact": ValueType.ARTIFACT},
            timeout_s=60,
        ),
        OperationStep(
            id="pull",
            artifact="${publish.artifact}",
            node="n2",
            retry=Retry(attempts=3),
            on_failure=OnFailure.COMPENSATE,
            compensate=(EmitStep(id="undo", topic="undone", data={"run": "${input.run}"}),),
        ),
        ReplicateStep(id="fan", artifact="${pull.artifact}", to="all", concurrency_max=4),
        WaitSignal(id="signal", topic="ready.*", count=2, distinct="topic"),
        WaitKey(id="key", key="live"),
        WaitReplicas(id="copies", artifact="${pull.artifact}", count=2),
        WaitEngines(id="engines", artifact="${pull.artifact}", engines=("e1",)),
        WaitTime(id="rest", for_s=1.5),
        Barrier(id="barrier", steps=("key", "copies"), count=1),
        EmitStep(id="emit", topic="done.${input.run}", data={"nodes": "${fan.nodes}"}),
        MoveKeyStep(id="move", key="live", artifact="${pull.artifact}", expect="absent"),
        MoveKeysStep(
            id="moves",
            moves=(
                KeyMove(key="a", artifact="${pull.artifact}"),
                KeyMove(key="b", artifact="a", expect="absent"),
            ),
        ),
        FindEngines(id="found", weights="policy", unless="${pull.artifact}"),
        SoakStep(
            id="soak",
            for_s=1,
            engines="${found.engines}",
            topic="load.*",
            checks=(Check(field="ttft_s", op="le", value="${pull.bytes_moved}"),),
        ),
        CancelStep(id="cancel", step="signal", depends_on=("barrier",)),
        ConditionStep(
            id="condition",
            test=Question(left="${pull.bytes_moved}", op="gt", right=0),
            then=(EmitStep(id="yes", topic="yes"),),
            otherwise=(EmitStep(id="no", topic="no"),),
        ),
        MapStep(
            id="map",
            nodes="${fan.nodes}",
            steps=(OperationStep(id="each", work="verify", artifact="a", node="${item}"),),
            collect="${each.node}",
        ),
        SubPlanStep(id="sub", plan=INNER, inputs={"node": "${pull.node}"}),
    ),
    outputs={"moved": "${sub.moved}", "nodes": "${map.collected}"},
)
"""It makes sense: `check_plan` finds nothing."""

_names = st.sampled_from(["a", "b", "c", "d", "e"])
_values = st.sampled_from(["x", "${a.node}", "${b.topic}", "${input.n}", "${item}", "${", "${q.r}"])
_common = {
    "depends_on": st.lists(_names, max_size=2).map(tuple),
    "timeout_s": st.none() | st.floats(0.5, 1000),
    "on_failure": st.sampled_from(OnFailure),
    "priority": st.integers(-10, 10),
}
_leaves = st.one_of(
    st.builds(OperationStep, id=_names, artifact=_values, node=_values, **_common),
    st.builds(ReplicateStep, id=_names, artifact=_values, to=st.just("all"), **_common),
    st.builds(EmitStep, id=_names, topic=_values, data=st.dictionaries(_names, _values), **_common),
    st.builds(WaitKey, id=_names, key=_values, **_common),
    st.builds(WaitTime, id=_names, for_s=st.floats(0, 10), **_common),
    st.builds(Barrier, id=_names, steps=st.lists(_names, min_size=1).map(tuple), **_common),
    st.builds(CancelStep, id=_names, step=_names, **_common),
)


def _holders(inner):
    bodies = st.lists(inner, min_size=1, max_size=3).map(tuple)
    question = st.builds(Question, left=_values, right=_values)
    return st.one_of(
        st.builds(MapStep, id=_names, items=st.just(("x", 1)), steps=bodies, **_common),
        st.builds(ConditionStep, id=_names, test=question, then=bodies, **_common),
    )


steps = st.recursive(_leaves, _holders, max_leaves=6)
specs = st.builds(
    PlanSpec,
    name=st.just("any"),
    steps=st.lists(steps, min_size=1, max_size=5).map(tuple),
    inputs=st.dictionaries(st.just("n"), st.builds(Input), max_size=1),
)
