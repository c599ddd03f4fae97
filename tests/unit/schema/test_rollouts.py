"""The planner: which plans it makes, for any engines and strategy."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import artifact_id
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plan_checks import check_plan
from tensorcast.schema.plans import (
    CallStep,
    Check,
    FindEngines,
    MapStep,
    MoveKeysStep,
    PlanSpec,
    SubPlanStep,
    all_steps,
)
from tensorcast.schema.rollouts import (
    STAGE,
    SWITCH,
    UNSTAGE,
    AllAtOnce,
    Canary,
    Health,
    Member,
    Part,
    Rolling,
    RolloutLimits,
    VersionSet,
    plan_rollout,
    previous_parts,
)

OLD, NEW = artifact_id("old"), artifact_id("new")
HEALTH = Health(topic="engine.load.*", checks=(Check(field="ttft_s", op="le", value=1),), count=2)


def wanted(parts=1):
    return VersionSet(
        name="policy",
        version="policy@2",
        parts=tuple(
            Part(key=f"policy.rank{n}" if n else "policy", artifact=artifact_id(f"p{n}"))
            for n in range(parts)
        ),
    )


def members(count, artifact=OLD):
    return tuple(
        Member(engine=f"e{n}", node=f"n{n % 2}", version="policy@1", artifact=artifact)
        for n in range(count)
    )


def by_id(spec):
    return {step.id: step for step in all_steps(spec.steps)}


strategies = st.one_of(
    st.just(AllAtOnce()),
    st.builds(Rolling, at_once=st.integers(1, 20)),
    st.builds(
        Canary,
        count=st.integers(1, 3),
        soak_s=st.floats(0, 100),
        health=st.lists(st.just(HEALTH), max_size=2).map(tuple),
        at_once=st.none() | st.integers(1, 5),
    ),
)


@given(
    count=st.integers(0, 12),
    strategy=strategies,
    parts=st.integers(1, 4),
    late=st.booleans(),
    known=st.booleans(),
    check=st.booleans(),
)
def test_every_roll_out_is_a_plan_that_makes_sense(count, strategy, parts, late, known, check):
    engines = members(count, OLD if known else "")
    if isinstance(strategy, Canary) and 0 < count <= strategy.count:
        with pytest.raises(InvalidArgument, match="cannot be canaries"):
            plan_rollout(wanted(parts), engines, strategy)
        return
    limits = RolloutLimits(check=check)
    spec = plan_rollout(wanted(parts), engines, strategy, limits=limits, late=late)
    assert check_plan(spec) == ()
    assert msgspec.json.decode(msgspec.json.encode(spec), type=PlanSpec) == spec
    steps = by_id(spec)
    assert [move.key for move in steps["move"].moves] == [part.key for part in wanted(parts).parts]
    installed = [
        engine
        for step in steps.values()
        if isinstance(step, MapStep) and step.id in ("change", "canary", "rest")
        for engine in step.items
    ]
    assert installed == [member.engine for member in engines]
    assert ("undo" in steps) == (known and count > 0)
    assert any(isinstance(step, FindEngines) for step in steps.values()) == late


def test_what_an_engine_is_asked_and_in_which_order():
    spec = plan_rollout(wanted(2), members(2), Rolling())
    assert [step.id for step in spec.steps] == [
        "prefetch",
        "stage",
        "switch",
        "newcomers",
        "late",
        "say",
    ]
    calls = [step for step in all_steps(spec.steps) if isinstance(step, CallStep)]
    verbs = [call.verb for call in calls]
    back = [STAGE, SWITCH, UNSTAGE]
    assert verbs == [STAGE, UNSTAGE, *back, SWITCH, STAGE, SWITCH]
    assert calls[0].arguments == {
        "version": "policy@2",
        "artifact": artifact_id("p0"),
        "parts": {"policy": artifact_id("p0"), "policy.rank1": artifact_id("p1")},
    }
    switch = by_id(spec)["switch"]
    assert isinstance(switch, SubPlanStep)
    assert switch.depends_on == ("stage",)
    inner = [(step.id, step.depends_on) for step in switch.plan.steps]
    assert inner == [("change", ()), ("serving", ("change",)), ("move", ("serving",))]
    assert by_id(spec)["change"].concurrency_max == 1


def test_canaries_are_watched_before_the_others_change():
    spec = plan_rollout(wanted(), members(4), Canary(count=2, soak_s=5, health=(HEALTH,)))
    steps = by_id(spec)
    assert steps["canary"].items == ("e0", "e1")
    assert steps["soak"].engines == ("e0", "e1")
    assert (steps["health-1"].topic, steps["health-1"].for_s) == ("engine.load.*", 5)
    assert steps["rest"].items == ("e2", "e3")
    assert steps["rest"].depends_on == ("soak", "health-1")


def test_without_engines_the_keys_move_together():
    spec = plan_rollout(wanted(3), (), AllAtOnce(), late=False)
    assert [step.id for step in spec.steps] == ["switch", "say"]
    moves = [step for step in all_steps(spec.steps) if isinstance(step, MoveKeysStep)]
    assert [len(move.moves) for move in moves] == [3]
    assert spec.labels == {"rollout": "policy", "version": "policy@2", "previous": ""}


@pytest.mark.parametrize(
    ("parts", "engines", "strategy", "said"),
    [
        ((), (), AllAtOnce(), "parts"),
        ((Part(key="k", artifact=NEW), Part(key="k", artifact=OLD)), (), AllAtOnce(), "one key"),
        ((Part(key="k", artifact=NEW),), members(1) * 2, AllAtOnce(), "named twice"),
        ((Part(key="k", artifact=NEW),), members(1001), AllAtOnce(), "1000 engines"),
        ((Part(key="k", artifact=NEW),), members(1), Canary(), "cannot be canaries"),
    ],
)
def test_what_makes_no_sense_is_told(parts, engines, strategy, said):
    with pytest.raises(InvalidArgument, match=said):
        plan_rollout(VersionSet(name="n", version="n@1", parts=parts), engines, strategy)


def test_what_the_keys_pointed_to():
    moves = [{"key": "a", "artifact": NEW, "previous": OLD}, {"key": "b", "previous": None}]
    assert previous_parts(moves) == {"a": OLD}
    assert previous_parts(None) == {}
