"""`tcctl` in this process, with a client that answers what a test tells it to."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from samples import BEGIN, artifact_id
from tensorcast.cli.main import main
from tensorcast.cli.session import World
from tensorcast.schema.api import (
    ArtifactInfo,
    EventInfo,
    NodeInfo,
    OperationInfo,
    ReplicaInfo,
    TierInfo,
)
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.ids import EventId, NodeId, OperationId, Seq, Tier

ART = artifact_id("model")
OPERATION = OperationId("op-0123456789abcdef01234567")


class Answers:
    """Something with methods that give what the test said, and note how they were called."""

    def __init__(self, **answers: object) -> None:
        self._answers = answers
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name not in self._answers:
            raise AttributeError(f"the test expects no call of {name}")
        answer = self._answers[name]

        def call(*args: object, **kwargs: object) -> object:
            self.calls.append((name, args, kwargs))
            result = answer(*args, **kwargs) if callable(answer) else answer
            if isinstance(result, Exception):
                raise result
            return result

        return call


class FakeClient(Answers):
    """A client; `api` holds the questions to the control plane."""

    def __init__(self, api: Answers | None = None, **answers: object) -> None:
        super().__init__(**answers)
        self.api = api or Answers()

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Terminal(io.StringIO):
    """Text that is kept, on something that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass
class Run:
    """How a call of `tcctl` came out."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> object:
        return msgspec.json.decode(self.out)

    @property
    def error(self) -> dict[str, str]:
        return msgspec.json.decode(self.err, type=dict[str, dict[str, str]])["error"]


@dataclass
class Tcctl:
    """Calls `tcctl`; `client` may also be the error that connecting meets."""

    client: FakeClient | Exception = field(default_factory=FakeClient)
    environ: dict[str, str] = field(default_factory=dict)
    contexts: list[tuple[str | None, str | None]] = field(default_factory=list)
    started: list[tuple[str, list[str], dict[str, str]]] = field(default_factory=list)
    is_terminal: bool = False
    typed: str = ""

    def __call__(self, *arguments: str) -> Run:
        make = Terminal if self.is_terminal else io.StringIO
        out, err = make(), make()
        world = World(
            connect=self._connect,
            environ=self.environ,
            read_clock=lambda: BEGIN + timedelta(minutes=10),
            replace_process=lambda *started: self.started.append(started),
            inp=make(self.typed),
            out=out,
            err=err,
        )
        code = main(arguments, world)
        return Run(int(code), out.getvalue(), err.getvalue())

    def answer(self, **answers: object) -> Answers:
        """From now on the control plane gives these answers."""
        api = Answers(**answers)
        self.client = FakeClient(api)
        return api

    def _connect(self, context: str | None, node: str | None) -> FakeClient:
        self.contexts.append((context, node))
        if isinstance(self.client, Exception):
            raise self.client
        return self.client


def artifact(**changes: object) -> ArtifactInfo:
    info = ArtifactInfo(
        id=ART,
        kind="weights",
        state="sealed",
        bytes=3 << 20,
        tensors=2,
        labels={"step": "1"},
        keys=("llama@1",),
        replicas=(
            ReplicaInfo(
                node=NodeId("n1"), tier=Tier.DRAM, state="ready", chunks_ready=3, chunks_total=3
            ),
            ReplicaInfo(
                node=NodeId("n2"), tier=Tier.DRAM, state="filling", chunks_ready=1, chunks_total=3
            ),
        ),
        pinned=False,
        leases=0,
        sealed_at=BEGIN,
        seq=Seq(7),
    )
    return msgspec.structs.replace(info, **changes)


def operation(**changes: object) -> OperationInfo:
    info = OperationInfo(
        id=OPERATION,
        kind="materialize",
        node=NodeId("n2"),
        artifact=ART,
        status="succeeded",
        attempt=1,
        bytes_moved=3 << 20,
        transports={"tcp": 3 << 20},
        policy="replicate",
        cause=EventId("00000000-0000-7000-8000-000000000009"),
        fault=None,
        issued_at=BEGIN,
        ended_at=BEGIN + timedelta(seconds=2),
        chunks_ready=3,
        chunks_total=3,
    )
    return msgspec.structs.replace(info, **changes)


def node(name: str = "n1", **changes: object) -> NodeInfo:
    info = NodeInfo(
        node=NodeId(name),
        epoch=2,
        state="up",
        address="127.0.0.1:4000",
        cordoned=False,
        draining=False,
        tiers={Tier.DRAM: TierInfo(capacity=1 << 30, used=3 << 20)},
        transports=("tcp",),
        replicas=1,
        labels={},
        joined_at=BEGIN,
    )
    return msgspec.structs.replace(info, **changes)


def event(seq: int, kind: str, data: dict[str, object], *, cause: int | None = None) -> EventInfo:
    return EventInfo(
        seq=Seq(seq),
        id=event_name(seq),
        type=kind,
        v=1,
        at=BEGIN + timedelta(seconds=seq),
        actor="user:ada@desk",
        cause=event_name(cause) if cause is not None else None,
        data=msgspec.Raw(msgspec.json.encode(data)),
    )


def event_name(seq: int) -> EventId:
    """The id of the event at a position (of version 8: without a time in it)."""
    return EventId(f"00000000-0000-8000-8000-{seq:012x}")


FAULT = FaultInfo(kind="unavailable", detail="No source is up.", retryable=True)
