"""Real engines, watched: the cluster knows which holds which prefix, and their KV is published,
hydrated and evicted from outside."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

import engine
import tensorcast as tc
from cluster import TCCTL, Cluster, running_cluster
from models import tiny_model
from tensorcast.engines.vllm import Instance

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]

BLOCK = 128
PATIENCE_S = 30.0


def prompt(length: int, seed: int) -> list[int]:
    """Token ids that no other seed has."""
    chosen = random.Random(1000 + seed)
    return [chosen.randrange(5, 4000) for _ in range(length)]


def flags(folder: Path, node: str) -> tuple[str, ...]:
    connector = {
        "kv_connector": "TensorCastConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"node": node},
    }
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    return (
        *("--kv-transfer-config", json.dumps(connector)),
        *("--kv-events-config", json.dumps(events)),
        *("--prefix-caching-hash-algo", "sha256_cbor"),
        *("--weight-transfer-config", '{"backend":"tensorcast"}'),
    )


@dataclass
class Watched:
    """Two engines on two nodes, each with its agent."""

    cluster: Cluster
    engines: tuple[engine.Engine, engine.Engine]
    agents: dict[int, subprocess.Popen[bytes]]
    logs: list[Path]

    def watch(self, number: int) -> None:
        """Starts the agent of an engine as a user does."""
        with self.logs[number].open("ab") as log:
            command = [TCCTL, "engine", "watch", self.engines[number].url, "--period", "500ms"]
            command += ["--engine", f"e{number + 1}", "--node", f"n{number + 1}"]
            env = dict(self.cluster.env)
            self.agents[number] = subprocess.Popen(command, env=env, stderr=log)

    def end_agent(self, number: int) -> None:
        self.agents[number].kill()
        self.agents[number].wait()


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    folder = Path(tempfile.mkdtemp(prefix="tc-watch-"))
    started: list[engine.Engine] = []
    try:
        with running_cluster(folder / "cluster", 2) as cluster:
            env = {k: v for k, v in cluster.env.items() if k.startswith("TENSORCAST_")}
            for number in (1, 2):
                place = folder / f"e{number}"
                place.mkdir()
                more = {"TENSORCAST_ENGINE": f"e{number}"}
                started.append(
                    engine.launch(tiny_model(), place, *flags(place, f"n{number}"), env=env | more)
                )
            for one in started:
                one.wait_ready()
            logs = [folder / "agent1.log", folder / "agent2.log"]
            watched = Watched(cluster, tuple(started), {}, logs)
            for number in (0, 1):
                watched.watch(number)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in env.items():
                    patch.setenv(name, value)
                yield watched
            for number in (0, 1):
                watched.end_agent(number)
    finally:
        for one in started:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)


def until(ask, expected):
    """Waits until an answer is as expected."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := ask()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def holders(client, ids):
    return [(one.engine, one.tokens, one.state) for one in client.api.holders(ids)]


def test_the_cluster_knows_who_holds_which_prefix(watched: Watched):
    ids = prompt(1000, 1)
    with tc.connect() as client:
        watched.engines[0].generate(ids, 4)
        until(lambda: holders(client, ids), [("e1", 7 * BLOCK, "exact")])
        watched.engines[0].generate([*ids, *prompt(300, 2)], 4)
        until(lambda: holders(client, [*ids, *prompt(300, 2)]), [("e1", 10 * BLOCK, "exact")])
        assert watched.engines[0].ask("/reset_prefix_cache", method="POST") is not None
        watched.engines[0].generate(prompt(200, 3), 1)  # events come with the next step
        until(lambda: holders(client, prompt(200, 3)), [("e1", BLOCK, "exact")])


def test_what_is_evicted_for_others_is_known(watched: Watched):
    """The cache has 512 blocks: after 600 of others nothing of the first prompt is left."""
    ids = prompt(600, 10)
    with tc.connect() as client:
        watched.engines[1].generate(ids, 1)
        until(lambda: holders(client, ids), [("e2", 4 * BLOCK, "exact")])
        for seed in range(20):
            watched.engines[1].generate(prompt(3900, 100 + seed), 1)
        until(lambda: holders(client, ids), [])
        last = prompt(3900, 119)
        until(lambda: holders(client, last), [("e2", 30 * BLOCK, "exact")])


def test_an_agent_that_died_is_followed_by_one_that_knows_all(watched: Watched):
    ids = prompt(700, 20)
    with tc.connect() as client:
        watched.end_agent(0)
        watched.engines[0].generate(ids, 1)
        watched.watch(0)
        until(lambda: holders(client, ids), [("e1", 5 * BLOCK, "exact")])


def test_the_load_is_a_signal(watched: Watched):
    with tc.connect() as client, client.signals("engine.load.e1") as signals:
        for seed in range(3):
            watched.engines[0].generate(prompt(300, 30 + seed), 8)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            signal = signals.next(PATIENCE_S)
            assert signal is not None
            if signal.data.get("finished", 0) >= 1:
                break
        assert signal.data["engine"] == "e1"
        assert signal.data["ttft_s"] > 0
        assert signal.data["blocks_state"] == "exact"
        assert 0 <= signal.data["cache_usage"] <= 1
        # What its agent says is the engine's own word, not another engine.
        assert {one.engine for one in client.api.engines()} == {"e1", "e2"}


WATCHED = re.compile(r"process (\d+) watches e3 at")


def test_an_engine_starts_its_agent_itself(watched: Watched, start_engine):
    place = Path(tempfile.mkdtemp(prefix="tc-e3-"))  # short, for the sockets
    env = {k: v for k, v in watched.cluster.env.items() if k.startswith("TENSORCAST_")}
    env |= {"TENSORCAST_ENGINE": "e3", "TENSORCAST_NODE": "n1", "TENSORCAST_WATCH": "1"}
    one = start_engine(tiny_model(), *flags(place, "n1"), env=env)
    ids = prompt(700, 60)
    with tc.connect() as client:
        one.generate(ids, 4)
        until(lambda: holders(client, ids), [("e3", 5 * BLOCK, "exact")])
        until(lambda: client.api.engine("e3").load.get("running"), 0.0)
        assert client.api.engine("e3").url == one.url
        (pid,) = WATCHED.findall(one.log_text())
        one.process.terminate()
        until(lambda: client.api.engine("e3").state, "left")
        until(lambda: is_running(int(pid)), False)
    shutil.rmtree(place)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False


async def test_kv_moves_between_engines_by_operations(watched: Watched):
    ids = prompt(1000, 40)
    blocks, tokens = 7, 7 * BLOCK
    async with tc.connect_async() as client:
        urls = [one.url for one in watched.engines]
        first = await Instance.meet(client, urls[0], engine="e1")
        second = await Instance.meet(client, urls[1], engine="e2")

        named = await first.manifest(ids)
        assert (await second.manifest(ids)).keys() == named.keys()
        assert len(named.hashes) == blocks

        done = await first.publish(ids)
        assert (done.tokens, done.blocks) == (tokens, blocks)
        assert done.manifest.keys() == named.keys(), "vLLM's own hashes are ours"

        brought = await second.hydrate(ids, ticket=done.ticket)
        assert (brought.tokens, brought.found) == (tokens, tokens)
        await settle(client, ids, {"e1": tokens, "e2": tokens})
        where = await second.locate(ids)
        assert (where.engine_tokens, where.known) == (tokens, "exact")
        assert all(where.in_layer)

        assert (await first.evict(ids)).tokens == tokens
        await settle(client, ids, {"e2": tokens})
        assert (await first.evict(ids)).tokens == 0
        answer = await asyncio.to_thread(watched.engines[1].generate, ids, 8)
        again = await asyncio.to_thread(watched.engines[0].generate, ids, 8)
        assert answer.tokens == again.tokens


async def settle(client, ids, expected):
    """Waits until these engines hold so much of a prompt."""
    found = None
    for _ in range(int(PATIENCE_S * 10)):
        found = {one.engine: one.tokens for one in await client.api.holders(ids)}
        if found == expected:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(found)


def hand_over(ids: list[int]) -> tc.Plan:
    """Publish on the first engine, bring that to the other one's node, hydrate that engine."""
    plan = tc.Plan("hand a prompt over", deadline=300)
    published = plan.call(
        "publish",
        engine="e1",
        verb="publish",
        arguments={"prompt": ids},
        returns={"ticket": "mapping", "tokens": "integer"},
        timeout=60,
    )
    prefetched = plan.call(
        "prefetch",
        engine="e2",
        verb="prefetch",
        arguments={"prompt": ids, "ticket": published["ticket"]},
        returns={"tokens": "integer"},
        timeout=60,
    )
    hydrated = plan.call(
        "hydrate",
        engine="e2",
        verb="hydrate",
        arguments={"prompt": ids},
        returns={"tokens": "integer", "found": "integer"},
        after=prefetched,
        timeout=60,
    )
    return plan.gives(
        published=published["tokens"], brought=prefetched["tokens"], found=hydrated["found"]
    )


def test_a_plan_hands_the_kv_of_a_prompt_over(watched: Watched):
    ids = prompt(1000, 70)
    tokens = 7 * BLOCK
    with tc.connect() as client:
        run = client.apply(hand_over(ids)).wait(120)
        assert run.outputs == {"published": tokens, "brought": tokens, "found": tokens}
        until(lambda: holders(client, ids), [("e1", tokens, "exact"), ("e2", tokens, "exact")])
    computed = watched.engines[0].generate(ids, 8, cache_salt="alone")
    found = watched.engines[1].generate(ids, 8)
    assert (found.tokens, found.cached_tokens) == (computed.tokens, tokens)


def carry(ids: list[int]) -> tc.Plan:
    """The same by an artifact, which an operation brings to the other node, as it does weights."""
    plan = tc.Plan("carry a prompt over", deadline=300)
    published = plan.call(
        "publish",
        engine="e1",
        verb="publish",
        arguments={"prompt": ids, "as_artifact": True},
        returns={"artifact": "artifact"},
        timeout=60,
    )
    prefetched = plan.operation("prefetch", artifact=published["artifact"], node="n2")
    hydrated = plan.call(
        "hydrate",
        engine="e2",
        verb="hydrate",
        arguments={"artifact": prefetched["artifact"]},
        returns={"found": "integer"},
        timeout=60,
    )
    return plan.gives(found=hydrated["found"], artifact=published["artifact"])


def test_the_kv_of_a_prompt_is_an_artifact_too(watched: Watched):
    ids = prompt(1000, 80)
    tokens = 7 * BLOCK
    with tc.connect() as client:
        run = client.apply(carry(ids)).wait(120)
        assert run.outputs["found"] == tokens
        artifact = str(run.outputs["artifact"])
        computed = watched.engines[0].generate(ids, 8, cache_salt="alone")
        found = watched.engines[1].generate(ids, 8)
        assert (found.tokens, found.cached_tokens) == (computed.tokens, tokens)

        plan = tc.Plan("forget it")
        for name in ("e1", "e2"):
            plan.call(
                f"evict-{name}",
                engine=name,
                verb="evict",
                arguments={"artifact": artifact, "layer": True},
                returns={"tokens": "integer"},
            )
        client.apply(plan).wait(120)
        until(lambda: holders(client, ids), [])
        assert watched.engines[0].generate(ids, 8).cached_tokens == 0


def ask(client: tc.Client, verb: str, engine: str = "e1", **arguments: object) -> dict:
    """What an engine answers to one call."""
    plan = tc.Plan("ask")
    returns = {"version": "text"} if verb in ("stage", "switch", "unstage") else {}
    called = plan.call(
        "call", engine=engine, verb=verb, arguments=arguments, returns=returns, timeout=60
    )
    if returns:
        plan.gives(version=called["version"])
    return dict(client.apply(plan).wait(120).outputs)


def test_what_makes_no_sense_is_answered_by_a_sentence(watched: Watched):
    with tc.connect() as client:
        for verb, arguments, words in (
            ("dance", {}, "cannot 'dance'"),
            ("publish", {}, "not said which prompt"),
            ("publish", {"prompt": [1], "artifact": "a"}, "not said which prompt"),
            ("publish", {"prompt": [-1]}, "cannot be understood"),
            ("hydrate", {"artifact": "nowhere"}, "nowhere"),
            ("publish", {"prompt": [5] * 9000}, "refuses the prompt"),
            ("stage", {"artifact": "latest"}, "no id of an artifact"),
            ("stage", {"artifact": "0" * 40}, "0" * 40),
            ("switch", {"version": "v"}, r"\w"),
        ):
            with pytest.raises(tc.TensorCastError, match=words):
                ask(client, verb, **arguments)
        client.put(
            {"x": load_file(tiny_model() / "model.safetensors")["model.norm.weight"]}, key="x"
        )
        with pytest.raises(tc.InvalidArgument, match="no KV of a prompt"):
            ask(client, "hydrate", artifact=client.artifact("x").id)


def test_a_plan_rolls_weights_out(watched: Watched):
    """Both engines have the new weights before one goes over to them."""
    ids = prompt(300, 90)
    new = load_file(tiny_model(1) / "model.safetensors")
    before = [one.generate(ids, 8).tokens for one in watched.engines]
    with tc.connect() as client:
        version = client.publish("rolled", new)
        artifact = client.artifact(version).id
        plan = tc.Plan("roll out", deadline=300)
        staged = [
            plan.call(
                f"stage-{name}",
                engine=name,
                verb="stage",
                arguments={"artifact": artifact, "version": version},
                timeout=60,
            )
            for name in ("e1", "e2")
        ]
        assert len(staged) == 2
        for name in ("e1", "e2"):
            plan.call(
                f"switch-{name}",
                engine=name,
                verb="switch",
                arguments={"version": version},
                after=staged,
                timeout=60,
            )
        client.apply(plan).wait(200)
        assert ask(client, "switch", version=version) == {"version": version}, "it is there"
        for one, old in zip(watched.engines, before, strict=True):
            assert one.generate(ids, 8).tokens != old
            assert client.weights_of(one.url, at=time.time()).version == version
        assert ask(client, "stage", artifact=artifact)["version"] == artifact
        assert ask(client, "unstage")["version"] == version
