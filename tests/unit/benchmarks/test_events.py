"""The table of the benchmark of events, and the events that it makes."""

from __future__ import annotations

import pytest

from events.stories import EVENTS_A_STORY, drafts_of
from events.table import GOALS, insert, is_met, render
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import decode


def line(what: str, contender: str, **more: float) -> dict[str, object]:
    return {"what": what, "contender": contender, **more}


LINES = [
    *(line("throughput", "tensorcast", rate=rate) for rate in (5000.0, 6000.0, 7000.0)),
    *(line("throughput", "raw loop", rate=rate) for rate in (9000.0, 10_000.0, 11_000.0)),
    line("latency", "tensorcast", p50_ms=6.0, p99_ms=30.0),
    line("latency", "raw loop", p50_ms=5.0, p99_ms=10.0),
]


def test_each_goal_has_its_row_with_what_came_of_it():
    rows = render(LINES, "2 cores").splitlines()[4:]
    assert len(rows) == len(GOALS)
    assert rows[0].endswith(
        "6,000 events/s (5,000-7,000) | 10,000 events/s (9,000-11,000) | 0.60 | met |"
    )
    assert rows[1].endswith("| 0.60 | **missed** |")
    assert "| 1.20 | met |" in rows[2]
    assert "| 3.00 | **missed** |" in rows[3]
    assert all(row.endswith("| not run |") for row in rows[4:])


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text)
def test_a_bound_is_kept_when_it_is_just_reached(goal):
    worse = 0.99 if goal.more else 1.01
    for factor, expected in ((1.0, True), (worse, False)):
        seen = goal.bound * factor
        assert is_met(goal, seen, seen) is expected
    if goal.is_ratio:
        assert not is_met(goal, goal.bound, None)


def test_a_page_keeps_what_is_around_the_table():
    page = "a\n<!-- events -->\nold\n<!-- end of events -->\nb\n"
    assert insert(page, "new\n") == "a\n<!-- events -->\nnew\n<!-- end of events -->\nb\n"


async def test_what_is_measured_is_a_legal_history():
    log, view = MemoryLog(), ClusterView()
    count = 7 * EVENTS_A_STORY
    await log.append(drafts_of("x", count))
    for seq in range(1, count + 1):
        stored = await log.read_one(seq)
        view = project(view, decode(stored.payload, seq))
    assert view.skipped == 0
    assert len(view.artifacts) == len(view.keys) == 7
