"""Movers that are cut off from the log, and come back to it."""

import pytest

from tensorcast.controlplane.simulator.workload import Load, Scenario
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.events import OperationIssued, ReplicaEvicting
from tensorcast.schema.ids import NodeId, Tier, replica_id

N1, N2 = NodeId("n1"), NodeId("n2")
LOAD = Load(
    nodes=8, artifacts=60, hour_s=120.0, gets=6.0, puts=0.5, requests=0.4, crashes=60.0,
    cuts=400.0, cut_s=6.0,
)  # fmt: skip


def cluster() -> Scenario:
    scenario = Scenario(World(0), Load(nodes=2, artifacts=4))
    scenario.prepare()
    return scenario


def test_what_a_mover_does_while_it_is_cut_off_is_told_later():
    scenario = cluster()
    world, machine = scenario.world, scenario.fleet.machines[N2]
    artifact = scenario.artifacts[0]
    machine.cut()
    length = len(world.log)
    assert not machine.read(artifact)
    world.agenda.run(2.0)
    assert machine.read(artifact), "the bytes came from the other node"
    assert len(world.log) == length
    machine.mend()
    assert replica_id(artifact, N2, Tier.DRAM) in world.view.replicas
    assert isinstance(world.log[length].event, OperationIssued)
    assert world.view.nodes[N2].status is NodeStatus.UP
    assert world.view.nodes[N2].epoch == 1


def test_a_node_that_was_given_up_comes_back_with_its_memory():
    scenario = cluster()
    world, machine = scenario.world, scenario.fleet.machines[N2]
    machine.cut()
    world.agenda.run(30.0)
    assert world.view.nodes[N2].status is NodeStatus.LOST
    machine.mend()
    world.agenda.run(60.0)
    node = world.view.nodes[N2]
    assert (node.status, node.epoch) == (NodeStatus.UP, 2)
    assert machine.read(scenario.artifacts[1]), "its memory was never lost"


@pytest.mark.parametrize("seed", range(3))
def test_the_cluster_settles_after_any_cuts_and_crashes(seed):
    world = World(seed)
    scenario = Scenario(world, LOAD)
    scenario.prepare()
    cut: set[NodeId] = set()

    def watch(recorded) -> None:
        if isinstance(recorded.event, ReplicaEvicting):
            assert recorded.event.replica.split(":")[1] not in cut

    world.watchers.append(watch)
    for machine in scenario.fleet.machines.values():
        cut_off, mend = machine.cut, machine.mend
        machine.cut = lambda m=machine, f=cut_off: (cut.add(m.node), f())
        machine.mend = lambda m=machine, f=mend: (cut.discard(m.node), f())
    scenario.run()
    assert {node.status for node in world.view.nodes.values()} == {NodeStatus.UP}
    assert not world.view.open_operations
    assert any(one.type == "node.lost" for one in world.log)
