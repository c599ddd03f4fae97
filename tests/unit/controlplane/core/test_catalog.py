import pytest

from tensorcast.controlplane.core.catalog import (
    BUILT_IN,
    CATALOG,
    kind_of,
    make_catalog,
    parse_parameters,
)
from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.policy_events import (
    PolicyConfigured,
    PolicyDisabled,
    PolicyEnabled,
    PolicyStopped,
)
from worlds import World

FLOOD = {"reason": "flood", "detail": "too much"}
ESSENTIAL = ["replicate", "repair", "evict", "drain", "verify", "promote", "reroute", "topics"]


class Mine(Configured[Parameters]):
    """Does nothing, well."""

    name = "mine"

    def react(self, view, recorded):
        return ()


def names(view):
    return [policy.name for policy in CATALOG.running(view)]


def find(world, name):
    return next(policy for policy in CATALOG.running(world.view) if policy.name == name)


def test_what_runs_when_nobody_has_said_anything():
    assert names(ClusterView()) == ESSENTIAL
    assert all(kind.about and kind.origin == BUILT_IN for kind in CATALOG.kinds.values())


@pytest.mark.parametrize(
    ("events", "runs"),
    [
        ((), False),
        ((PolicyEnabled(policy="spread"),), True),
        ((PolicyConfigured(policy="spread", parameters={"readers": 3}),), False),
        ((PolicyEnabled(policy="spread"), PolicyDisabled(policy="spread")), False),
        ((PolicyEnabled(policy="spread"), PolicyStopped(policy="spread", **FLOOD)), False),
    ],
)
def test_what_runs_follows_from_the_log(events, runs):
    world = World()
    for event in events:
        world.then(event)
    assert ("spread" in names(world.view)) == runs


def test_one_that_was_stopped_does_not_run_and_the_rest_does():
    world = World()
    world.then(PolicyStopped(policy="repair", reason="raised", detail="KeyError"))
    assert names(world.view) == [name for name in ESSENTIAL if name != "repair"]
    assert not CATALOG.is_running(world.view, "repair")


def test_parameters_are_those_that_were_set():
    world = World()
    world.then(PolicyEnabled(policy="keep-last"))
    assert find(world, "keep-last").parameters.versions == 3
    world.then(PolicyConfigured(policy="keep-last", parameters={"versions": 7}))
    assert find(world, "keep-last").parameters.versions == 7
    assert CATALOG.running(world.view) is CATALOG.running(world.view)


def test_parameters_that_the_code_has_no_more_keep_a_policy_from_running():
    world = World()
    world.then(PolicyConfigured(policy="keep-last", parameters={"forgotten": 7}))
    world.then(PolicyEnabled(policy="keep-last"))
    assert names(world.view) == ESSENTIAL


@pytest.mark.parametrize(
    "given", [{"versions": 0}, {"versions": "3"}, {"unknown": 1}, {"names": 5}]
)
def test_parameters_are_typed(given):
    with pytest.raises(InvalidArgument):
        parse_parameters(CATALOG.find("keep-last"), given)


def test_nobody_takes_the_name_of_another():
    mine = kind_of(Mine, "file")
    assert mine.about == "Does nothing, well."
    assert not kind_of(type("Mute", (Mine,), {"name": "mute"}), "file").about.startswith("Does")
    assert "mine" in make_catalog((), [mine]).kinds
    with pytest.raises(InvalidArgument, match="two policies 'mine'"):
        make_catalog((), [mine, mine])


def test_what_is_no_policy_is_told():
    for cls in (type("Nameless", (Configured,), {}), type("Dumb", (), {"name": "dumb"})):
        with pytest.raises(InvalidArgument):
            kind_of(cls, "file")
    with pytest.raises(InvalidArgument):
        kind_of(type("Odd", (Mine,), {"Parameters": int}), "file")
    with pytest.raises(NotFound):
        CATALOG.find("nothing")


def test_one_that_cannot_be_made_is_refused_and_does_not_run():
    class Breaks(Mine):
        name = "breaks"

        def __init__(self, parameters):
            raise KeyError("nothing")

    catalog = make_catalog((), [kind_of(Breaks, "file", is_on=True)])
    with pytest.raises(InvalidArgument, match="breaks cannot be made of these parameters: KeyErr"):
        catalog.find("breaks").make(Parameters())
    assert "breaks" not in {policy.name for policy in catalog.running(World().view)}
