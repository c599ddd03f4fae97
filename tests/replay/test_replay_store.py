"""Logs of released versions lead to the same states whichever way they are folded, and Postgres
holds them."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

from stores import committed, database, engine, persisting, stored_view
from tensorcast.controlplane.core.snapshots import pack, unpack
from tensorcast.controlplane.store.gathering import Gathering
from tensorcast.controlplane.store.load import fold, rebuild
from tensorcast.controlplane.store.write import load_position
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, assemble, project
from tensorcast.schema.codec import decode
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import subject_of

__all__ = ["database", "engine"]  # fixtures
LOGS = sorted(Path(__file__).parent.glob("v*.ndjson"))


def read(path):
    """The events as they lay in the log of that release."""
    lines = path.read_bytes().splitlines()
    events = [decode(line, Seq(number)).event for number, line in enumerate(lines, 1)]
    return tuple(
        Stored(Seq(number), subject_of("default", event), line)
        for number, (line, event) in enumerate(zip(lines, events, strict=True), 1)
    )


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_way_to_fold_a_recorded_log_leads_to_the_same_view(path):
    log = read(path)
    view = reduce(project, (decode(one.payload, one.seq) for one in log), ClusterView())
    assert fold(ClusterView(), log) == view
    gathering = Gathering()
    for one in log:
        gathering.take(one)
    assert gathering.letters == []
    assert gathering.view() == view
    states = [state for part, _ in pack(view, Seq(0)) for state in unpack(part)]
    assert assemble(states, at=view.at) == view


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
async def test_postgres_holds_a_recorded_log_and_what_it_leads_to(database, engine, path):
    log = MemoryLog()
    log._stored = list(read(path))
    view = fold(ClusterView(), tuple(log._stored))
    async with persisting(log, database) as progress:
        await committed(progress, view.at)
    assert await stored_view(engine) == view
    async with engine.connect() as connection:
        assert await rebuild(connection, await load_position(connection)) == view
