import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_specs import EVERY_KIND, INNER, specs
from tensorcast.schema.ids import Tier
from tensorcast.schema.plan_checks import (
    check_inputs,
    check_plan,
    describe_step,
    find_cycle,
    literal_names,
    takes_from,
)
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import (
    Barrier,
    CancelStep,
    Check,
    ConditionStep,
    EmitStep,
    Input,
    MapStep,
    OnFailure,
    OperationStep,
    PlanSpec,
    Question,
    ReplicateStep,
    Retry,
    SoakStep,
    SubPlanStep,
    WaitSignal,
    WaitTime,
)


def pull(name="pull", **fields) -> OperationStep:
    return OperationStep(**{"id": name, "artifact": "a", "node": "n2", **fields})


def say(name="say", **fields) -> EmitStep:
    return EmitStep(**{"id": name, "topic": "t", **fields})


def test_a_plan_that_makes_sense_has_no_fault():
    assert check_plan(EVERY_KIND) == ()


def soak(**check) -> SoakStep:
    return SoakStep(id="soak", for_s=1, topic="t", checks=(Check(field="loss", **check),))


CASES = [
    ((soak(op="le"),), "Step soak compares 'loss' with nothing: give `value`."),
    ((soak(op="lt", value=True),), "Step soak compares 'loss' with True, which has no order."),
    ((pull(), pull()), "Step pull is there twice; give each step a name of its own."),
    ((say("item"),), "Step item has a name that means something else here; choose another one."),
    ((pull(depends_on=("x",)),), "Step pull depends on 'x', which is no step beside it."),
    ((pull(node="${x.node}"),), "Step pull takes ${x.node}, but sees no step 'x'."),
    (
        (pull(), say(data={"v": "${pull.size}"})),
        "Step say takes ${pull.size}, but step pull gives artifact, node, operation, bytes_moved,"
        " joined.",
    ),
    ((pull(node="${pull.node}"),), "Step pull takes ${pull.node} from itself."),
    ((say(topic="${item}"),), "Step say takes ${item} outside of a map."),
    ((say(topic="${input.x}"),), "Step say takes ${input.x}, but the plan has no such input."),
    (
        (say(data={"v": "${"}), say("b", data={"v": "${a b}"})),
        "Step b: '${a b}' is no reference. Write ${step.output}, ${input.name} or ${item}.",
    ),
    (
        (pull(), pull("more", artifact="${pull.node}")),
        "Step more: artifact wants the name of an artifact, and ${pull.node} is the name of a"
        " node.",
    ),
    (
        (pull(), WaitSignal(id="w", topic="t", count="${pull.node}")),
        "Step w: count wants an integer, and ${pull.node} is the name of a node.",
    ),
    (
        (pull("a", depends_on=("b",)), say("b", data={"v": "${a.node}"})),
        "Steps wait for each other in a circle: a -> b -> a.",
    ),
    (
        (Barrier(id="b", steps=("p",)), pull("p", depends_on=("b",))),
        "Steps wait for each other in a circle: b -> p -> b.",
    ),
    ((Barrier(id="b", steps=("b",)),), "Step b waits for 'b', which is no other step beside it."),
    ((pull(), Barrier(id="b", steps=("pull",), count=2)), "Step b waits for 2 steps and names 1."),
    ((CancelStep(id="c"),), "Step c needs one of `step` and `operation`."),
    ((CancelStep(id="c", step="c"),), "Step c cancels 'c', which is no other step beside it."),
    ((WaitTime(id="w"),), "Step w needs one of `for_s` and `until`."),
    (
        (ConditionStep(id="c", test=Question(left=1)),),
        "Step c needs steps in `then` or in `otherwise`.",
    ),
    (
        (ConditionStep(id="c", test=Question(left=1), then=(say(),), otherwise=(say(),)),),
        "Step c has a step of one name in both of its bodies; rename one.",
    ),
    (
        (MapStep(id="m", steps=(say(),)),),
        "Step m needs one of `nodes`, `artifacts`, `shards` and `items`.",
    ),
    (
        (MapStep(id="m", shards=2, steps=(say(),), retry=Retry()),),
        "Step m is a map and cannot be retried as a whole: give `retry` to the steps in it, which"
        " are tried again where they stand.",
    ),
    ((MapStep(id="m", shards=2, steps=(say("m"),)),), "Step m/m has a name that means something"),
    (
        (pull(on_failure=OnFailure.COMPENSATE),),
        "Step pull needs both, `on_failure: compensate` and the steps in `compensate`.",
    ),
    ((pull(sources=("n1",)),), "Step pull names sources, which only `work: materialize` takes."),
    (
        (pull(tier=Tier.OBJECT),),
        "Step pull cannot fill tier object; fill dram, then use `work: persist`.",
    ),
    (
        (pull(work="persist"),),
        "Step pull must say which tier to persist: `tier: disk` or `tier: object`.",
    ),
    (
        (ReplicateStep(id="r", artifact="a", to="all", tier=Tier.OBJECT),),
        "Step r fans out to nodes; use the operation `persist` for tier object.",
    ),
    ((pull(node="N 2"),), "'N 2' is not a node name."),
    ((say(topic="a b"),), "Step say: 'a b' is not a topic."),
    ((WaitSignal(id="w", topic="a.>.b"),), "Step w: 'a.>.b' is not a pattern of topics."),
    ((SubPlanStep(id="s", plan=INNER),), "Step s must give its plan the input 'node'."),
    (
        (SubPlanStep(id="s", plan=INNER, inputs={"node": "n1", "x": 1}),),
        "Step s gives its plan an input 'x', which that does not have.",
    ),
    ((MapStep(id="m", items="${x}", steps=(say(),)),), "Step m takes ${x}, but sees no step 'x'."),
]


@pytest.mark.parametrize(("steps", "sentence"), CASES, ids=range(len(CASES)))
def test_each_fault_is_told_in_a_sentence(steps, sentence):
    found = check_plan(PlanSpec(name="x", steps=steps))
    assert any(one.startswith(sentence) for one in found), found


def test_a_body_sees_what_is_beside_its_holder_and_nobody_sees_into_it():
    body = (say("in", data={"n": "${pull.node}", "i": "${item}"}),)
    inside = (pull(), MapStep(id="m", shards=2, steps=body, collect="${in.topic}"))
    assert check_plan(PlanSpec(name="x", steps=inside)) == ()
    outside = (*inside, say(data={"n": "${in.topic}"}))
    assert check_plan(PlanSpec(name="x", steps=outside)) == (
        "Step say takes ${in.topic}, but sees no step 'in'.",
    )


def test_inputs_and_outputs_of_a_plan_are_checked():
    spec = PlanSpec(
        name="x",
        steps=(pull(),),
        inputs={"n": Input(type=ValueType.INTEGER, default="one")},
        outputs={"o": "${pull.size}", "p": "moved ${pull.bytes_moved}"},
        dedup_id="${nobody.id}",
    )
    assert [one.split(",")[0] for one in check_plan(spec)] == [
        "Input n must be an integer",
        "Output o takes ${pull.size}",
        "Output p must be one reference",
        "The dedup_id takes ${nobody.id}",
    ]


def test_limits_of_size_number_and_depth():
    many = tuple(say(f"s{n}") for n in range(1001))
    assert "1000 are the limit" in check_plan(PlanSpec(name="x", steps=many))[0]
    large = (say(data={"v": "x" * (1 << 20)}),)
    assert "are the limit" in check_plan(PlanSpec(name="x", steps=large))[0]
    step = say("s0")
    for depth in range(1, 10):
        step = MapStep(id=f"s{depth}", shards=1, steps=(step,))
    assert "lies too deep" in check_plan(PlanSpec(name="x", steps=(step,)))[0]


@given(specs)
@settings(max_examples=40)
def test_any_plan_is_found_right_or_wrong(spec):
    spec = msgspec.json.decode(msgspec.json.encode(spec), type=PlanSpec)
    for sentence in check_plan(spec):
        assert sentence
        assert "\n" not in sentence


@given(st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("abcdef"))))
def test_a_cycle_is_found_when_there_is_one(waits):
    waits = {name: others & frozenset(waits) for name, others in waits.items()}
    circle = find_cycle(waits)
    for name, following in zip(circle, (*circle[1:], *circle[:1]), strict=True):
        assert following in waits[name]
    if not circle:  # then there is an order in which all can begin
        done = set()
        while ready := [n for n, others in waits.items() if n not in done and others <= done]:
            done.update(ready)
        assert done == set(waits)


def test_words_about_steps():
    assert describe_step(pull()) == "fill"
    assert describe_step(say()) == "emit"
    assert list(literal_names(pull(), ValueType.NODE)) == ["n2"]
    fan = ReplicateStep(id="r", artifact="${x.y}", to=("n1", "${x.z}"))
    assert list(literal_names(fan, ValueType.NODE)) == ["n1"]
    assert list(literal_names(fan, ValueType.ARTIFACT)) == []
    assert takes_from(fan, "x")


def test_all_faults_of_inputs_are_told():
    spec = PlanSpec(
        name="p",
        steps=(EmitStep(id="e", topic="t"),),
        inputs={"key": Input(type=ValueType.ARTIFACT), "n": Input(type=ValueType.INTEGER)},
    )
    assert check_inputs(spec, {"key": "m@1", "n": 3}) == check_inputs(spec, {}) == ()
    unknown, misspelt, wrong = check_inputs(spec, {"zzzzz": 1, "kye": 2, "n": "x"})
    assert unknown == "The plan has no input 'zzzzz'; it has key, n."
    assert "did you mean 'key'?" in misspelt
    assert wrong == "Input 'n' must be an integer, not 'x'."
    assert "it has none" in check_inputs(PlanSpec(name="p", steps=spec.steps), {"a": 1})[0]


def test_every_circle_is_told():
    waits = {"a": ("c",), "b": ("a",), "c": ("b",), "d": ("d",), "e": ("a", "d")}
    steps = tuple(EmitStep(id=n, topic="t", depends_on=others) for n, others in waits.items())
    barriers = (Barrier(id="r", steps=("s",)), Barrier(id="s", steps=("r",)))
    told = [
        one for one in check_plan(PlanSpec(name="x", steps=(*steps, *barriers))) if "circle" in one
    ]
    assert [one.partition(": ")[2] for one in told] == [
        "a -> c -> b -> a.",
        "d -> d.",
        "r -> s -> r.",
    ]


def test_a_reference_that_is_none_hides_no_other():
    data = {"a": "${}", "b": "${nobody.x}", "c": "${1 2}", "d": ["${e}"]}
    told = check_plan(PlanSpec(name="x", steps=(EmitStep(id="s", topic="t", data=data),)))
    assert len(told) == 4, told
    assert any("'nobody'" in one for one in told)
