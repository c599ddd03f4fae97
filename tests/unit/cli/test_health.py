"""The verdict on a cluster, from what its supervisor and its control plane say."""

from __future__ import annotations

import msgspec
import pytest

from cli_samples import node
from tensorcast.cli.commands.up import describe_log
from tensorcast.cli.health import Findings, judge
from tensorcast.deploy.control import ServiceStatus
from tensorcast.schema.api import ClusterStatus
from tensorcast.schema.ids import Seq

WELL = ServiceStatus(name="nats", state="up", pid=7)
ILL = ServiceStatus(name="mover-n2", state="restarting", detail="it was killed")
DOWN = ServiceStatus(name="nats", state="down", detail="not running")


def answer(*problems: str) -> ClusterStatus:
    return ClusterStatus(
        cluster="default",
        last_seq=Seq(9),
        committed_seq=Seq(8),
        scheduled_seq=Seq(9),
        nodes=(node(),),
        problems=problems,
    )


@pytest.mark.parametrize(
    ("findings", "state", "words"),
    [
        (Findings(home="/h", local="up", services=(WELL,), answer=answer()), "up", ""),
        (
            Findings(home="/h", local="degraded", services=(WELL, ILL), answer=answer()),
            "degraded",
            "mover-n2 is restarting: it was killed.",
        ),
        (
            Findings(home="/h", local="up", services=(WELL,), answer=answer("n3 is lost.")),
            "degraded",
            "n3 is lost.",
        ),
        (
            Findings(home="/h", local="up", services=(WELL,), silence="It does not answer."),
            "degraded",
            "It does not answer.",
        ),
        (Findings(home="/h", local="down", services=(DOWN,)), "down", "`tcctl up` starts it"),
        (Findings(answer=answer()), "up", ""),
        (Findings(answer=answer("a problem")), "degraded", "a problem"),
        (Findings(silence="No cluster is known."), "down", "No cluster is known."),
    ],
)
def test_the_verdict(findings: Findings, state: str, words: str) -> None:
    info = judge(findings)
    assert info.state == state
    assert words in " ".join(info.problems)
    assert bool(info.problems) == (state != "up")


def test_positions_come_from_the_control_plane() -> None:
    info = judge(Findings(answer=answer()))
    assert (info.last_seq, info.committed_seq, info.cluster) == (9, 8, "default")
    assert judge(Findings(silence="x")).last_seq is None


def test_a_position_that_nobody_can_tell_is_not_0() -> None:
    silent = msgspec.structs.replace(answer("Postgres is away."), committed_seq=Seq(0))
    info = judge(Findings(answer=silent))
    assert (info.last_seq, info.committed_seq) == (9, None)
    assert "is not known" in describe_log(info.last_seq, info.committed_seq)
