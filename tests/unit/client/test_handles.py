"""Waiting, with an answerer of our own and no clock of importance."""

from __future__ import annotations

import pytest

from tensorcast.client.api import ANSWER_SLACK_S
from tensorcast.client.handles import OUTAGE_S_MAX, wait_until
from tensorcast.client.position import Position
from tensorcast.schema.errors import NotFound, Timeout, Unavailable
from tensorcast.schema.ids import Seq

LATE = Timeout("It took too long.")


class Answers:
    """Gives one answer after another; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self.left = list(answers)
        self.timeouts: list[float] = []

    async def ask(self, timeout_s: float) -> object:
        self.timeouts.append(timeout_s)
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def is_done(answer: object) -> bool:
    return answer == "done"


async def test_a_wait_asks_until_it_is_settled():
    answers = Answers("not yet", "not yet", "done", "never asked")
    seen: list[object] = []
    assert await wait_until(answers.ask, is_done, None, seen.append, LATE) == "done"
    assert seen == ["not yet", "not yet", "done"]
    assert answers.left == ["never asked"]


async def test_a_wait_ends_in_time():
    answers = Answers(*["not yet"] * 10)
    with pytest.raises(Timeout, match="took too long"):
        await wait_until(answers.ask, is_done, 0.0, None, LATE)
    assert answers.timeouts == [0.0]


async def test_a_wait_asks_in_steps_that_an_outage_outlasts():
    answers = Answers("done")
    await wait_until(answers.ask, is_done, None, None, LATE)
    assert answers.timeouts[0] + ANSWER_SLACK_S < OUTAGE_S_MAX / 2


async def test_a_wait_outlives_a_restart_of_the_control_plane():
    answers = Answers(Unavailable("away"), "done")
    assert await wait_until(answers.ask, is_done, 60.0, None, LATE) == "done"


async def test_a_wait_does_not_hide_other_errors():
    with pytest.raises(NotFound):
        await wait_until(Answers(NotFound("gone")).ask, is_done, 60.0, None, LATE)


async def test_a_wait_without_time_left_tells_that_nobody_answered():
    with pytest.raises(Unavailable):
        await wait_until(Answers(Unavailable("away")).ask, is_done, -1.0, None, LATE)


def test_a_position_only_moves_forward():
    position = Position()
    position.advance(Seq(7))
    position.advance(Seq(3))
    assert position.seq == 7
