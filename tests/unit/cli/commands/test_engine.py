from __future__ import annotations

from datetime import timedelta

from cli_samples import ART, Tcctl
from samples import BEGIN
from tensorcast.schema.api import EngineInfo, ServedInfo
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import EngineId, NodeId, Seq


def engine(name: str = "vllm-0", **changes: object) -> EngineInfo:
    values = {
        "engine": EngineId(name),
        "kind": "vllm",
        "state": "up",
        "node": NodeId("n1"),
        "model": "llama",
        "url": "http://h:8000",
        "version": "policy@7",
        "artifact": ART,
        "since": BEGIN,
        "life": "one",
        "labels": {},
        "registered_at": BEGIN,
        "seq": Seq(9),
        "load": {"cache_usage": 0.25},
        "served": (
            ServedInfo(
                engine=EngineId(name),
                version="policy@6",
                artifact=None,
                since=BEGIN - timedelta(minutes=5),
                until=BEGIN,
                life="one",
                seq=Seq(7),
            ),
        ),
    }
    return EngineInfo(**(values | changes))


def test_ls_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    tcctl.answer(engines=(engine(), engine("vllm-1", load={})))
    (first, second) = tcctl("engine", "ls", "-o", "json").data
    assert set(first) >= {"engine", "state", "node", "version", "artifact", "since", "url", "load"}
    assert (first["version"], first["load"], second["load"]) == (
        "policy@7",
        {"cache_usage": 0.25},
        {},
    )
    assert tcctl("engine", "ls", "-q").out == "vllm-0\nvllm-1\n"
    line = tcctl("engine", "ls").out.splitlines()[1]
    assert line.split() == [
        "vllm-0",
        "up",
        "n1",
        "policy@7",
        ART[:12],
        "10m",
        "25%",
        "http://h:8000",
    ]


def test_ls_asks_for_those_that_run_unless_told_otherwise(tcctl: Tcctl) -> None:
    api = tcctl.answer(engines=())
    assert "No engine" in tcctl("engine", "ls").out
    tcctl("engine", "ls", "--all", "--node", "n2")
    assert [asked for _, _, asked in api.calls] == [
        {"status": None, "node": None},
        {"status": "all", "node": "n2"},
    ]


def test_show_tells_what_it_served_from_when_to_when(tcctl: Tcctl) -> None:
    tcctl.answer(engine=engine())
    out = tcctl("engine", "show", "vllm-0").out
    assert "policy@7" in out
    assert "policy@6" in out.split("Served")[1]
    served = tcctl("engine", "show", "vllm-0", "-o", "json").data["served"]
    assert set(served[0]) >= {"version", "artifact", "since", "until", "seq"}


def test_an_engine_that_serves_now_has_no_end(tcctl: Tcctl) -> None:
    now = ServedInfo(
        engine=EngineId("e"),
        version="v",
        artifact=None,
        since=BEGIN,
        until=None,
        life="one",
        seq=Seq(1),
    )
    tcctl.answer(engine=engine(served=(now,), node=None, artifact=None, since=None, load={}))
    assert tcctl("engine", "show", "e").out.splitlines()[-1].split()[-1] == "now"


def test_an_unknown_engine_is_exit_3(tcctl: Tcctl) -> None:
    tcctl.answer(engine=NotFound("There is no engine 'x'."))
    assert tcctl("engine", "show", "x").code == 3


def test_watch_becomes_the_agent(tcctl: Tcctl) -> None:
    tcctl.environ = {"PATH": "/bin"}
    url, events = "http://127.0.0.1:8000", "tcp://127.0.0.1:5557"
    line = ("engine", "watch", url, "--kv-events", events, "--engine", "e1", "--period", "500ms")
    assert tcctl(*line, "--context", "lab").code == 0
    ((program, command, environ),) = tcctl.started
    assert command[0] == program
    assert command[1:4] == ["-m", "tensorcast.engines.vllm.agent", url]
    assert command[4:] == [
        *("--kv-events", events, "--engine", "e1", "--period", "0.5", "--context", "lab")
    ]
    assert environ["PATH"] == "/bin"
