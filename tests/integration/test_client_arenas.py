"""Tensors made in a segment, and puts that are accepted, against a real mover."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import time

import pytest
import torch

import tensorcast as tc
from stack import running_stack

MIB = 1 << 20
SPEC = {"w": ((1024, 1024), torch.float32), "b": (7,), "half": ((33,), torch.bfloat16)}


@pytest.fixture(scope="module")
def stack():
    with running_stack(None) as running:
        running.start_mover("n1")
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


def fill(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Writes random numbers; what was written."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(first, second) -> bool:
    return list(first) == list(second) and all(torch.equal(first[n], second[n]) for n in first)


def wait_for(what, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def private_bytes() -> int:
    """Memory of this process that it shares with nobody."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) * 1024


def test_a_put_of_made_tensors_copies_nothing_and_they_stay(client):
    before = client.stats().segments
    tensors = client.empty(SPEC)
    written = fill(tensors, 1)
    artifact = client.put(tensors, key="made")
    assert same(client.get("made"), written)
    assert artifact.is_sealed
    assert client.stats().segments == before + 1
    assert client.put(written).id == artifact.id  # the same content, copied
    tensors["w"].zero_()
    assert same(client.get("made"), written)
    assert not tensors["w"].any()


def test_the_bytes_of_a_put_are_not_taken_twice(client):
    tensors = client.empty({"a": (8 * MIB,)})
    tensors["a"].fill_(1)
    before = private_bytes()
    artifact = client.put(tensors)
    found = client.get(artifact)
    assert found["a"].sum() == tensors["a"].sum() == 8 * MIB
    assert private_bytes() - before < 4 * MIB


def test_others_than_exactly_these_are_copied(client):
    tensors = client.empty(SPEC)
    written = fill(tensors, 2)
    part = client.put({"w": tensors["w"]}, key="part")
    assert part.is_sealed
    renamed = client.put({f"x.{n}": t for n, t in tensors.items()}, key="renamed")
    assert renamed.is_sealed
    client.put(tensors, key="whole")
    assert same(client.get("whole"), written)
    assert torch.equal(client.get("part")["w"], written["w"])
    again = client.put(tensors, key="again")  # after its put it is ordinary memory
    assert again.is_sealed
    assert again.id == client.put(written).id


def test_like_other_tensors_and_like_an_artifact(client):
    tied = torch.arange(6.0)
    artifact = client.put({"a": tied, "b": tied.view(2, 3)}, key="tied")
    made = client.empty(artifact.index)
    made["a"].copy_(tied + 1)
    assert torch.equal(made["b"], tied.view(2, 3) + 1)
    client.put(made, key="tied/made")
    assert torch.equal(client.get("tied/made")["b"], tied.view(2, 3) + 1)
    like = client.empty({"a": tied.to("meta"), "b": tied.view(2, 3)})
    assert {name: tensor.shape for name, tensor in like.items()} == {"a": (6,), "b": (2, 3)}
    assert client.empty({}) == {}
    assert client.empty({"none": (0, 5)})["none"].shape == (0, 5)


def test_memory_that_is_not_put_goes_back(client):
    before = client.stats()
    tensors = client.empty(SPEC)
    during = client.stats()
    assert (during.puts_open, during.readers) == (before.puts_open + 1, before.readers + 1)
    del tensors
    gc.collect()
    wait_for(lambda: client.stats().used_bytes == before.used_bytes)
    wait_for(lambda: client.stats().readers == before.readers)
    assert client.stats().puts_open == before.puts_open


def test_more_than_the_node_has_is_told(client):
    with pytest.raises(tc.OutOfCapacity):
        client.empty({"a": (1 << 30,)})
    assert client.stats().puts_open == 0


@pytest.mark.parametrize("key", [None, "orphan"])
def test_a_producer_that_is_killed_leaves_nothing_but_what_it_put(stack, client, key):
    before = client.stats()
    child = multiprocessing.get_context("fork").Process(target=produce_and_die, args=(stack, key))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    wait_for(lambda: client.stats().readers == before.readers)
    wait_for(lambda: client.stats().puts_open == before.puts_open)
    if key is not None:
        assert client.get(key)["a"].sum() == 5 * MIB
        assert client.stats().used_bytes == before.used_bytes + 4 * MIB
    else:
        wait_for(lambda: client.stats().used_bytes == before.used_bytes)


def produce_and_die(stack, key) -> None:
    torch.set_num_threads(1)  # the threads of torch itself do not survive a fork
    client = stack.connect()
    tensors = client.empty({"a": (MIB,)})
    tensors["a"].fill_(5)
    if key is not None:
        client.put(tensors, key=key)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_key_that_is_taken_is_told_and_the_tensors_can_be_put_again(client):
    client.put({"a": torch.ones(3)}, key="taken")
    tensors = client.empty(SPEC)
    written = fill(tensors, 3)
    with pytest.raises(tc.Conflict):
        client.put(tensors, key="taken")
    before = client.stats().segments
    client.put(tensors, key="free")  # still without a copy
    assert client.stats().segments == before
    assert same(client.get("free"), written)


def test_a_copying_put_can_be_accepted_too(client):
    tensors = {"a": torch.arange(3_000_000)}
    artifact = client.put(tensors, key="later", wait=False)
    tensors["a"].zero_()
    assert client.get("later")["a"][-1] == 2_999_999
    assert artifact.kind == "weights"
    assert artifact.labels == {}
    assert artifact.wait(5).is_sealed
    assert artifact.id in repr(artifact)


def test_wait_seals_at_once(client):
    tensors = client.empty(SPEC)
    fill(tensors, 4)
    assert client.put(tensors, wait=True).is_sealed


async def test_awaitable_alike(stack):
    async with tc.connect_async(stack.context()) as client:
        tensors = await client.empty(SPEC)
        written = fill(tensors, 5)
        artifact = await client.put(tensors, key="async", labels={"step": "5"})
        if not artifact.is_sealed:
            with pytest.raises(tc.InvalidArgument, match="not sealed yet"):
                _ = artifact.id
            assert "not sealed yet" in repr(artifact)
        assert same(await client.get("async"), written)
        assert (await artifact.wait()).id == artifact.id
        assert artifact.labels == {"step": "5"}
        assert same(await artifact.tensors(), written)
        first, second = await asyncio.gather(
            client.put({"a": torch.ones(5)}, wait=False), client.put({"a": torch.ones(5)})
        )
        assert (await first.wait()).id == second.id


def test_another_client_waits_for_the_key(stack, client):
    tensors = client.empty({"a": (4 * MIB,)})
    tensors["a"].fill_(2)
    with stack.connect() as other:
        client.put(tensors, key="shared")
        assert other.get("shared")["a"].sum() == 8 * MIB


def test_a_forked_child_copies_what_its_parent_made(client):
    tensors = client.empty({"a": (1000,)})
    tensors["a"].fill_(2)
    child = multiprocessing.get_context("fork").Process(target=put_in_child, args=(client, tensors))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert client.get("from-child")["a"].sum() == 2000
    client.put(tensors, key="from-parent").wait()
    assert client.stats().puts_open == 0


def put_in_child(client, tensors) -> None:
    torch.set_num_threads(1)  # the threads of torch itself do not survive a fork
    client.put(tensors, key="from-child")
    os._exit(0)
