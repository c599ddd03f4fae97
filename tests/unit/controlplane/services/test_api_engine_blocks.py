"""What the API answers about the blocks in engines' own caches."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from rigs import running_rig
from samples import BEGIN
from tensorcast.controlplane.services.api import answer
from tensorcast.controlplane.services.api_engine_blocks import SILENT_S, judge, leading_runs
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.log.identity import now
from tensorcast.schema.api import parse_reply
from tensorcast.schema.api_engine_blocks import (
    EngineView,
    HoldersQuery,
    PrefixHolder,
    ReportBlocks,
    Reported,
    ReportedEvent,
    ViewQuery,
)
from tensorcast.schema.engine_blocks import EngineBlocksCleared
from tensorcast.schema.engine_events import EngineLeft, EngineRegistered
from tensorcast.schema.errors import InvalidArgument, PermissionDenied
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import EngineId, derive_event_id
from tensorcast.schema.prefixes import name_prefixes
from tensorcast.schema.signals import Topic

TOKENS = (1, 2, 3, 4, 5, 6)
NAMES = name_prefixes(TOKENS, 2)


def told(**changes) -> Told:
    one = Told("one", True, "", 5, 3, 7, now())
    return msgspec.structs.replace(one, **changes)


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


def event(kind="engine_blocks.cleared", **changes):
    cleared = EngineBlocksCleared(engine=EngineId("e1"), life="one", batch=0, is_exact=True)
    fields = {
        "id": derive_event_id("test", "event", 0),
        "type": kind,
        "at": BEGIN,
        "data": msgspec.Raw(msgspec.json.encode(cleared)),
    }
    return ReportedEvent(**(fields | changes))


async def report(rig, *events, actor="engine:e1"):
    request = ReportBlocks(actor=actor, events=events)
    return await ask(rig, "engine_blocks.report", request, Reported)


async def test_what_is_reported_lies_in_the_kv_log(rig):
    first = await report(rig, event())
    assert (first.seq, first.created) == (1, "1")
    assert await report(rig, event()) == first, "the same again is the same"
    rig.block_log.replace()
    assert (await report(rig, event())).created == "2"


@pytest.mark.parametrize(
    ("events", "actor", "error"),
    [
        ((), "engine:e1", InvalidArgument),
        ((event("blocks.cleared"),), "engine:e1", InvalidArgument),
        ((event("sung"),), "engine:e1", InvalidArgument),
        ((event(data=msgspec.Raw(b"{}")),), "engine:e1", InvalidArgument),
        ((event(id="1\r\n2"),), "engine:e1", InvalidArgument),
        ((event(),) * 65, "engine:e1", InvalidArgument),
        ((event(),), "mover:n1", PermissionDenied),
    ],
)
async def test_what_is_refused(rig, events, actor, error):
    with pytest.raises(error):
        await report(rig, *events, actor=actor)
    assert (await rig.block_log.reach()).last == 0


async def test_engines_with_how_well_they_are_known(rig):
    old = now() - timedelta(seconds=2 * SILENT_S)
    rig.blocks.engines = {
        "e1": (told(), (2,)),
        "e2": (told(is_exact=False, reason="lost"), (2, 4)),
        "e3": (told(at=old), ()),
    }
    found = await ask(rig, "engine_blocks.views", ViewQuery(), tuple[EngineView, ...])
    assert [(one.engine, one.state) for one in found] == [
        ("e1", "exact"),
        ("e2", "partial"),
        ("e3", "silent"),
    ]
    assert found[1].reason == "lost"
    assert "silent for 90 s" in found[2].reason
    await rig.append(SignalEmitted(topic=Topic("engine.load.e3")))
    found = await ask(rig, "engine_blocks.views", ViewQuery(), tuple[EngineView, ...])
    assert found[2].state == ("exact" if found[2].heard_at > old else "silent")


async def test_engines_that_stopped_hold_nothing(rig):
    rig.blocks.engines = {"e1": (told(), (2,))}
    rig.blocks.holders = (Holder("e1", "gpu", NAMES[0]),)
    await rig.append(
        EngineRegistered(
            engine=EngineId("e1"), life="l", kind="vllm", node=None, model="", url="u", ttl_s=15.0
        )
    )
    query = HoldersQuery(tokens=TOKENS)
    (holder,) = await ask(rig, "engine_blocks.holders", query, tuple[PrefixHolder, ...])
    assert holder.url == "u"
    await rig.append(EngineLeft(engine=EngineId("e1"), life="l"))
    assert await ask(rig, "engine_blocks.holders", query, tuple[PrefixHolder, ...]) == ()
    assert await ask(rig, "engine_blocks.views", ViewQuery(), tuple[EngineView, ...]) == ()
    views = await ask(rig, "engine_blocks.views", ViewQuery(all=True), tuple[EngineView, ...])
    assert len(views) == 1


async def test_who_holds_how_much_of_a_prompt(rig):
    rig.blocks.engines = {name: (told(), (2,)) for name in ("e1", "e2", "e3")}
    rig.blocks.holders = (
        *(Holder("e1", "gpu", name) for name in NAMES[:2]),
        Holder("e1", "cpu", NAMES[0]),
        *(Holder("e2", "gpu", name) for name in NAMES),
        Holder("e3", "gpu", NAMES[1]),  # not its beginning
    )
    query = HoldersQuery(tokens=TOKENS)
    found = await ask(rig, "engine_blocks.holders", query, tuple[PrefixHolder, ...])
    assert [(one.engine, one.tokens, one.blocks, one.media) for one in found] == [
        ("e2", 6, 3, {"gpu": 3}),
        ("e1", 4, 2, {"cpu": 1, "gpu": 2}),
    ]
    assert {one.state for one in found} == {"exact"}
    short = HoldersQuery(tokens=(1,))
    assert await ask(rig, "engine_blocks.holders", short, tuple[PrefixHolder, ...]) == ()
    with pytest.raises(InvalidArgument):
        await ask(rig, "engine_blocks.holders", HoldersQuery(tokens=(-1, 2)), object)


def test_runs_end_at_the_first_gap():
    held = [Holder("e", "gpu", NAMES[0]), Holder("e", "gpu", NAMES[2])]
    assert leading_runs(NAMES, held) == {"e": {"": 1, "gpu": 1}}
    assert leading_runs(NAMES, []) == {}


def test_silence_counts_from_the_last_word():
    late = BEGIN + timedelta(seconds=SILENT_S + 1)
    one = told(at=BEGIN)
    assert judge(one, None, late)[0] == "silent"
    assert judge(one, BEGIN + timedelta(seconds=2), late)[0] == "exact"
    assert judge(one, BEGIN - timedelta(seconds=2), BEGIN)[0] == "exact"
