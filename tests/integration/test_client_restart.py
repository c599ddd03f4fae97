"""What a client sees when its mover dies and comes back. Here nobody keeps the mover's memory for
it, so its replicas in memory are lost; the tensors that were handed out are not.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

import tensorcast as tc
from stack import running_stack


@pytest.fixture
def stack():
    with running_stack(None) as running:
        running.start_mover("n1")
        yield running


def test_tensors_survive_their_mover_and_the_client_finds_the_next(stack):
    tensor = torch.arange(1_000_000.0)
    with stack.connect() as client:
        client.put({"a": tensor}, key="before")
        found = client.get("before")
        stack.kill("n1")
        assert torch.equal(found["a"], tensor)
        found["a"][0] = 5
        restart = threading.Timer(0.3, stack.start_mover, ["n1"])
        restart.start()
        client.put({"b": tensor}, key="after")
        restart.join()
        assert torch.equal(client.get("after")["b"], tensor)
        assert found["a"][0] == 5


def test_a_put_that_loses_its_mover_fails_whole(stack):
    killed = threading.Event()

    def kill(done: int, total: int) -> None:
        if not killed.is_set():
            killed.set()
            stack.kill("n1")

    with stack.connect() as client:
        with pytest.raises(tc.Unavailable, match="closed the connection") as caught:
            client.put({"a": torch.ones(8_000_000)}, key="lost", progress=kill)
        assert caught.value.retryable
        assert caught.value.node == "n1"
        stack.start_mover("n1")
        with pytest.raises(tc.NotFound):
            client.get("lost", timeout=5)
        client.put({"a": torch.ones(8_000_000)}, key="lost")


def test_a_mover_that_stays_away_is_told(stack):
    with stack.connect() as client:
        client.put({"a": torch.ones(3)}, key="k")
        stack.kill("n1")
        started = time.monotonic()
        with pytest.raises(tc.Unavailable, match="node n1 is not running"):
            client.get("k")
        assert time.monotonic() - started < 10
