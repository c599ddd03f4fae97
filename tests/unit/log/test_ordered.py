"""The order of what is read, told to a consumer message by message."""

from __future__ import annotations

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tensorcast.log.ordered import _Broken, _check_reach, _Consumer, _seq_of
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq


class Wire:
    """Stands for a connection: keeps what the consumer answers."""

    def __init__(self) -> None:
        self.nats = self
        self.answered: list[str] = []

    async def publish(self, subject: str) -> None:
        self.answered.append(subject)


def message(seq: int) -> tuple[bytes, bytes, bytes]:
    reply = f"$JS.ACK.TC_c_LOG.r1.1.{seq}.{seq}.1700000000000000000.0"
    return b"tc.c.log.node.n1", reply.encode(), b"%d" % seq


def status(reply: str = "", **headers: str) -> Msg:
    named = {"Status": "100", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return Msg(Client(), subject="inbox", reply=reply, data=b"", headers=named)


async def consumer(
    *messages: Msg | tuple[bytes, bytes, bytes], after: int = 0
) -> tuple[_Consumer, Wire]:
    wire = Wire()
    made = _Consumer(wire, "TC_c_LOG", Seq(after))  # type: ignore[arg-type]  # a stand-in
    for one in messages:
        if isinstance(one, Msg):
            await made._on_status(one)
        else:
            made._on_message(*one)
    return made, wire


async def test_messages_come_in_batches_that_are_not_too_large():
    reader, _ = await consumer(*(message(seq) for seq in (5, 6, 7)), after=4)
    assert [(one.seq, one.payload) for one in await reader.take(2)] == [(5, b"5"), (6, b"6")]
    assert [one.seq for one in await reader.take(2)] == [7]


@pytest.mark.parametrize("seqs", [(2,), (1, 3), (1, 1), (1, 2, 1)])
async def test_a_gap_or_a_repeat_breaks_the_consumer(seqs):
    reader, _ = await consumer(*map(message, seqs))
    with pytest.raises(_Broken, match="came after"):
        await reader.take(10)


async def test_flow_control_is_answered_when_the_reader_gets_there():
    reader, wire = await consumer(message(1), status("flow.1"), message(2))
    await reader.take(1)
    assert wire.answered == []
    assert [one.seq for one in await reader.take(10)] == [2]
    assert wire.answered == ["flow.1"]


async def test_a_stalled_consumer_is_freed():
    reader, wire = await consumer(status(Nats_Consumer_Stalled="flow.2", Nats_Last_Stream="0"))
    assert await reader.take(10) == ()
    assert wire.answered == ["flow.2"]


async def test_a_heartbeat_tells_that_messages_got_lost():
    reader, _ = await consumer(message(1), status(Nats_Last_Stream="1"))
    assert len(await reader.take(10)) == 1
    reader, _ = await consumer(message(1), status(Nats_Last_Stream="4"))
    with pytest.raises(_Broken, match="after 1 got lost"):
        await reader.take(10)


async def test_a_changed_connection_breaks_the_consumer():
    reader, _ = await consumer(message(1))
    reader._interrupt()
    with pytest.raises(_Broken, match="connection"):
        await reader.take(10)


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.TC_c_LOG.r1.1.77.5.1700000000000000000.0",
        "$JS.ACK.domain.account.TC_c_LOG.r1.1.77.5.1700000000000000000.0",
        "$JS.ACK._.account.TC_c_LOG.r1.1.77.5.1700000000000000000.0.token",
    ],
)
def test_the_position_is_in_the_reply_subject(reply):
    assert _seq_of(reply.encode()) == 77


def test_a_log_that_ends_too_early_has_lost_events():
    _check_reach("TC_c_LOG", 5, Seq(5))
    with pytest.raises(Corrupt, match="ends at 4"):
        _check_reach("TC_c_LOG", 4, Seq(5))
