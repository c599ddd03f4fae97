"""How engines are driven from outside, against a server that only remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tensorcast.engines.vllm import updates
from tensorcast.engines.vllm.updates import (
    EngineServer,
    Pause,
    Session,
    Wanted,
    bring,
    listen,
    resolve_version,
    update_engines,
    wait_told,
)
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, Unavailable

ART, OTHER = "a" * 40, "b" * 40


class Fake(ThreadingHTTPServer):
    """Answers as vLLM does. `refuse` names the paths that fail, `held` the version."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked, self.refuse, self.version = [], {}, "default"
        self.url = f"http://127.0.0.1:{self.server_port}"

    def paths(self):
        return [path.partition("?")[0] for path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    def _answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        server, path = self.server, self.path.partition("?")[0]
        server.asked.append((self.path, body))
        answer, code = {"message": "ok"}, 200
        is_cancel = path == "/update_weights" and body["update_info"].get("cancel")
        if server.refuse.get(path, 0) > 0 and not is_cancel:
            server.refuse[path] -= 1
            answer, code = {"error": {"message": f"no {path}"}}, 500
        elif is_cancel:
            answer, code = {"error": {"message": "cancelled"}}, 500
        elif path == "/finish_weight_update" and body:
            server.version = body["weight_version"]
        elif path == "/weight_info":
            answer = {"weight_version": server.version}
        elif path == "/is_paused":
            answer = {"is_paused": False}
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, *_):
        pass


@pytest.fixture
def fakes():
    servers = [Fake(), Fake()]
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in servers]
    for thread in threads:
        thread.start()
    yield servers
    for one in servers:
        one.shutdown()
        one.server_close()
    for thread in threads:
        thread.join()


class Api:
    """What is asked of the control plane."""

    def __init__(self):
        self.keys = {"policy@7": (ART, 1), "policy": (ART, 9)}

    def artifact(self, what):
        if what in self.keys:
            return Api.describe(self.keys[what][0])
        if ART.startswith(what):
            return Api.describe(ART)
        raise NotFound(f"There is no {what}.")

    @staticmethod
    def describe(artifact):
        replica = SimpleNamespace(node="n1", state="ready", tier="dram")
        return SimpleNamespace(id=artifact, replicas=(replica,))

    def key(self, what):
        if what not in self.keys:
            raise NotFound(f"There is no key {what}.")
        artifact, version = self.keys[what]
        return SimpleNamespace(artifact=artifact, version=version)

    def nodes(self):
        return ()

    def engine(self, name):
        raise NotFound(f"There is no engine {name}.")


def make_client(**sessions):
    """A client that knows how the updates of engines stand."""
    engines = tuple(
        SimpleNamespace(engine=url, url=url, node="n1", load={"update_session": session})
        for url, session in sessions.items()
    )
    return SimpleNamespace(api=Api(), engines=lambda: engines)


CLIENT = make_client()
BRING = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"]
SWITCH = ["/pause", "/finish_weight_update"]
START = BRING[1]
MEND = ["/update_weights", "/finish_weight_update"]


def update(fakes, **more):
    return update_engines(CLIENT, [one.url for one in fakes], "policy@7", **more)


def test_the_weights_are_there_and_checked_before_anything_is_paused(fakes):
    done = update(fakes)
    assert [(one.url, one.version) for one in done] == [(f.url, "policy@7") for f in fakes]
    for fake in fakes:
        assert fake.paths() == [*BRING, *SWITCH, "/resume"]
        bodies = dict(fake.asked)
        assert bodies["/init_weight_transfer_engine"] == {"init_info": {"url": fake.url}}
        info = bodies["/update_weights"]["update_info"]
        assert (info["version"], info["artifact"], info["check"]) == ("policy@7", ART, True)
        assert bodies["/finish_weight_update"] == {"weight_version": "policy@7"}
        assert EngineServer(fake.url).version() == "policy@7"


@pytest.mark.parametrize("mode", list(Pause))
def test_each_way_to_pause(fakes, mode):
    update(fakes, mode=mode.value)
    asked = [path for path, _ in fakes[0].asked]
    assert f"/pause?mode={mode.value}&clear_cache=true" in asked
    assert ("/reset_prefix_cache?reset_running_requests=true" in asked) == (mode is Pause.KEEP)


def test_when_one_cannot_get_them_no_engine_changes(fakes):
    fakes[1].refuse["/update_weights"] = 1
    with pytest.raises(Unavailable, match="no /update_weights"):
        update(fakes)
    for fake in fakes:
        assert "/pause" not in fake.paths()
        assert fake.paths() == [*BRING, *MEND]
        assert fake.version == "default"


@pytest.mark.parametrize(
    ("path", "mended"), [("/pause", MEND), ("/finish_weight_update", [START, *MEND])]
)
def test_an_engine_that_fails_to_switch_goes_on_with_the_old_ones(fakes, path, mended):
    fakes[0].refuse[path] = 1
    with pytest.raises(Unavailable, match=f"no {path}"):
        update(fakes)
    assert fakes[0].paths()[-len(mended) - 1 :] == [*mended, "/resume"]
    assert [fake.version for fake in fakes] == ["default", "policy@7"]


@pytest.mark.parametrize(
    ("session", "mended"),
    [
        (Session.OVER, []),
        (Session.OPEN, MEND),
        (Session.OVER_ON_LAST, MEND),
        (Session.OPEN_ON_LAST, [START, *MEND]),
        (99, []),
    ],
)
def test_an_update_that_somebody_left_is_ended_first(fakes, session, mended):
    (fake, _) = fakes
    update_engines(make_client(**{fake.url: float(session)}), [fake.url], "policy@7")
    twice = BRING[-1]  # it is heard of, so it serves meanwhile
    assert fake.paths() == [BRING[0], *mended, *BRING[1:], twice, *SWITCH, "/resume"]
    assert fake.version == "policy@7"


def test_when_one_cannot_begin_the_others_are_ended(fakes):
    fakes[1].refuse[START] = 1
    with pytest.raises(Unavailable, match="no /start"):
        update(fakes)
    assert fakes[0].paths() == [*BRING[:2], *MEND]
    assert fakes[1].paths() == BRING[:2]


def test_several_that_fail_are_named(fakes):
    for fake in fakes:
        fake.refuse["/finish_weight_update"] = 1
    with pytest.raises(Unavailable, match=f"{fakes[0].url}, {fakes[1].url} failed"):
        update(fakes)


@pytest.mark.parametrize(
    ("what", "version"),
    [("policy@7", "policy@7"), ("policy", "policy@9"), (ART, ART), (ART[:8], ART)],
)
def test_what_weights_are_called(what, version):
    assert resolve_version(CLIENT, what) == (version, ART)


def test_what_cannot_be_asked(fakes):
    with pytest.raises(InvalidArgument, match="no way to pause"):
        update(fakes, mode="sleep")
    with pytest.raises(InvalidArgument, match="No engine"):
        update([])
    with pytest.raises(NotFound):
        update_engines(CLIENT, [fakes[0].url], "nothing")


def test_weights_go_to_the_nodes_that_lack_them_at_once(fakes):
    asked = []

    def replicate(artifact, to):
        asked.append((artifact, to))
        return SimpleNamespace(wait=lambda timeout: None)

    client = make_client(**{fake.url: 0.0 for fake in fakes})
    away = SimpleNamespace(url="http://other", node="n4", load={})
    nodes = [SimpleNamespace(node=name, state="up") for name in ("n1", "n2", "n3")]
    client.api.nodes, client.replicate = lambda: nodes, replicate
    engines = client.engines()
    update_engines(client, [fakes[0].url], "policy@7")
    assert asked == []
    engines[0].node, engines[1].node = "n3", "n2"
    client.engines = lambda: (*engines, away)
    update_engines(client, [fake.url for fake in fakes], "policy@7")
    assert asked == [(ART, ["n2", "n3"])]


def test_answers_that_make_no_sense(fakes):
    fakes[0].version = None
    with pytest.raises(Corrupt, match="does not say"):
        EngineServer(fakes[0].url).version()


def test_an_engine_that_dies_while_it_is_mended_is_not_waited_for_long(monkeypatch):
    """It accepts what it never answers."""
    monkeypatch.setattr(updates, "MEND_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as dying:
        server = EngineServer(f"http://127.0.0.1:{dying.getsockname()[1]}")
        with pytest.raises(Unavailable, match="does not answer"):
            server.mend(Session.OPEN)
        with pytest.raises(Unavailable, match="does not answer"):
            server.resume()


# ---- an engine that serves while it brings


def test_an_engine_that_is_heard_of_serves_meanwhile(fakes):
    one, told = EngineServer(fakes[0].url), []

    def hear():
        ticket = fakes[0].asked[-1][1]["update_info"]["ticket"]
        told.append(ticket)
        return float(ticket) if len(told) > 2 else 0.0

    bring(one, Wanted("v", ART, False, (ART, OTHER)), [one], hear)
    first, second = (body["update_info"] for _, body in fakes[0].asked)
    assert first == {**second, "ticket": told[0]}
    assert second == {
        "version": "v",
        "artifact": ART,
        "check": False,
        "timeout_s": one.timeout_s,
        "parts": [ART, OTHER],
    }
    assert len(told) == 3


def test_one_that_is_not_heard_of_any_more_is_asked_itself(fakes):
    def gone():
        raise Unavailable("the control plane is away")

    one = EngineServer(fakes[0].url)
    bring(one, Wanted("v", ART), [one], gone)
    assert fakes[0].paths() == ["/update_weights"] * 2
    wait_told(lambda: 1.0, 2, timeout_s=0.02)  # and it does not wait for ever


def test_how_one_hears_from_an_engine():
    engine = SimpleNamespace(engine="e", state="up", load={})
    client = SimpleNamespace(api=SimpleNamespace(engine=lambda name: engine))
    assert listen(client, None) is None
    told = listen(client, engine)
    assert told() == 0.0
    engine.load["update_ticket"] = 3.0
    assert told() == 3.0
    engine.state = "lost"
    with pytest.raises(Unavailable, match="e is lost"):
        told()
