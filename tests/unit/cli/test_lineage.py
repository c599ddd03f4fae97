"""Lineage as people read it."""

from datetime import timedelta

from cli_samples import ART, Tcctl
from samples import BEGIN, artifact_id
from tensorcast.schema.api import ServedInfo
from tensorcast.schema.api_past import LineageInfo, MadeInfo, NamedSpan

LATER = BEGIN + timedelta(hours=1)
INFO = LineageInfo(
    artifact=ART,
    kind="weights",
    state="sealed",
    labels={"made-by": "merge"},
    sealed_at=BEGIN,
    sealed_by="user:ada@desk",
    sealed_seq=3,
    sources=(MadeInfo(artifact=artifact_id("base"), by="merge", seq=3),),
    results=(),
    keys=(
        NamedSpan(
            key="k", since=BEGIN, until=LATER, since_seq=4, until_seq=9, actor="user:ada@desk"
        ),
        NamedSpan(
            key="j", since=BEGIN, until=None, since_seq=5, until_seq=None, actor="user:bob@desk"
        ),
    ),
    engines=(
        ServedInfo(
            engine="e1", version="v1", artifact=ART, since=BEGIN, until=None, life="one", seq=7
        ),
    ),
)


def test_what_there_is_of_it_is_told(tcctl: Tcctl) -> None:
    tcctl.answer(lineage=INFO)
    text = tcctl("artifact", "lineage", "k").out
    for part in ("Made from", artifact_id("base")[:12], "#4 - #9", "2030-01-01T01:00:00Z", "now"):
        assert part in text
    assert "Made into" not in text
    assert tcctl("artifact", "lineage", "k", "-q").out.strip() == ART
    data = tcctl("artifact", "lineage", "k", "-o", "json").data
    assert [one["until_seq"] for one in data["keys"]] == [9, None]
