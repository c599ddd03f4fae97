"""What the API answers about policies."""

from __future__ import annotations

import msgspec
import pytest

from rigs import running_rig
from tensorcast.controlplane.services.api import answer
from tensorcast.controlplane.services.api_status import find_problems
from tensorcast.schema.api import Executed, parse_reply
from tensorcast.schema.api_policies import ChangePolicy, PolicyInfo, PolicyQuery
from tensorcast.schema.commands import ConfigurePolicy, DisablePolicy, EnablePolicy
from tensorcast.schema.errors import InvalidArgument, NotFound, PermissionDenied
from tensorcast.schema.policy_events import PolicyEnabled, PolicyStopped


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


async def change(rig, command, actor="user:ada@desk"):
    return await ask(rig, "policy.change", ChangePolicy(command=command, actor=actor), Executed)


async def show(rig, name="keep-last"):
    return await ask(rig, "policy.show", PolicyQuery(policy=name), PolicyInfo)


def values(info):
    return {one.name: one.value for one in info.parameters}


async def test_all_are_listed_and_what_the_log_speaks_of(rig):
    await rig.append(PolicyEnabled(policy="of-another-release"))
    found = await ask(rig, "policy.list", PolicyQuery(), tuple[PolicyInfo, ...])
    states = {one.policy: one.state for one in found}
    assert states["replicate"] == "on"
    assert states["spread"] == "off"
    assert states["of-another-release"] == "unknown"
    assert next(iter(states)) == "replicate"


async def test_parameters_are_set_one_by_one_and_put_back(rig):
    await change(rig, EnablePolicy(policy="keep-last", parameters={"versions": 5}))
    await change(rig, ConfigurePolicy(policy="keep-last", parameters={"names": ["a*"]}))
    info = await show(rig)
    assert (info.state, info.set_by) == ("on", "user:ada@desk")
    assert values(info) == {"versions": 5, "names": ["a*"]}
    await change(rig, ConfigurePolicy(policy="keep-last", parameters={"versions": None}))
    assert values(await show(rig)) == {"versions": 3, "names": ["a*"]}
    await change(rig, DisablePolicy(policy="keep-last"))
    assert (await show(rig)).state == "off"
    done = await change(rig, DisablePolicy(policy="keep-last"))
    assert done.events == ()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (EnablePolicy(policy="nothing"), NotFound),
        (DisablePolicy(policy="nothing"), NotFound),
        (EnablePolicy(policy="keep-last", parameters={"version": 3}), InvalidArgument),
        (ConfigurePolicy(policy="keep-last", parameters={"versions": "3"}), InvalidArgument),
        (ConfigurePolicy(policy="replicate", parameters={"x": 1}), InvalidArgument),
    ],
)
async def test_what_makes_no_sense_is_refused(rig, command, error):
    with pytest.raises(error):
        await change(rig, command)
    assert not rig.view.policies


async def test_nobody_acts_in_the_name_of_a_policy(rig):
    with pytest.raises(PermissionDenied):
        await change(rig, EnablePolicy(policy="spread"), actor="policy:spread")


async def test_one_that_was_stopped_is_a_problem_until_it_is_enabled_again(rig):
    await rig.append(PolicyStopped(policy="spread", reason="flood", detail="too much"))
    (problem,) = find_problems(rig.view, rig.heartbeats)
    assert "flood: too much" in problem
    assert (await show(rig, "spread")).state == "stopped"
    await change(rig, EnablePolicy(policy="spread"))
    assert list(find_problems(rig.view, rig.heartbeats)) == []
