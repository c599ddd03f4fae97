"""Engines that are known to a real control plane, and versions of weights that are published."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import torch

from stack import running_stack
from tensorcast.engines import presence as presence_module
from tensorcast.engines.presence import Presence
from tensorcast.schema.api import AuditQuery, ReplayQuery
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound, Rejected, Timeout

pytestmark = pytest.mark.slow
WAIT_S = 20.0


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        running.start_mover("n1")
        running.start_controlplane()
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


def make(stack, engine, life="one", **more):
    return Presence(stack.context(), kind="vllm", engine=engine, life=life, **more)


def wait_until(predicate, timeout_s=WAIT_S):
    deadline = time.monotonic() + timeout_s
    while not (found := predicate()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


def state(client, engine):
    try:
        return client.engine(engine).state
    except NotFound:
        return "unknown"


def test_an_engine_is_known_with_its_weights_and_leaves(stack, client):
    artifact = client.put({"w": torch.arange(1000)}, key="served@1")
    with make(stack, "e1", url="http://h:1", model="m", load=lambda: {"cache_usage": 0.5}) as one:
        before = one.serve("served@1", artifact.id)
        one.wait_recorded(WAIT_S)
        found = client.engine("http://h:1")
        assert (found.engine, found.state, found.node, found.model) == ("e1", "up", "n1", "m")
        assert (found.version, found.artifact, found.since) == (
            "served@1",
            artifact.id,
            before.since,
        )
        assert "e1" in [engine.engine for engine in client.engines()]
        wait_until(lambda: client.engine("e1").load == {"cache_usage": 0.5})
        after = one.serve("disk", None)
        one.wait_recorded(WAIT_S)
        assert client.weights_of("e1", at=before.since).version == "served@1"
        assert client.weights_of("e1", at=after.since.timestamp() + 1).version == "disk"
        one.describe(url="http://h:2")
        assert wait_until(lambda: client.engine("e1").url == "http://h:2")
        assert client.weights_of("e1").version == "disk"
    assert state(client, "e1") == "left"
    history = client.api.audit(AuditQuery(what="e1"))
    assert [event.type for event in history] == [
        "engine.registered",
        "engine.serving",
        "engine.serving",
        "engine.registered",
        "engine.left",
    ]
    assert {event.actor for event in history} == {"engine:e1"}
    assert history[1].seq in [event.seq for event in artifact.history()]
    (then,) = client.api.replay(
        ReplayQuery(to_seq=history[1].seq, kind="engine", what="e1")
    ).engines
    assert (then.version, then.state) == ("served@1", "up")


def test_a_silent_engine_is_lost_and_comes_back_with_its_weights(stack, client, monkeypatch):
    monkeypatch.setattr(presence_module, "LOOK_S", 0.2)
    one = make(stack, "quiet", ttl_s=1.0)
    one._pulse = lambda _: _nothing()
    with one:
        served = one.serve("v1", None)
        one.wait_recorded(WAIT_S)
        wait_until(
            lambda: (
                "engine.lost"
                in [event.type for event in client.api.audit(AuditQuery(what="quiet"))]
            )
        )
        del one._pulse  # heard again
        wait_until(lambda: (found := client.engine("quiet")).state == "up" and found.version)
        span = client.weights_of("quiet", at=served.since + timedelta(seconds=0.5))
        assert (span.version, span.since, span.until) == ("v1", served.since, None)


async def _nothing():
    pass


def test_another_life_takes_the_name_and_the_first_one_is_told(stack, client, caplog):
    with make(stack, "twin") as first:
        first.serve("a", None)
        first.wait_recorded(WAIT_S)
        with make(stack, "twin", "two") as second:
            second.serve("b", None)
            second.wait_recorded(WAIT_S)
            first.serve("c", None)
            with caplog.at_level(logging.ERROR), pytest.raises(Rejected, match="taken the name"):
                first.wait_recorded(WAIT_S)
            assert client.weights_of("twin").version == "b"
    assert "taken the name twin" in caplog.text
    assert [one.version for one in client.engine("twin").served] == ["a", "b"]


def test_without_a_control_plane_an_engine_goes_on_and_is_heard_later(stack, client):
    with make(stack, "patient") as one:
        wait_until(lambda: state(client, "patient") == "up")
        stack.kill("controlplane")
        try:
            since = one.serve("v1", None).since
            with pytest.raises(Timeout, match="not on record"):
                one.wait_recorded(0.5)
        finally:
            stack.start_controlplane()
        one.wait_recorded(WAIT_S)
        assert client.weights_of("patient").since == since


# ---- publish


def weights(seed):
    return {"w": torch.randn(1000, generator=torch.Generator().manual_seed(seed))}


def test_versions_count_and_the_name_follows(client):
    assert [client.publish("policy", weights(n)) for n in (1, 2, 3)] == [
        "policy@1",
        "policy@2",
        "policy@3",
    ]
    assert torch.equal(client.get("policy")["w"], weights(3)["w"])
    assert torch.equal(client.get("policy@2")["w"], weights(2)["w"])
    moved = client.api.key("policy")
    assert (moved.version, moved.artifact) == (3, client.api.key("policy@3").artifact)


def test_the_same_weights_again_are_another_version(client):
    assert client.publish("same", weights(1)) == "same@1"
    assert client.publish("same", weights(1)) == "same@2"
    assert client.publish("same", weights(2)) == "same@3"
    assert client.api.key("same").artifact == client.api.key("same@3").artifact


def test_a_name_that_somebody_else_moved_does_not_lose_a_version(client):
    client.publish("back", weights(1))
    client.publish("back", weights(2))
    client.api.move_key("back", "back@1", expect="back@2")
    assert client.publish("back", weights(3)) == "back@4"
    assert client.api.key("back").version == 4


def test_of_those_who_publish_at_the_same_time_each_gets_a_version_of_its_own_or_a_conflict(client):
    def publish(seed):
        try:
            return client.publish("raced", weights(seed))
        except Conflict:
            return None

    with ThreadPoolExecutor(4) as threads:
        made = [one for one in threads.map(publish, range(12)) if one]
    assert made
    assert len(set(made)) == len(made)
    for version in made:
        assert client.api.key(version).artifact
    newest = client.api.key("raced").artifact
    assert newest in {client.api.key(version).artifact for version in made}


@pytest.mark.parametrize("name", ["", "a@1", " a", 7])
def test_names_that_cannot_be_published(client, name):
    with pytest.raises(InvalidArgument):
        client.publish(name, weights(1))


def test_times_that_are_none(client):
    for wrong in (datetime(2030, 1, 1), "yesterday", 1e30):
        with pytest.raises(InvalidArgument):
            client.weights_of("e1", at=wrong)
    with pytest.raises(NotFound):
        client.weights_of("nobody", at=datetime.now(UTC))
