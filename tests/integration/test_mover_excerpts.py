"""Readers that need some bytes of an artifact only: no other bytes come to their node."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
import torch

from stack import running_stack
from tensorcast.client import TensorCastError
from tensorcast.schema.chunks import ByteRange

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1 << 20
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="module")
def cluster():
    """Three nodes; four tensors of 4 MiB are on the first."""
    with running_stack(None) as running:
        for node in ("n1", "n2", "n3"):
            running.start_mover(node, dram_bytes=128 * MIB)
        yield running


@pytest.fixture(scope="module")
def tensors():
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(MIB, generator=generator) for name in NAMES}


@pytest.fixture(scope="module")
def key(cluster, tensors):
    with cluster.connect("n1") as client:
        client.put(tensors, key="excerpts@1")
    return "excerpts@1"


def extent(arrival, name) -> ByteRange:
    (spec,) = (spec for spec in arrival.index if spec.name == name)
    return spec.extent


def seen(arrival, name) -> np.ndarray:
    place = extent(arrival, name)
    return np.frombuffer(arrival.memory, np.float32)[place.offset // 4 : place.end // 4]


def test_only_what_is_asked_for_comes(cluster, key, tensors):
    with cluster.connect("n2") as client:
        arrival = client.follow(key, excerpt=True)
        assert (arrival.is_excerpt, arrival.here_bytes) == (True, 0)
        arrival.bring([extent(arrival, "b")])
        assert (seen(arrival, "b") == tensors["b"].numpy()).all()
        assert 4 * MIB <= arrival.here_bytes <= 5 * MIB
        assert not seen(arrival, "d").any()  # a new segment: nothing was ever written there
        arrival.bring([extent(arrival, "b"), extent(arrival, "d")])
        assert (seen(arrival, "d") == tensors["d"].numpy()).all()
        assert not arrival.is_whole


def test_readers_of_a_node_share_what_has_come(cluster, key, tensors):
    with cluster.connect("n3") as client, cluster.connect("n3") as other:
        first, second = client.follow(key, excerpt=True), other.follow(key, excerpt=True)
        first.bring([extent(first, "a")])
        assert (seen(second, "a") == tensors["a"].numpy()).all()
        second.bring([extent(second, "a"), extent(second, "c")])
        assert (seen(first, "c") == tensors["c"].numpy()).all()


def test_a_part_is_no_replica_and_goes_with_its_last_reader(cluster, key):
    with cluster.connect("n2") as client:
        gc.collect()
        wait_for(lambda: client.stats().used_bytes == 0)
        arrival = client.follow(key, excerpt=True)
        arrival.bring([extent(arrival, "a")])
        assert client.stats().replicas == 0
        assert client.stats().used_bytes >= 16 * MIB
        del arrival
        gc.collect()
        wait_for(lambda: client.stats().used_bytes == 0)


def test_a_node_that_has_all_of_it_gives_its_replica(cluster, key):
    with cluster.connect("n1") as client:
        arrival = client.follow(key, excerpt=True)
        assert (arrival.is_excerpt, arrival.is_whole) == (False, True)
        arrival.bring([extent(arrival, "a")])


def test_who_reads_all_of_it_is_not_held_up_by_a_part(cluster, key, tensors):
    with cluster.connect("n2") as client:
        arrival = client.follow(key, excerpt=True)
        arrival.bring([extent(arrival, "a")])
        found = client.get(key)
        assert all(torch.equal(found[name], tensors[name]) for name in NAMES)
        arrival.bring([extent(arrival, "b")])
        assert (seen(arrival, "b") == tensors["b"].numpy()).all()


def test_bytes_that_nobody_has_are_an_error_and_leave_nothing(cluster):
    with cluster.connect("n3") as client:
        with cluster.connect("n2") as other:
            artifact = other.put({"x": torch.ones(2 * MIB)}).id
        arrival = client.follow(artifact, excerpt=True)
        cluster.kill("n2")
        with pytest.raises(TensorCastError):
            arrival.bring([extent(arrival, "x")], timeout=20)
        del arrival
        gc.collect()
        wait_for(lambda: client.stats().used_bytes == 0)


def wait_for(is_so) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
