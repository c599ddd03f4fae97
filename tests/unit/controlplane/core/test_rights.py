"""Which commands the rules let a user give; more is asked of the API in test_api_rights.py."""

from __future__ import annotations

import pytest

from samples import artifact_id, manifest
from tensorcast.controlplane.core.rights import check_command
from tensorcast.schema.commands import Command, GrantAccess, IssueOperation, MoveKey, PinArtifact
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.events import ArtifactSealed
from tensorcast.schema.ids import ArtifactId, Key, NodeId, OperationId, PlanId
from tensorcast.schema.namespaces import Namespace, NamespaceGranted, Right
from tensorcast.schema.plan_commands import CancelPlan, StartStep, SubmitPlan
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plans import EmitStep, PlanSpec
from tensorcast.schema.work import Load
from worlds import World

TEAM = Namespace("team")


def submit(name: str) -> SubmitPlan:
    return SubmitPlan(
        plan=PlanId("plan-1"), spec=PlanSpec(name=name, steps=(EmitStep(id="a", topic="t"),))
    )


def world() -> World:
    made = World()
    for user, right in (("bob", Right.PLANS), ("carl", Right.KEYS)):
        made.then(NamespaceGranted(namespace=TEAM, who=user, rights=(right,)))
    return made


@pytest.mark.parametrize(
    ("user", "command", "is_allowed"),
    [
        ("bob", submit("team/rollout"), True),
        ("carl", submit("team/rollout"), False),
        ("carl", submit("rollout"), True),
        ("", submit("team/rollout"), True),
        ("eve", CancelPlan(plan=PlanId("plan-of-nobody")), True),
        ("eve", GrantAccess(namespace=TEAM, who="eve", rights=(Right.READ,)), False),
        ("ada", GrantAccess(namespace=TEAM, who="eve", rights=(Right.READ,)), True),
        ("eve", MoveKey(key=Key("team/a"), artifact=artifact_id("a")), False),
        ("eve", PinArtifact(artifact=ArtifactId("nothing")), True),
    ],
)
def test_the_rules_decide(user: str, command: Command, is_allowed: bool):
    view = world().view
    if is_allowed:
        check_command(view, user, command)
        return
    with pytest.raises(PermissionDenied, match=f"User {user} may not"):
        check_command(view, user, command)


def test_a_step_of_a_plan_needs_the_right_of_who_submitted_it():
    made = world()
    artifact = made.artifact("a")
    operation = OperationId("op-1")
    issue = IssueOperation(
        operation=operation, node=NodeId("n1"), work=Load(artifact=artifact), policy="plan"
    )
    check_command(made.view, "eve", issue)
    made.then(NamespaceGranted(namespace=Namespace("default"), who="bob", rights=(Right.READ,)))
    check_command(made.view, "bob", issue)
    with pytest.raises(PermissionDenied, match="may not read"):
        check_command(made.view, "eve", issue)


@pytest.mark.parametrize(("user", "is_allowed"), [("eve", False), ("carl", False), ("ada", True)])
def test_what_a_plan_waits_for_its_submitter_must_be_allowed_to_read(user: str, is_allowed: bool):
    made = world()
    made.then(NamespaceGranted(namespace=TEAM, who="ada", rights=(Right.READ,)))
    artifact = artifact_id("a")
    made.then(ArtifactSealed(artifact=artifact, kind="kv", manifest=manifest(1), namespace=TEAM))
    for inputs in ({"key": "team/a", "artifact": ""}, {"artifact": artifact, "count": 1}):
        start = StartStep(plan=PlanId("plan-1"), step=StepPath("a"), attempt=1, inputs=inputs)
        if is_allowed:
            check_command(made.view, user, start)
            continue
        with pytest.raises(PermissionDenied, match=f"User {user} may not read"):
            check_command(made.view, user, start)
