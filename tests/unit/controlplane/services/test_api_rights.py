"""The rules of namespaces at the API: by who NATS says that asks, whatever the request claims."""

from __future__ import annotations

import msgspec
import pytest

from rigs import Rig, running_rig
from samples import artifact_id, manifest
from tensorcast.controlplane.services.api import answer
from tensorcast.schema import commands as c
from tensorcast.schema.api import (
    ArtifactInfo,
    Browse,
    Execute,
    Executed,
    KeyInfo,
    Show,
    parse_reply,
)
from tensorcast.schema.api_access import AccessInfo
from tensorcast.schema.api_plans import ForecastInfo, PlanInfo, TryPlan, WaitPlan
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.events import ArtifactSealed, KeyMoved
from tensorcast.schema.ids import ArtifactId, Key, Seq, derive_plan_id
from tensorcast.schema.namespaces import Namespace, Right
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.plans import PlanSpec, WaitReplicas, WaitTime

A = artifact_id("a")
KEY = Key("team/a@1")
TEAM = Namespace("team")
BOBS, CARLS = derive_plan_id("bob"), derive_plan_id("carl")


async def fill(rig: Rig) -> None:
    await rig.append(
        ArtifactSealed(artifact=A, kind="weights", manifest=manifest(1), namespace=TEAM),
        KeyMoved(key=KEY, artifact=A, previous=None, version=1),
    )


async def ask(rig: Rig, user: str, verb: str, request: msgspec.Struct, kind: type) -> object:
    reply = await answer(rig.desk, verb, msgspec.json.encode(request), user=user)
    return parse_reply(reply, kind)


async def execute(rig: Rig, user: str, command: c.Command) -> Executed:
    request = Execute(command=command, actor="user:root@desk")
    done = await ask(rig, user, "execute", request, Executed)
    await rig.follower.wait_for(done.seq, 5)
    return done


def grant(who: str, *rights: Right) -> c.GrantAccess:
    return c.GrantAccess(namespace=TEAM, who=who, rights=rights)


async def test_nobody_is_kept_out_before_the_first_rule():
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "eve", c.MoveKey(key=Key("team/b"), artifact=A))
        assert (await ask(rig, "eve", "artifact.show", Show(what=KEY), ArtifactInfo)).id == A


REFUSED = c.RevokeAccess | c.RemoveKey | c.RemoveArtifact | c.RequestReplicas
"""What has another reason to be refused to anybody."""

OTHERS = [
    c.MoveKey(key=Key("team/new"), artifact=A),
    c.MoveKey(key=Key("mine"), artifact=A),
    c.MoveKey(key=Key("mine"), artifact=ArtifactId(KEY)),
    c.RemoveKey(key=KEY),
    c.PinArtifact(artifact=A),
    c.RemoveArtifact(artifact=A),
    c.RequestReplicas(artifact=ArtifactId(A[:8]), nodes=()),
    c.AcquireLease(lease="l", artifact=A, node=None, holder="eve", ttl_s=9.0),
    grant("eve", Right.READ),
    c.RevokeAccess(namespace=TEAM, who="ada", rights=(Right.READ,)),
]


@pytest.mark.parametrize("command", OTHERS, ids=lambda one: type(one).__name__)
async def test_after_it_others_may_do_nothing_there(command):
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.READ))
        with pytest.raises(PermissionDenied, match=r"User eve may not .* `tcctl access grant team"):
            await execute(rig, "eve", command)
        if not isinstance(command, REFUSED):
            await execute(rig, "", command)  # the operator


async def test_of_several_commands_each_must_be_allowed():
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.READ))
        free = c.CordonNode(node="n1")
        request = Execute(
            command=free, further=(c.MoveKey(key=Key("team/b"), artifact=A),), actor="user:x@y"
        )
        with pytest.raises(PermissionDenied, match="User eve may not"):
            await ask(rig, "eve", "execute", request, Executed)


@pytest.mark.parametrize("verb", ["artifact.show", "artifact.tensors", "key.show"])
@pytest.mark.parametrize("what", [KEY, A, A[:8]])
async def test_what_may_not_be_read_is_not_shown(verb: str, what: str):
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.READ))
        if verb == "key.show" and what != KEY:
            return
        with pytest.raises(PermissionDenied):
            await ask(rig, "eve", verb, Show(what=what), object)
        assert await ask(rig, "bob", verb, Show(what=what), object)


async def test_lists_leave_out_what_may_not_be_read():
    async with running_rig() as rig:
        await fill(rig)
        await rig.append(
            KeyMoved(key=Key("open"), artifact=artifact_id("b"), previous=None, version=1)
        )
        await execute(rig, "ada", grant("bob", Right.READ))
        for user, keys in (("eve", ["open"]), ("bob", ["open", KEY]), ("", ["open", KEY])):
            found = await ask(rig, user, "key.list", Browse(), tuple[KeyInfo, ...])
            assert [one.key for one in found] == keys
        assert await ask(rig, "eve", "artifact.list", Browse(), tuple[ArtifactInfo, ...]) == ()
        assert len(await ask(rig, "bob", "artifact.list", Browse(), tuple[ArtifactInfo, ...])) == 1


async def test_rights_are_apart_and_rules_can_be_listed():
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.KEYS, Right.READ))
        await execute(rig, "bob", c.RemoveKey(key=KEY))
        with pytest.raises(PermissionDenied, match="write to"):
            await execute(rig, "bob", c.PinArtifact(artifact=A))
        found = await ask(rig, "eve", "access.list", Browse(), tuple[AccessInfo, ...])
        assert [(one.who, one.rights) for one in found] == [
            ("ada", tuple(Right)),
            ("bob", (Right.READ, Right.KEYS)),
        ]


async def test_plans_are_shown_to_who_may_read_or_has_submitted_them():
    spec = PlanSpec(name="team/x", steps=(WaitTime(id="rest", for_s=60),))
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.PLANS, Right.READ))
        await execute(rig, "ada", grant("carl", Right.PLANS))
        for user, plan in (("bob", BOBS), ("carl", CARLS)):
            await execute(rig, user, SubmitPlan(plan=plan, spec=spec))
        for user, seen in (("eve", set()), ("carl", {CARLS}), ("bob", {BOBS, CARLS})):
            found = await ask(rig, user, "plan.list", Browse(), tuple[PlanInfo, ...])
            assert {one.id for one in found} == seen
        assert await ask(rig, "carl", "plan.show", Show(what=CARLS), PlanInfo)
        wait = WaitPlan(plan=BOBS, since=Seq(0), timeout_s=0.0)
        for verb, request in (("plan.show", Show(what=BOBS)), ("plan.wait", wait)):
            with pytest.raises(PermissionDenied, match="may not read"):
                await ask(rig, "carl", verb, request, PlanInfo)


async def test_a_dry_run_tells_nothing_that_may_not_be_read():
    async with running_rig() as rig:
        await fill(rig)
        await execute(rig, "ada", grant("bob", Right.READ))
        spec = PlanSpec(name="x", steps=(WaitReplicas(id="wait", artifact=A),))
        with pytest.raises(PermissionDenied, match="may not read"):
            await ask(rig, "eve", "plan.explain", TryPlan(spec=spec), ForecastInfo)
        assert await ask(rig, "bob", "plan.explain", TryPlan(spec=spec), ForecastInfo)
