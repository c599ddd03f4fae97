from __future__ import annotations

import pytest

from block_samples import key
from cli_samples import Tcctl, event
from samples import BEGIN
from tensorcast.cli.commands import kv
from tensorcast.schema.api import (
    BlockCount,
    BlockHolder,
    BlockInfo,
    BlockMention,
    NodeBlocks,
    SpaceBlocks,
)
from tensorcast.schema.api_engine_blocks import EngineView, PrefixHolder
from tensorcast.schema.blocks import BlockKey, unpack_key
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import EngineId, NodeId, Seq, Tier

N1 = NodeId("n1")
COUNT = BlockCount(blocks=3, bytes=3 << 16)
STATS = NodeBlocks(
    node=N1, state="up", epoch=1, tiers={Tier.DRAM: COUNT, Tier.DISK: COUNT}, counters={"hits": 7}
)
SPACE = SpaceBlocks(space="llama", blocks=3, bytes=3 << 16, nodes={N1: {Tier.DRAM: COUNT}})
INFO = BlockInfo(
    space="llama",
    prefix="00" * 15 + "07",
    layer_group=0,
    rank=0,
    holders=(BlockHolder(node=N1, tier=Tier.DRAM, bytes=1 << 16, since=BEGIN, seq=Seq(4)),),
    events=(
        BlockMention(
            seq=Seq(4),
            at=BEGIN,
            type="blocks.stored",
            node=N1,
            epoch=1,
            tier=Tier.DRAM,
            bytes=1 << 16,
        ),
    ),
)
STORED = {"node": "n1", "tier": "dram", "space": "llama", "blocks": 3, "held_blocks": 9}


def test_stats_show_each_node_and_tier(tcctl: Tcctl) -> None:
    tcctl.answer(block_stats=(STATS, NodeBlocks(node=NodeId("n2"), state="up", epoch=1, tiers={})))
    lines = tcctl("kv", "stats").out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["n1", "disk", "3"],
        ["n1", "dram", "3"],
        ["n2", "0", "0"],
    ]
    assert "hits 7" in lines[1]
    data = tcctl("kv", "stats", "-o", "json").data
    assert data[0]["tiers"]["dram"] == {"blocks": 3, "bytes": 3 << 16}
    assert data[0]["counters"] == {"hits": 7}


def test_ls_shows_spaces(tcctl: Tcctl) -> None:
    tcctl.answer(block_spaces=(SPACE,))
    assert "n1/dram 3" in tcctl("kv", "ls").out
    assert tcctl("kv", "ls", "-q").out == "llama\n"
    assert tcctl("kv", "ls", "-o", "json").data[0]["nodes"]["n1"]["dram"]["blocks"] == 3


@pytest.mark.parametrize(
    "text", [str(unpack_key(key(7))), "llama/" + "00" * 15 + "07", "llama/0/0/" + "00" * 15 + "07"]
)
def test_show_takes_a_key_as_it_is_printed(tcctl: Tcctl, text: str) -> None:
    api = tcctl.answer(block=INFO)
    run = tcctl("kv", "show", text, "--node", "n1", "-o", "json")
    assert run.data["holders"][0]["node"] == "n1"
    assert api.calls == [("block", (unpack_key(key(7)),), {"node": "n1"})]
    assert "n1 (epoch 1)" in tcctl("kv", "show", text).out
    assert tcctl("kv", "show", text, "-q").out == "n1\n"


def test_a_space_may_hold_slashes(tcctl: Tcctl) -> None:
    api = tcctl.answer(block=INFO)
    tcctl("kv", "show", "meta/llama/3/1/" + "ab" * 8)
    assert api.calls[0][1] == (BlockKey("meta/llama", b"\xab" * 8, 3, 1),)


@pytest.mark.parametrize("text", ["", "llama", "llama/xyz", "llama/ab", "a b/" + "00" * 8, "/00"])
def test_what_is_no_key_is_exit_2(tcctl: Tcctl, text: str) -> None:
    run = tcctl("kv", "show", text)
    assert run.code == 2
    assert "PREFIX" in run.err


def test_an_unknown_block_is_exit_3(tcctl: Tcctl) -> None:
    tcctl.answer(block=NotFound("No node has told of it."))
    assert tcctl("kv", "show", "llama/" + "00" * 8).code == 3


def test_tail_prints_one_event_a_line(tcctl: Tcctl) -> None:
    api = tcctl.answer(
        block_events=(
            event(1, "blocks.cleared", {"node": "n1", "epoch": 1, "reason": "start"}),
            event(2, "blocks.stored", STORED),
            event(3, "blocks.moved", {"node": 5}),
        )
    )
    lines = tcctl("kv", "tail", "-o", "ndjson", "--node", "n1", "--last", "5").out.splitlines()
    assert len(lines) == 3
    (query,) = api.calls[0][1]
    assert (query.node, query.limit, query.newest, query.with_keys) == ("n1", 5, True, False)
    table = tcctl("kv", "tail").out
    assert "start" in table
    assert "newer release" in table


def test_tail_follows(tcctl: Tcctl, monkeypatch) -> None:
    monkeypatch.setattr(kv, "FOLLOW_S", 0)
    pages = iter(
        [
            (event(7, "blocks.stored", STORED),),
            (),
            (event(8, "blocks.stored", STORED),),
            KeyboardInterrupt(),
        ]
    )

    def answer(query):
        found = next(pages)
        if isinstance(found, KeyboardInterrupt):
            raise found
        return found

    api = tcctl.answer(block_events=answer)
    run = tcctl("kv", "tail", "-f", "-o", "ndjson")
    assert len(run.out.splitlines()) == 2
    assert [call[1][0].since for call in api.calls] == [0, 7, 7, 8]


VIEW = EngineView(
    engine=EngineId("e1"),
    state="partial",
    reason="Batches 1 to 3 are lost.",
    blocks=7,
    block_tokens=(16,),
    batch=9,
    at=BEGIN,
    heard_at=None,
    seq=Seq(4),
)
HOLDER = PrefixHolder(
    engine=EngineId("e1"),
    tokens=32,
    blocks=2,
    block_tokens=16,
    media={"cpu": 1, "gpu": 2},
    state="exact",
    reason="",
    url="http://h:1",
)


def test_engines_say_how_well_they_are_known(tcctl: Tcctl) -> None:
    tcctl.answer(engine_views=(VIEW,))
    line = tcctl("kv", "engines").out.splitlines()[1]
    assert line.split()[:5] == ["e1", "7", "16", "partial", "10m"]
    assert "Batches 1 to 3" in line
    (data,) = tcctl("kv", "engines", "--all", "-o", "json").data
    assert (data["state"], data["blocks"], data["batch"]) == ("partial", 7, 9)


def test_holders_of_a_prompt(tcctl: Tcctl, tmp_path) -> None:
    api = tcctl.answer(holders=(HOLDER,))
    line = tcctl("kv", "holders", "1,22172, 263").out.splitlines()[1]
    assert line.split()[:5] == ["e1", "32", "2", "cpu", "1,"]
    file = tmp_path / "ids.json"
    file.write_text("[1, 2,\n3]")
    (data,) = tcctl("kv", "holders", f"@{file}", "--salt", "s", "-o", "json").data
    assert (data["engine"], data["tokens"], data["media"]) == ("e1", 32, {"cpu": 1, "gpu": 2})
    assert [call[1] for call in api.calls] == [((1, 22172, 263),), ((1, 2, 3),)]
    assert api.calls[1][2] == {"lora": None, "salt": "s"}


@pytest.mark.parametrize(("text", "code"), [("", 2), ("1,a", 2), ("-1", 2), ("@/nowhere", 3)])
def test_what_are_no_tokens(tcctl: Tcctl, text: str, code: int) -> None:
    assert tcctl("kv", "holders", "--", text).code == code


def test_tail_shows_what_engines_hold(tcctl: Tcctl) -> None:
    stored = {"engine": "e1", "medium": "gpu", "blocks": 3, "held_blocks": 9}
    page = (
        event(1, "engine_blocks.cleared", {"engine": "e1", "reason": "lost"}),
        event(2, "engine_blocks.stored", stored),
    )
    tcctl.answer(block_events=page)
    cleared, stored_ = tcctl("kv", "tail").out.splitlines()[1:]
    assert cleared.split()[2:] == ["engine_blocks.cleared", "e1", "lost"]
    assert stored_.split()[2:] == ["engine_blocks.stored", "e1", "gpu", "3", "9"]
