"""Broadcasts in the fluid model take about as long as the best plan could make them."""

from __future__ import annotations

from random import Random

import pytest

from simulation.flows import STEP_S, Broadcast, least_s, share

CHUNKS = 64


def spread(broadcast: Broadcast, random: Random, count: int, bandwidths, racks: int = 0):
    """Targets with bandwidths by chance, in racks by chance."""
    return [
        broadcast.add(
            f"n{i:02}", random.choice(bandwidths), f"r{random.randrange(racks)}" if racks else ""
        )
        for i in range(count)
    ]


def test_links_are_shared_fairly():
    flows = [("s", "a"), ("s", "b"), ("t", "b")]
    rates = share(iter(flows), {"s": 2.0, "t": 9.0, "a": 0.5, "b": 3.0})
    assert rates == {("s", "a"): 0.5, ("s", "b"): 1.5, ("t", "b"): 1.5}


@pytest.mark.parametrize("count", [1, 4, 8, 30])
def test_a_chain_takes_one_transfer_and_a_chunk_for_each_step(count):
    broadcast = Broadcast(CHUNKS)
    source = broadcast.add("s", 1.0)
    targets = spread(broadcast, Random(0), count, [1.0])
    broadcast.hold(source)
    broadcast.request(*targets)
    took = broadcast.run(broadcast.is_over)
    assert took <= CHUNKS + (count - 1) * (1 + STEP_S) + STEP_S


@pytest.mark.parametrize("seed", range(20))
def test_mixed_bandwidths_and_racks(seed):
    random = Random(seed)
    broadcast = Broadcast(CHUNKS)
    sources = [broadcast.add(f"s{i}", random.choice([1.0, 2.0, 4.0])) for i in range(1 + seed % 3)]
    targets = spread(broadcast, random, random.randint(2, 16), [1.0, 2.0, 4.0], racks=seed % 4)
    broadcast.hold(*sources)
    broadcast.request(*targets)
    took = broadcast.run(broadcast.is_over)
    best = least_s(
        CHUNKS, [broadcast.bandwidth[s] for s in sources], [broadcast.bandwidth[t] for t in targets]
    )
    assert took <= 1.05 * best + len(targets)


def test_a_wide_fan_out_of_few_chunks_goes_down_a_tree():
    broadcast = Broadcast(8)
    source = broadcast.add("s", 1.0)
    targets = spread(broadcast, Random(0), 60, [1.0])
    broadcast.hold(source)
    broadcast.request(*targets)
    assert broadcast.run(broadcast.is_over) <= 40, "a chain would take 68"


@pytest.mark.parametrize("seed", range(20))
def test_relays_that_die_cost_little(seed):
    random = Random(seed)
    broadcast = Broadcast(CHUNKS)
    source = broadcast.add("s", 1.0)
    targets = spread(broadcast, random, 10, [1.0], racks=seed % 3)
    broadcast.hold(source)
    broadcast.request(*targets)
    for victim in random.sample(targets, 3):
        broadcast.wait(random.randint(2, 15))
        if victim in broadcast.have:
            broadcast.kill(victim)
    took = broadcast.run(broadcast.is_over)
    assert len(broadcast.done_s) == 7
    assert took <= 1.2 * CHUNKS


@pytest.mark.parametrize("seed", range(20))
def test_late_joiners_disturb_nobody(seed):
    random = Random(seed)
    broadcast = Broadcast(CHUNKS)
    source = broadcast.add("s", 1.0)
    early = spread(broadcast, random, 4, [1.0])
    late = [broadcast.add(f"late{i}", 1.0) for i in range(4)]
    broadcast.hold(source)
    broadcast.request(*early)
    joined = {}
    for one in late:
        broadcast.wait(random.randint(1, 30))
        broadcast.request(one)
        joined[one] = broadcast.at_s
    broadcast.run(broadcast.is_over)
    slack = 8 * (1 + STEP_S) + STEP_S
    assert max(broadcast.done_s[one] for one in early) <= CHUNKS + slack
    for one in late:
        assert broadcast.done_s[one] - joined[one] <= CHUNKS + slack, "as if it were alone"
