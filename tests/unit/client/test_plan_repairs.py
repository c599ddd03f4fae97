"""What is left of a plan whose form is broken is still looked at."""

import pytest

from tensorcast.client.plan_files import inspect_plan
from tensorcast.client.plan_repairs import mend, mend_plan
from tensorcast.schema.plans import CallStep

BROKEN = """
name: x
steps:
  - {kind: operation, id: a, artifact: k, node: n1, nod: 1}
  - {kind: emit, id: b, topic: t, data: {x: "${a.artifact}", y: "${c.x}"}}
  - {kind: emit, id: d, topic: "two words", depends_on: [nobody]}
"""


def test_faults_of_the_form_hide_no_others():
    spec, faults = inspect_plan(BROKEN)
    assert isinstance(spec.steps[0], CallStep)
    assert len(faults) == 4, faults
    for words in ("unknown field `nod`", "sees no step 'c'", "depends on 'nobody'", "two words"):
        assert sum(words in one for one in faults) == 1, (words, faults)


def test_what_is_beyond_that():
    assert mend_plan({"name": "x"}) is None
    assert mend_plan({"name": "x", "steps": []}).steps
    assert mend_plan({"steps": [3, {"kind": "emit", "id": "a b"}]}).name == "x"
    assert not mend(ValueError("what"), {}, None)


@pytest.mark.parametrize("text", ["3", "[", "name: x", "steps: 3", "{}"])
def test_what_is_no_plan_at_all_is_told(text):
    _, faults = inspect_plan(text)
    assert faults
