"""The adapter API of a vLLM engine: serves the calls that plans make to it, under its name.

The agent (`agent.py`) runs it beside the engine. What can be asked is in `kv_calls.py` and
`weight_calls.py`; all of it goes through the engine's own HTTP API, and may be asked twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tensorcast.client.calls import ACK_S, AsyncCall, AsyncCalls
from tensorcast.engines.vllm.kv_calls import KvCalls
from tensorcast.engines.vllm.verbs import Outputs, Verb
from tensorcast.engines.vllm.weight_calls import WeightCalls
from tensorcast.schema.errors import InvalidArgument, TensorCastError
from tensorcast.schema.faults import Fault, FaultKind, from_error

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient
    from tensorcast.schema.ids import EngineId

AT_ONCE_MAX: Final = 16
TELL_S: Final = 1.0
DETAIL_CHARS_MAX: Final = 2000
_logger = logging.getLogger("tensorcast.engines.vllm.adapter")


def collect_verbs(client: AsyncClient, engine: EngineId, url: str) -> dict[str, Verb]:
    """What the engine whose server answers at `url` can be asked, by verb. `client` is on its
    node."""
    kv, weights = KvCalls(client, engine, url), WeightCalls(client, engine, url)
    return {**kv.verbs, **weights.verbs}


async def serve(calls: AsyncCalls, verbs: Mapping[str, Verb]) -> None:
    """Does what calls ask for, several at once, for ever. What fails is answered by a fault."""
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def work(call: AsyncCall) -> None:
        try:
            await _serve_one(call, verbs)
        finally:
            room.release()

    async with calls, asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            call = await calls.next()
            assert call is not None, "without a time limit it waits"
            tasks.create_task(work(call))


async def _serve_one(call: AsyncCall, verbs: Mapping[str, Verb]) -> None:
    try:
        if not await call.is_wanted():
            _logger.warning("call %s (%s) is dropped: its step is over", call.id, call.verb)
            await call.drop()
            return
    except TensorCastError as error:  # then it comes again
        _logger.warning("whether call %s is wanted is not known: %s", call.id, error)
        return
    keeping = asyncio.create_task(_keep(call))
    try:
        outcome = await _do(call, verbs)
    finally:
        keeping.cancel()
    await _tell(call, outcome)


async def _keep(call: AsyncCall) -> None:
    """As long as it takes, nobody else gets the call."""
    while True:
        await asyncio.sleep(ACK_S / 3)
        await call.extend()


async def _do(call: AsyncCall, verbs: Mapping[str, Verb]) -> Outputs | Fault:
    """What comes of a call. One that breaks us must neither end the watch nor come again."""
    verb = verbs.get(call.verb)
    if verb is None:
        known = ", ".join(sorted(verbs))
        return from_error(
            InvalidArgument(f"A vLLM engine cannot {call.verb!r}.", hint=f"It can {known}.")
        )
    work = asyncio.ensure_future(verb(call.arguments))
    try:
        await asyncio.wait((work,))
    finally:
        work.cancel()
    error = work.exception()
    if error is None:
        return work.result()
    if isinstance(error, TensorCastError):
        _logger.info("call %s (%s) fails: %s", call.id, call.verb, error)
        return from_error(error)
    _logger.error("call %s (%s) breaks off", call.id, call.verb, exc_info=error)
    return Fault(kind=FaultKind.INVALID, detail=f"The call breaks off: {error!r}.")


async def _tell(call: AsyncCall, outcome: Outputs | Fault) -> None:
    """Answers, however long the cluster is away."""
    while True:
        try:
            if isinstance(outcome, Fault):
                kind, permanent = outcome.kind.value, outcome.permanent
                detail = outcome.detail[:DETAIL_CHARS_MAX]
                await call.fail(detail, kind=kind, permanent=permanent)
            else:
                await call.answer(outcome)
            return
        except InvalidArgument as error:  # it is too long, for example
            assert not isinstance(outcome, Fault), "one sentence fits"
            outcome = from_error(error)
        except TensorCastError as error:
            if not error.retryable:
                _logger.error("call %s (%s) is not answered: %s", call.id, call.verb, error)
                return
            _logger.warning("the answer to call %s waits: %s", call.id, error)
            await asyncio.sleep(TELL_S)
