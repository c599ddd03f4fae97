import shutil
import xml.etree.ElementTree as Xml

import pytest

from plan_specs import EVERY_KIND
from tensorcast.cli.exits import Exit, exit_of
from tensorcast.client.plan_graph import (
    draw_dot,
    draw_mermaid,
    draw_svg,
    draw_text,
    edges,
    fold_items,
)
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.plans import Barrier, EmitStep, MapStep, OperationStep, PlanSpec

SPEC = PlanSpec(
    name="x",
    steps=(
        EmitStep(id="say", topic="t", data={"n": "${pull.node}"}),
        OperationStep(id="pull", artifact='odd "<name>', node="n2"),
        Barrier(id="all", steps=("say", "pull")),
    ),
)


def test_who_waits_for_whom():
    assert sorted(edges(SPEC.steps)) == [("pull", "all"), ("pull", "say"), ("say", "all")]


def test_the_text_is_in_an_order_in_which_the_steps_may_run():
    assert draw_text(SPEC, {"pull": "succeeded", "say": "running"}) == (
        '[+] pull: fill odd "<name> on n2\n'
        "[*] say: emit t   <- pull\n"
        "[ ] all: barrier 2 of 2   <- pull, say\n"
    )


def test_mermaid_escapes_and_colours():
    drawn = draw_mermaid(SPEC, {"pull": "failed"})
    assert 's_pull["pull<br/>fill odd &quot;&lt;name&gt; on n2"]:::failed' in drawn
    assert "s_pull --> s_say" in drawn
    assert drawn.startswith("flowchart TD\n")


@pytest.mark.parametrize("draw", [draw_text, draw_mermaid, draw_dot])
def test_every_kind_of_step_is_drawn_with_its_bodies(draw):
    drawn = draw(EVERY_KIND)
    for name in ("publish", "undo", "yes", "no", "each", "inner"):
        assert name in drawn
    assert drawn.count("{") >= 0


def test_a_picture_needs_graphviz(monkeypatch):
    if shutil.which("dot"):
        assert Xml.fromstring(draw_svg(EVERY_KIND)).tag.endswith("svg")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TensorCastError, match=r"not installed.*apt install graphviz") as raised:
        draw_svg(SPEC)
    assert exit_of(raised.value) is Exit.FAILED


def test_the_items_of_a_map_are_drawn_as_one():
    copy = EmitStep(id="copy", topic="t")
    inner = MapStep(id="in", items=(1,), steps=(copy,))
    each = MapStep(id="each", nodes="all", steps=(copy, inner))
    spec = PlanSpec(name="x", steps=(each, copy))
    told = {
        "each": "running",
        "each/0/copy": "succeeded",
        "each/1/copy": "succeeded",
        "each/0/in/0/copy": "succeeded",
        "each/1/in/3/copy": "failed",
        "copy": "succeeded",
    }
    folded = fold_items(spec, told)
    assert folded == {
        "each": "running",
        "each/copy": "succeeded",
        "each/in/copy": "failed",
        "copy": "succeeded",
    }
    assert "[+] copy: emit t" in draw_text(spec, folded).splitlines()[2]
