"""The processes that check the history: started when somebody asks, gone when nobody does."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from tensorcast.schema.api import parse_reply
from tensorcast.schema.api_audit import SpanInfo, VerifySpan
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Seq

VERIFIERS_MAX: Final = 16
IDLE_S_MAX: Final = 10.0
PART_EVENTS_MIN: Final = 2000
"""A part of a span that is worth a process of its own."""
_MODULE: Final = "tensorcast.controlplane.verifier"


class Verifiers:
    """At most one process for each CPU; each checks a part of a span. A span at a time."""

    def __init__(self, postgres_url: str) -> None:
        self._environ = {**os.environ, "TENSORCAST_POSTGRES_URL": postgres_url}
        self._count = min(VERIFIERS_MAX, len(os.sched_getaffinity(0)))
        self._processes: list[Process] = []
        self._turn = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def verify(self, span: VerifySpan) -> SpanInfo:
        """What is found in a span: the parts are joined up to the first event that is bad. Raises
        Unavailable while Postgres is away."""
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                return await self._verify(split_span(span, self._count))
            except BaseException:
                self.close()  # an answer may be under way still
                raise
            finally:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(IDLE_S_MAX, self.close)

    async def _verify(self, parts: Sequence[VerifySpan]) -> SpanInfo:
        while len(self._processes) < len(parts):
            self._processes.append(await self._start())
        answers = zip(self._processes, parts, strict=False)
        return join_answers(
            await asyncio.gather(*(_ask(process, part) for process, part in answers))
        )

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, stdin=PIPE, stdout=PIPE, env=self._environ
        )

    def close(self) -> None:
        """Ends the processes. Safe to repeat."""
        if self._idle is not None:
            self._idle.cancel()
        processes, self._processes = self._processes, []
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()


async def _ask(process: Process, part: VerifySpan) -> SpanInfo:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(part) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
    except OSError:
        line = b""
    if not line:
        raise Unavailable("A verifier of the history has ended.", hint="Try again.")
    return parse_reply(line, SpanInfo)


def split_span(span: VerifySpan, count: int) -> tuple[VerifySpan, ...]:
    """At most `count` parts that follow each other."""
    events = span.last - span.first + 1
    size = max(PART_EVENTS_MIN, -(-events // count))
    return tuple(
        VerifySpan(
            log_epoch=span.log_epoch,
            first=Seq(first),
            last=Seq(min(span.last, first + size - 1)),
        )
        for first in range(span.first, span.last + 1, size)
    )


def join_answers(answers: Sequence[SpanInfo]) -> SpanInfo:
    """The answer for the whole: what comes after the first bad event does not count."""
    events = 0
    for one in answers:
        events += one.events
        if one.first_bad is not None:
            return msgspec.structs.replace(one, events=events)
    return msgspec.structs.replace(answers[-1], events=events)
