"""New weights for a real vLLM that serves: all of them or none, and the log says which."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from safetensors.torch import load_file

import engine as engines
from models import tiny_model
from stack import running_stack
from tensorcast.engines.vllm.updates import EngineServer, Pause, Session, update_engines
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.errors import InvalidArgument, NotFound, TensorCastError, Unavailable

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]
PROMPTS = tuple(f"{word} the quick brown fox jumps over the lazy dog " * 4 for word in "abc")
SEEDS = (0, 1)
TRANSFER = ("--weight-transfer-config", '{"backend":"tensorcast"}')
FAULTS = ("--worker-extension-cls", "faults.Faults")
LOADED = ("--load-format", "tensorcast", "--model-loader-extra-config", '{"key":"tiny"}')
HERE = str(Path(__file__).parent)


def weights(seed):
    return load_file(tiny_model(seed) / "model.safetensors")


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        running.start_mover("n1", dram_bytes=512 << 20)
        running.start_controlplane()
        with running.connect() as client:
            client.put(tiny_model(0), key="tiny")
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What each version makes of each prompt, by vLLM's own loader."""
    folder = tmp_path_factory.mktemp("references")
    started = [engines.launch(tiny_model(seed), folder / str(seed)) for seed in SEEDS]
    try:
        return [
            {prompt: one.wait_ready().generate(prompt).tokens for prompt in PROMPTS}
            for one in started
        ]
    finally:
        for one in started:
            one.stop()


def surroundings(stack, name, **more):
    return {
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_NATS_URL": stack.nats.url,
        "TENSORCAST_SOCKET": str(stack.socket("n1")),
        "TENSORCAST_NODE": "n1",
        "TENSORCAST_ENGINE": name,
        "PYTHONPATH": HERE,
        **more,
    }


@pytest.fixture(scope="module")
def server(start_engine, stack):
    """Scheduler and worker in one process, the weights in place in the node's replica."""
    return start_engine(
        tiny_model(0), *TRANSFER, *FAULTS, *LOADED, env=surroundings(stack, "vllm-0")
    )


def break_loads(server, **how):
    server.ask("/collective_rpc", {"method": "break_loads", "kwargs": how})


def served(server):
    """Which of the two versions an engine serves now, by what it makes of the prompts."""
    return {prompt: server.generate(prompt).tokens for prompt in PROMPTS}


class Load:
    """Requests without end, in threads; each answer with its begin and end on the wall."""

    def __init__(self, server, threads=4):
        self.answers, self.errors = [], []
        self._server, self._is_over = server, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number):
        while not self._is_over.is_set():
            prompt = PROMPTS[number % len(PROMPTS)]
            begin = datetime.now(UTC)
            try:
                made = self._server.generate(prompt)
            except (AssertionError, OSError) as error:
                self.errors.append(error)
                return
            self.answers.append((begin, datetime.now(UTC), prompt, made.tokens))


# ---- what the log knows before any update


def test_an_engine_is_known_from_its_start_with_what_it_serves(server, client):
    found = client.engine("vllm-0")
    assert (found.state, found.kind, found.node, found.url) == ("up", "vllm", "n1", server.url)
    assert (found.version, found.artifact) == ("tiny@1", client.artifact("tiny").id)
    assert [one.engine for one in client.engines()] == ["vllm-0"]


# ---- updates


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("mode", [Pause.WAIT, Pause.ABORT, Pause.KEEP])
def test_there_and_back(server, client, expected, mode, aside):
    for seed in (1, 0):
        version = client.publish("there", weights(seed))
        (done,) = update_engines(client, [server.url], version, mode=mode, aside=aside)
        assert (done.version, EngineServer(server.url).version()) == (version, version)
        assert served(server) == expected[seed]
        found = client.weights_of(server.url)
        assert (found.version, found.artifact) == (version, client.api.key(version).artifact)
    assert not EngineServer(server.url).is_paused()


def test_twenty_updates_under_load_and_each_answer_belongs_to_one_version(server, client, expected):
    versions = {}
    with Load(server) as load:
        for n in range(20):
            version = client.publish("policy", weights(n % 2))
            update_engines(client, [server.url], version)
            versions[version] = n % 2
            time.sleep(0.2)
    assert load.errors == []
    told = {one.version for one in client.engine("vllm-0").served}
    assert set(versions) <= told, "the log names each of them"
    seen = set()
    for begin, end, prompt, tokens in load.answers:
        made_by = [seed for seed in SEEDS if tokens == expected[seed][prompt]]
        assert made_by, "an answer of both versions, or of none"
        named = {client.weights_of("vllm-0", at=moment).version for moment in (begin, end)}
        seeds = {versions.get(name, 0) for name in named}
        assert made_by[0] in seeds, (begin, end, named)
        seen |= named
    assert len(seen & set(versions)) > 10, "answers came all the time"


def test_weights_in_two_parts(server, client, expected, at_zero):
    """As ranks of a trainer publish them: all of both at once."""
    names = sorted(weights(1))
    halves = [client.put({n: weights(1)[n] for n in names[at::2]}).id for at in (0, 1)]
    one = EngineServer(server.url)
    one.init()
    one.start()
    one.update("halves@1", halves[0], parts=halves)
    one.pause()
    one.finish("halves@1")
    one.resume()
    assert served(server) == expected[1]


# ---- what goes wrong


@pytest.fixture
def at_zero(server, client):
    """The engine with the weights of seed 0."""
    version = client.publish("base", weights(0))
    update_engines(client, [server.url], version)
    return version


def stays(server, client, expected, version):
    assert served(server) == expected[0]
    assert EngineServer(server.url).version() == version
    assert client.weights_of("vllm-0").version == version
    assert not EngineServer(server.url).is_paused()


def without(tensors, name):
    return {each: value for each, value in tensors.items() if each != name}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda given: without(given, "model.norm.weight"), "lack model.norm.weight"),
        (
            lambda given: {**given, "lm_head.weight": given["lm_head.weight"][:-1].clone()},
            "lm_head.weight is F32",
        ),
        (
            lambda given: {**given, "model.norm.weight": given["model.norm.weight"].long()},
            "model.norm.weight is I64",
        ),
    ],
)
def test_weights_of_another_model_are_refused(server, client, expected, at_zero, make, why):
    wrong = client.publish("wrong", make(weights(1)))
    with pytest.raises(
        InvalidArgument, match=f"{server.url}/update_weights refuses: .*{why}"
    ) as told:
        update_engines(client, [server.url], wrong)
    assert "collective_rpc" not in str(told.value)
    stays(server, client, expected, at_zero)


def test_weights_that_the_model_does_not_know_are_undone(server, client, expected, at_zero):
    strange = {**weights(1), "model.layers.0.mystery": weights(1)["model.norm.weight"].clone()}
    with pytest.raises(TensorCastError):
        update_engines(client, [server.url], client.publish("strange", strange))
    stays(server, client, expected, at_zero)


@pytest.mark.parametrize("after", [0, 1, 7, 20, 36])
def test_a_load_that_breaks_off_is_undone_while_requests_wait(
    server, client, expected, at_zero, after
):
    new = client.publish("broken", weights(1))
    with Load(server, threads=2) as load:
        break_loads(server, after=after, times=1)
        with pytest.raises(TensorCastError, match="breaks off"):
            update_engines(client, [server.url], new, aside=False)
    assert load.errors == []
    for _, _, prompt, tokens in load.answers:
        assert tokens == expected[0][prompt]
    stays(server, client, expected, at_zero)
    update_engines(client, [server.url], new)
    assert served(server) == expected[1]


def test_without_a_control_plane_no_weights_change(server, stack, client, expected, at_zero):
    new = client.publish("unheard", weights(1))
    artifact = client.api.key(new).artifact
    one = EngineServer(server.url)
    one.init()
    one.start()
    one.update(new, artifact)
    stack.kill("controlplane")
    try:
        one.pause()
        with pytest.raises(TensorCastError, match="not on record"):
            one.finish(new)
        one.mend(Session.OPEN_ON_LAST)
        one.resume()
        assert served(server) == expected[0]
    finally:
        stack.start_controlplane()
    deadline = time.monotonic() + 20
    while client.weights_of("vllm-0").version != at_zero and time.monotonic() < deadline:
        time.sleep(0.1)
    stays(server, client, expected, at_zero)


def test_a_trainer_that_dies_leaves_the_old_weights_and_the_next_one_begins_anew(
    server, client, expected, at_zero
):
    new = client.publish("left", weights(1))
    one = EngineServer(server.url)
    one.init()
    one.start()
    one.update(new, client.api.key(new).artifact)
    stays(server, client, expected, at_zero)
    newer = client.publish("left", weights(1))
    update_engines(client, [server.url], newer)
    assert served(server) == expected[1]


def test_what_cannot_be_asked(server, client):
    with pytest.raises(NotFound):
        update_engines(client, [server.url], "nothing@1")
    with pytest.raises(InvalidArgument, match="no way to pause"):
        update_engines(client, [server.url], "tiny", mode="sleep")
    with pytest.raises(InvalidArgument, match="No engine"):
        update_engines(client, [], "tiny")
    with pytest.raises(Unavailable, match="does not answer"):
        update_engines(client, ["http://127.0.0.1:9"], "tiny")


def test_every_change_is_an_event_of_the_engine(server, client):
    events = client.api.audit(AuditQuery(what="vllm-0"))
    assert {event.actor for event in events} == {"engine:vllm-0"}
    assert [event.type for event in events].count("engine.registered") == 1


def test_an_engine_that_is_stopped_has_left(server, client):
    server.stop()
    deadline = time.monotonic() + 60
    while client.engine("vllm-0").state == "up" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.engine("vllm-0").state == "left"  # nobody waited for its signs of life


# ---- several ranks, in processes of their own, their weights from the disk


@pytest.fixture(scope="module")
def ranks(start_engine, stack):
    env = surroundings(
        stack,
        "vllm-1",
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_CPU_OMP_THREADS_BIND="0|1",
    )
    return start_engine(tiny_model(0), *TRANSFER, *FAULTS, "--tensor-parallel-size", "2", env=env)


def test_one_of_two_ranks_that_fails_holds_both_back(ranks, client, expected):
    assert client.weights_of(ranks.url).version == "default"
    new = client.publish("two", weights(1))
    for rank, after in ((1, 5), (0, 30)):
        break_loads(ranks, after=after, times=1, rank=rank)
        with pytest.raises(TensorCastError):
            update_engines(client, [ranks.url], new, aside=False)
        assert served(ranks) == expected[0]
        assert EngineServer(ranks.url).version() == "default"
        assert client.weights_of("vllm-1").version == "default"
    update_engines(client, [ranks.url], new)
    assert served(ranks) == expected[1]
    assert client.weights_of("vllm-1").version == new


def test_a_trainer_of_two_ranks_that_dies_is_followed_by_another(ranks, client, expected):
    new = client.publish("two", weights(0))
    one = EngineServer(ranks.url)
    for left in ("begun", "brought"):
        one.init()
        one.start()
        if left == "brought":
            one.update(new, client.api.key(new).artifact)
        update_engines(client, [ranks.url], new)
        assert served(ranks) == expected[0]
        assert one.version() == new


def test_an_engine_that_cannot_go_back_ends_instead_of_mixing(ranks, client):
    newer = client.publish("two", weights(0))
    break_loads(ranks, after=9, times=2, rank=1)
    with pytest.raises(TensorCastError):
        update_engines(client, [ranks.url], newer, aside=False)
    with pytest.raises((AssertionError, OSError)):
        ranks.generate(PROMPTS[0])
    assert "must not serve" in ranks.log_text()
    deadline = time.monotonic() + 60
    while client.engine("vllm-1").state == "up" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert client.engine("vllm-1").state in ("lost", "left")
    assert newer not in [one.version for one in client.engine("vllm-1").served]
