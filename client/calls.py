"""Serving calls: how an engine, or any program, does what the steps of plans ask of it.

A call is a signal on `engine.call.<name>`, its answer one on `engine.answer.<name>`. Calls are kept
until they are answered, also when the program dies in between: a handler must bear to see one
twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tensorcast.client.identity import new_event_id
from tensorcast.client.patience import outlast
from tensorcast.client.signals import NEW, AsyncSignal, AsyncSignals, Start
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.guesses import suggest
from tensorcast.schema.ids import Seq, parse_engine

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane

_ODD = re.compile(r"[^A-Za-z0-9_-]")
_OPEN = frozenset({"running", "paused", "cancelling"})
IDLE_S_MAX = 86_400.0
"""Calls to a name under which nobody has served for a day are not kept any longer."""
ACK_S = 120.0
"""A call that is not answered for so long is given again."""


class AsyncCall:
    """A call: `verb` and `arguments` say what is wanted. Answer it, or say why not."""

    def __init__(self, api: ControlPlane, engine: str, signal: AsyncSignal) -> None:
        self._api = api
        self._engine = engine
        self._signal = signal

    @property
    def id(self) -> str:
        """Names the try of the step that asks."""
        return str(self._signal.data.get("call", ""))

    @property
    def verb(self) -> str:
        return str(self._signal.data.get("verb", ""))

    @property
    def arguments(self) -> dict[str, object]:
        found = self._signal.data.get("arguments")
        return found if isinstance(found, dict) else {}

    async def is_wanted(self) -> bool:
        """Whether the step that asks still waits for this answer. What was asked for long ago (the
        program was away, or died with the call) may not be wanted any more: then it must not be
        done. Waits for a control plane that is away, as `answer` does. Raises Unavailable,
        Timeout."""
        seq = self._signal.seq
        self._api.position.advance(seq)
        wanted = await self._look(seq)
        if wanted is None:
            # The step begins by the next event, of the same append: a view may stand in between.
            wanted = await self._look(Seq(seq + 1))
        return wanted is True

    async def _look(self, after: Seq) -> bool | None:
        """As `is_wanted`, by what is known after an event at least; None: the try has not begun, as
        far as that is known."""
        plan, _, rest = self.id.partition("/")
        path, _, attempt = rest.rpartition("#")
        try:
            found = await outlast(self._api, lambda: self._api.plan(plan, after=after))
        except (NotFound, InvalidArgument):
            return False
        step = next((one for one in found.steps if one.id == path), None)
        if step is not None and step.status != "pending" and attempt.isdecimal():
            if step.attempt == int(attempt):
                return step.status == "running"
            if step.attempt > int(attempt):
                return False
        return None if found.state in _OPEN else False

    async def drop(self) -> None:
        """Nobody wants an answer: it is not given again."""
        await self._signal.ack()

    async def extend(self) -> None:
        """Work on it goes on: it is not given to anybody else for as long again."""
        await self._signal.extend()

    async def answer(self, outputs: Mapping[str, object] | None = None) -> None:
        """It is done, and gives this. Raises InvalidArgument for what JSON cannot hold."""
        await self._say({"outputs": dict(outputs or {})})

    async def fail(self, detail: str, *, kind: str = "invalid", permanent: bool = False) -> None:
        """It cannot be done: one sentence why, and the kind of the fault ("unavailable", ...).
        Raises InvalidArgument for a kind that there is not."""
        kinds = [one.value for one in FaultKind]
        if kind not in kinds:
            raise InvalidArgument(
                f"A fault is of no kind {kind!r}{suggest(str(kind), kinds) or '.'}",
                hint=f"Say one of {', '.join(kinds)}.",
            )
        fault = Fault(kind=FaultKind(kind), detail=detail, permanent=permanent)
        said = {"kind": fault.kind.value, "detail": detail, "permanent": permanent}
        await self._say({"fault": said})

    async def _say(self, answer: dict[str, object]) -> None:
        topic, data, id = (
            f"engine.answer.{self._engine}",
            {"call": self.id, **answer},
            new_event_id(),
        )
        await outlast(self._api, lambda: self._api.emit(topic, data, id=id))
        await self._signal.ack()


def reader_of(engine: str) -> str:
    """The durable reader of the calls to an engine."""
    return _ODD.sub("-", f"calls-{engine}")[:64]


class AsyncCalls:
    """The calls to one engine, in order: `async for call in client.calls("e1")`."""

    def __init__(self, api: ControlPlane, engine: str, *, start: Start = NEW) -> None:
        """`start`: from where on nobody has missed a call yet, when they are served under this name
        for the first time ever."""
        self._api = api
        self._engine = parse_engine(engine)
        self._signals = AsyncSignals(
            api,
            f"engine.call.{engine}",
            durable=reader_of(engine),
            start=start,
            ack_within=ACK_S,
            idle_s_max=IDLE_S_MAX,
        )

    async def open(self) -> Self:
        """Takes its place: calls from now on are not missed. Raises Unavailable."""
        await self._signals.open()
        return self

    async def next(self, timeout: float | None = None) -> AsyncCall | None:
        """The next call; None when none came for `timeout` seconds."""
        signal = await self._signals.next(timeout)
        return None if signal is None else AsyncCall(self._api, self._engine, signal)

    async def __aiter__(self) -> AsyncIterator[AsyncCall]:
        while True:
            call = await self.next()
            if call is None:
                return
            yield call

    async def aclose(self) -> None:
        """Gives its place up; what was not answered is given again to the next one."""
        await self._signals.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
