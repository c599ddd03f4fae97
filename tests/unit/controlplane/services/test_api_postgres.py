"""The views of the past that are kept in memory: found again, few, and forgotten."""

import asyncio

from tensorcast.controlplane.services.api_postgres import VIEWS_MAX, WALKS_MAX, Opened
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Seq


def view(seq: int) -> ClusterView:
    return ClusterView(at=Seq(seq))


async def test_the_nearest_view_before_a_moment_is_found():
    opened = Opened()
    assert opened.nearest(1, Seq(9)) == ClusterView()
    first = view(100)
    opened.keep(first, ClusterView())
    opened.keep(view(110), first)
    found = {seq: opened.nearest(1, Seq(seq)).at for seq in (99, 100, 105, 110, 1000)}
    assert found == {99: 0, 100: 100, 105: 100, 110: 110, 1000: 110}


async def test_another_life_of_the_log_has_none_of_them():
    opened = Opened()
    opened.nearest(1, Seq(9))
    opened.keep(view(5), ClusterView())
    assert opened.nearest(2, Seq(9)).at == 0
    assert opened.nearest(1, Seq(9)).at == 0


async def test_few_are_kept():
    opened = Opened()
    opened.nearest(1, Seq(0))
    for start in (1000, 2000, 3000):
        known = ClusterView()
        for step in range(VIEWS_MAX + 5):
            now = view(start + step)
            opened.keep(now, known)
            known = now
    assert opened.nearest(1, Seq(1999)).at == 0, f"only {WALKS_MAX} walks are kept"
    assert opened.nearest(1, Seq(2004)).at == 0
    assert opened.nearest(1, Seq(2005)).at == 2005
    assert opened.nearest(1, Seq(9999)).at == 3000 + VIEWS_MAX + 4


async def test_they_are_forgotten_when_nobody_asks():
    opened = Opened(keep_s=0)
    opened.nearest(1, Seq(0))
    opened.keep(view(5), ClusterView())
    assert opened.nearest(1, Seq(9)).at == 5
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert opened.nearest(1, Seq(9)).at == 0
