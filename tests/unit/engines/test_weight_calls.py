"""The calls about weights, against a pretended server."""

from __future__ import annotations

import asyncio

import pytest

from tensorcast.engines.vllm import weight_calls
from tensorcast.engines.vllm.updates import Pause, Session, Updated
from tensorcast.engines.vllm.weight_calls import WeightCalls
from tensorcast.schema.errors import InvalidArgument, Unavailable

ARTIFACT = "ab" * 20


class Server:
    """What was done with the engine, and how it stands."""

    def __init__(self) -> None:
        self.done: list[tuple] = []
        self.serves = "old"
        self.fails = False
        self.url = "http://e"

    def version(self):
        return self.serves

    def mend(self, session):
        self.done.append(("mend", session))


class Info:
    def __init__(self, session: Session) -> None:
        self.load = {"update_session": float(session), "update_ticket": 7.0}
        self.state = "up"


class Client:
    def __init__(self) -> None:
        self.api = self
        self.session = Session.OVER

    async def engine(self, name):
        assert name == "e1"
        return Info(self.session)


@pytest.fixture
def server(monkeypatch):
    server = Server()

    def begin(one, known, opened):
        server.done.append(("begin",))
        opened.append(one)

    def bring(one, wanted, opened, told):
        assert opened == [one]
        assert told() == 7.0, "one hears from the engine when it has them"
        if server.fails:
            raise Unavailable("it is away")
        server.done.append(("bring", *wanted[:4]))

    def switch(one, version, pause):
        server.done.append(("switch", version, pause))
        server.serves = version
        return Updated(one.url, version, 0.5)

    monkeypatch.setattr(weight_calls, "EngineServer", lambda url, timeout_s=0: server)
    for function in (begin, bring, switch):
        monkeypatch.setattr(weight_calls, function.__name__, function)
    return server


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def verbs(server, client):
    return WeightCalls(client, "e1", "http://e").verbs


async def test_new_weights_are_staged_and_switched_to(verbs, server):
    staged = await verbs["stage"]({"artifact": ARTIFACT, "version": "p@2"})
    assert staged == {"version": "p@2", "artifact": ARTIFACT}
    done = await verbs["switch"]({"version": "p@2", "pause": "keep"})
    assert done == {"version": "p@2", "paused_s": 0.5}
    again = await verbs["switch"]({"version": "p@2"})
    assert again == {"version": "p@2", "paused_s": 0.0}, "a call may come twice"
    assert server.done == [
        ("begin",),
        ("bring", "p@2", ARTIFACT, True, ()),
        ("switch", "p@2", Pause.KEEP),
    ]


async def test_without_a_version_they_are_called_by_their_id(verbs):
    assert (await verbs["stage"]({"artifact": ARTIFACT}))["version"] == ARTIFACT


async def test_all_parts_are_brought_and_each_once(verbs, server):
    other = "cd" * 20
    said = {"artifact": ARTIFACT, "parts": {"a": ARTIFACT, "b": other}, "check": False}
    await verbs["stage"]({**said, "version": "p@2"})
    assert server.done[1] == ("bring", "p@2", ARTIFACT, False, (ARTIFACT, other))
    await verbs["stage"]({"artifact": ARTIFACT, "parts": {"a": ARTIFACT}})
    assert server.done[3] == ("bring", ARTIFACT, ARTIFACT, True, ())


async def test_what_fails_is_told(verbs, server):
    server.fails = True
    with pytest.raises(Unavailable, match="away"):
        await verbs["stage"]({"artifact": ARTIFACT})


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("stage", {"artifact": "latest"}),
        ("stage", {}),
        ("stage", {"artifact": ARTIFACT, "timeout_s": 0}),
        ("stage", {"artifact": ARTIFACT, "parts": {"a": ARTIFACT, "b": "latest"}}),
        ("switch", {}),
        ("switch", {"version": "v", "pause": "never"}),
        ("unstage", {"version": "v"}),
    ],
)
async def test_what_makes_no_sense_is_refused(verbs, server, verb, said):
    with pytest.raises(InvalidArgument):
        await verbs[verb](said)
    assert not server.done


async def test_what_was_staged_is_forgotten(verbs, server, client):
    assert await verbs["unstage"]({}) == {"version": "old"}
    assert not server.done
    client.session = Session.OPEN
    assert await verbs["unstage"]({}) == {"version": "old"}
    assert server.done == [("mend", Session.OPEN)]


async def test_one_thing_is_done_at_a_time_in_the_order_of_the_calls(verbs, server):
    await asyncio.gather(
        verbs["stage"]({"artifact": ARTIFACT, "version": "1"}),
        verbs["switch"]({"version": "1"}),
        verbs["stage"]({"artifact": ARTIFACT, "version": "2"}),
        verbs["switch"]({"version": "2"}),
    )
    assert [one for one in server.done if one[0] != "begin"] == [
        ("bring", "1", ARTIFACT, True, ()),
        ("switch", "1", Pause.WAIT),
        ("bring", "2", ARTIFACT, True, ()),
        ("switch", "2", Pause.WAIT),
    ]
