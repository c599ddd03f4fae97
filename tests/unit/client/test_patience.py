import asyncio
import logging

import pytest

from tensorcast.client import patience as waits
from tensorcast.client.patience import Patience, outlast
from tensorcast.client.position import Position
from tensorcast.schema.errors import InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import Seq


async def test_whom_it_waits_for_is_told_once_for_each_silence(caplog):
    caplog.set_level(logging.WARNING)
    patience = Patience("the control plane of cluster c")
    told = asyncio.Event()
    patience._tell, tell = lambda after_s: (tell(after_s), told.set()), patience._tell
    with pytest.raises(ValueError, match="gone"):
        await patience.wait(_fail(told), 0.0)
    told.clear()
    assert await patience.wait(_answer(told), 0.0) == 7
    assert caplog.messages == [
        "Waiting for the control plane of cluster c, which has not answered for 0 s."
    ]
    told.clear()
    await patience.wait(_answer(told), 0.0)  # it had answered: this silence is another one
    assert len(caplog.messages) == 2


async def test_nobody_wonders_about_an_answer_that_comes(caplog):
    assert await Patience("x").wait(_seven(), 30.0) == 7
    assert not caplog.messages


async def _seven():
    return 7


async def _answer(told):
    await told.wait()
    return 7


async def _fail(told):
    await told.wait()
    raise ValueError("gone")


class Plane:
    cluster = "c"

    def __init__(self, *answers):
        self.position = Position()
        self.answers = list(answers)
        self.is_there = True

    async def connect(self):
        if not self.is_there:
            raise Unavailable("NATS cannot be reached.")

    async def ask(self):
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(waits, "AGAIN_S", 0.0)


async def test_it_asks_again_until_the_control_plane_is_back():
    plane = Plane(Unavailable("away"), Timeout("late"), Unavailable("away"), 7)
    assert await outlast(plane, plane.ask) == 7
    assert plane.answers == []


async def test_it_gives_up_in_time_and_at_once_where_asking_again_cannot_help():
    plane = Plane(Unavailable("away"), 7)
    with pytest.raises(Unavailable, match="away"):
        await outlast(plane, plane.ask, 0.0)
    plane = Plane(InvalidArgument("No."), 7)
    with pytest.raises(InvalidArgument):
        await outlast(plane, plane.ask)
    assert plane.answers == [7]


async def test_where_nothing_was_ever_reached_nobody_waits():
    plane = Plane(7)
    plane.is_there = False
    with pytest.raises(Unavailable, match="cannot be reached"):
        await outlast(plane, plane.ask)
    plane.position.advance(Seq(1))
    assert await outlast(plane, plane.ask) == 7
