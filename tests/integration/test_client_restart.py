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
from tensorcast.client import Context


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


def test_an_absent_nats_is_told_without_its_password(stack):
    context = Context(cluster="test", nats_url="nats://user:secret@127.0.0.1:9", nodes={})
    started = time.monotonic()
    with tc.connect(context) as client, pytest.raises(tc.Unavailable) as caught:
        client.artifacts()
    assert time.monotonic() - started < 2
    assert "NATS cannot be reached" in caught.value.message
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_told(stack):
    url = stack.nats.url.replace("secret", "wrong")
    with (
        tc.connect(Context(cluster="test", nats_url=url)) as client,
        pytest.raises(tc.Unavailable, match="NATS cannot be reached"),
    ):
        client.artifacts()


def test_nats_that_comes_back_is_used_again(stack):
    with stack.connect() as client:
        with pytest.raises(tc.Unavailable, match="control plane is not running"):
            client.artifacts()
        stack.nats.kill()
        started = time.monotonic()
        with pytest.raises((tc.Unavailable, tc.Timeout)):
            client.artifacts()
        assert time.monotonic() - started < 12
        stack.nats.start()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with pytest.raises(tc.Unavailable) as caught:
                client.artifacts()
            if "control plane is not running" in caught.value.message:
                break
        assert "control plane is not running" in caught.value.message
