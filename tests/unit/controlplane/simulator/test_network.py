from random import Random

from tensorcast.controlplane.simulator.agenda import Agenda
from tensorcast.controlplane.simulator.network import CHUNK_S, Network

A, B, C, D = "abcd"


def wires(**rates):
    agenda = Agenda()
    network = Network(agenda, Random(0), latency_s=0.0)
    for node, rate in rates.items():
        network.set_rate(node, rate)
    return agenda, network


def pull(agenda, network, target, sources, size):
    """The moment at which it ends, as a list that is filled then."""
    ended = []
    network.pull(target, sources, size, lambda whole: ended.append((agenda.now_s, whole)))
    return ended


def test_a_pull_takes_what_its_narrowest_end_lets_through():
    agenda, network = wires(a=10.0, b=5.0)
    ended = pull(agenda, network, B, [A], 50)
    agenda.run(100)
    assert ended == [(10.0, True)]


def test_an_uplink_is_shared_and_given_back():
    agenda, network = wires(a=10.0, b=100.0, c=100.0)
    one = pull(agenda, network, B, [A], 50)
    two = pull(agenda, network, C, [A], 100)
    agenda.run(100)
    assert one == [(10.0, True)]
    assert two == [(15.0, True)]


def test_two_sources_give_twice_as_much():
    agenda, network = wires(a=10.0, b=10.0, c=100.0)
    ended = pull(agenda, network, C, [A, B], 100)
    agenda.run(100)
    assert ended == [(5.0, True)]


def test_a_chain_costs_one_transfer_and_a_chunk():
    agenda, network = wires(a=10.0, b=10.0, c=10.0, d=10.0)
    ends = [pull(agenda, network, node, [source], 100) for source, node in ((A, B), (B, C), (C, D))]
    agenda.run(100)
    assert all(10 <= end[0][0] <= 10 + 2 * CHUNK_S for end in ends)


def test_what_breaks_is_told():
    agenda, network = wires(a=10.0, b=10.0)
    ended = pull(agenda, network, B, [A], 100)
    agenda.run(5)
    network.drop(A)
    assert ended == [(5.0, False)]
    network.cut.add(A)
    refused = pull(agenda, network, B, [A], 100)
    network.loss = 1.0
    lost = pull(agenda, network, B, [C], 100)
    agenda.run(100)
    assert (refused, lost) == ([(5.0, False)], [(5.0, False)])
