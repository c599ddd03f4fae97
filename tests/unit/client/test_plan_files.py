import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_specs import EVERY_KIND
from tensorcast.client.plan_files import inspect_plan, parse_plan, read_plan, write_plan
from tensorcast.schema.errors import InvalidArgument, NotFound

TEXT = """
name: bring it to n2
steps:
  - kind: operation
    id: pull
    artifact: llama-8b@1
    node: n2
    timeout_s: 60
  - kind: emit
    id: say
    topic: weights.ready
    data: {artifact: "${pull.artifact}", at: 2030-01-01}
"""


def test_a_plan_is_read_from_yaml_and_json_alike():
    spec = parse_plan(TEXT)
    assert [step.id for step in spec.steps] == ["pull", "say"]
    assert spec.steps[1].data["at"] == "2030-01-01"
    assert parse_plan(msgspec.json.encode(spec).decode()) == spec
    assert parse_plan(write_plan(EVERY_KIND)) == EVERY_KIND


SCALARS = """
name: no
steps:
  - {kind: emit, id: on, topic: t, data: {on: "${on.seq}", y: yes, at: 12:30, n: 1e3, m: 0x10, k: ~,
     i: -7, f: .5, b: true, o: 0o17, z: 010, u: 1_000}}
"""


def test_scalars_are_those_of_yaml_1_2():
    spec, _ = inspect_plan(SCALARS)
    assert (spec.name, spec.steps[0].id) == ("no", "on")
    assert spec.steps[0].data == {
        "on": "${on.seq}",
        "y": "yes",
        "at": "12:30",
        "n": 1000.0,
        "m": 16,
        "k": None,
        "i": -7,
        "f": 0.5,
        "b": True,
        "o": 15,
        "z": "010",
        "u": "1_000",
    }
    written = write_plan(spec)
    assert inspect_plan(written)[0] == spec


def test_a_name_that_stands_twice_is_told_with_its_line():
    for text, words in (
        ("name: a\nname: b\nsteps: []", "line 2 says 'name' again, which line 1 said"),
        ("name: a\nsteps: [{kind: emit, id: a, topic: t, id: b}]", "line 2 says 'id' again"),
        ('{"name": "a", "steps": [], "name": "b"}', "line 1 says 'name' again"),
    ):
        spec, (fault,) = inspect_plan(text)
        assert spec is None
        assert words in fault


INPUTS = """
name: x
inputs: {w: {type: artifact}, t: text, k: {type: odd}, n: {type: node}}
labels: {a: b, c: 3}
steps: [{kind: operation, id: p, artifact: "${input.w}", node: "${input.n}"},
  {kind: wait_replicas, id: r, artifact: "${input.w}", count: "${input.k}"},
  {kind: emit, id: s, topic: "${input.t}", data: {k: "${input.k}", x: "${input.zzz}"}}]
"""


def test_an_input_that_is_none_is_named_and_hides_no_other():
    _, faults = inspect_plan(INPUTS)
    told = " ".join(faults)
    assert "expected `object`, got `str` (at inputs.t)" in told
    assert "(at inputs.k.type)" in told
    assert "(at labels.c)" in told
    assert len(faults) == 4, faults
    assert "${input.zzz}" in faults[-1]


BOMB = "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["It is no mapping with `name` and `steps`."]),
        ("[1, 2]", ["It is no mapping with `name` and `steps`."]),
        ("{", ["It is neither YAML nor JSON"]),
        (BOMB, ["It is neither YAML nor JSON: it has an alias"]),
        ("!!python/object:os.system {}", ["It is neither YAML nor JSON"]),
        ("[" * 5000, ["It is neither YAML nor JSON"]),
        ("name: x", ["The plan: object missing required field `steps`."]),
        ("name: x\nsteps: []", ["The plan: expected `array` of length >= 1 (at steps)."]),
        ("name: x\nversion: 9\nsteps: [{kind: emit, id: a, topic: t}]", ["The plan: invalid enum"]),
        (
            "name: x\nsteps: [{kind: emit, id: a}, {kind: odd, id: b}, 7, {id: c}]",
            [
                "Step a: object missing required field `topic`.",
                "Step b: invalid value 'odd' (at kind): use one of operation, ",
                "Step number 3: expected `object`, got `int`.",
                "Step c: object missing required field `kind`.",
            ],
        ),
        (
            "name: x\nmore: 1\nsteps: [{kind: emit, id: a, topic: t, timeout_s: soon}]",
            [
                "The plan: object contains unknown field `more`: use one of version, name, steps",
                "Step a: expected `float | null`, got `str` (at timeout_s).",
            ],
        ),
        ("name: x\nsteps: [{kind: emit, id: a, topic: a b}]", ["Step a: 'a b' is not a topic."]),
        ("x" * (1 << 21), ["It is larger than 1048576 bytes."]),
    ],
    ids=range(13),
)
def test_each_fault_is_a_sentence(text, sentences):
    _, faults = inspect_plan(text)
    assert len(faults) == len(sentences), faults
    for fault, sentence in zip(faults, sentences, strict=True):
        assert fault.startswith(sentence)
    with pytest.raises(InvalidArgument, match="This is no plan"):
        parse_plan(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "steps", "kind", "id", "emit", "topic", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_text_is_a_plan_or_has_faults(value):
    spec, faults = inspect_plan(msgspec.json.encode(value).decode())
    assert (spec is None) <= bool(faults)
    assert all("\n" not in fault for fault in faults)


def test_files_that_are_not_there_or_no_text(tmp_path):
    with pytest.raises(NotFound):
        read_plan(tmp_path / "none.yaml")
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_plan(path)
    path.write_text(TEXT)
    assert read_plan(path) == parse_plan(TEXT)
    with path.open("ab") as grown:
        grown.truncate(2 << 20)
    with pytest.raises(InvalidArgument, match="is larger"):
        read_plan(path)
