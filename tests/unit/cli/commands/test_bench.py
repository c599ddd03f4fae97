from __future__ import annotations

from pathlib import Path

import pytest

from cli_samples import Tcctl
from tensorcast.cli.commands.bench import choose, format_seconds_exactly
from trial_client import TrialClient

MIB = 1 << 20
SMALL = ("--size", "1MiB", "--rounds", "1")


@pytest.fixture
def client(tcctl: Tcctl) -> TrialClient:
    tcctl.client = TrialClient(room=256 * MIB)
    return tcctl.client


def test_it_shows_ours_beside_the_machine(tcctl: Tcctl, client: TrialClient) -> None:
    out = tcctl("bench", "share", "--to", "n2", *SMALL).out
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["WHAT", "SIZE"]
    assert [line.split()[0] for line in lines[1:-1]] == ["put", "get", "put"]
    assert lines[-1].startswith("Node n1. Medians")


def test_json_has_exact_values(tcctl: Tcctl, client: TrialClient) -> None:
    data = tcctl("bench", "p2p", *SMALL, "-o", "json").data
    assert [one["what"] for one in data] == ["p2p to n2"]
    assert set(data[0]) == {
        "what",
        "bytes",
        "rounds",
        "seconds",
        "seconds_min",
        "seconds_max",
        "bytes_per_s",
        "baseline",
        "baseline_bytes_per_s",
        "ratio",
    }
    assert "replicate to n2" in client.calls


def test_by_default_it_tries_what_the_options_allow() -> None:
    assert choose([], None, None) == ("share", "kv")
    assert choose([], "n2", Path("x")) == ("share", "kv", "p2p", "load")
    assert choose(["get", "get"], "n2", None) == ("get",)


def test_ctrl_c_is_exit_130_and_leaves_nothing(tcctl: Tcctl, client: TrialClient) -> None:
    client.breaks = ("get",)
    run = tcctl("bench", *SMALL)
    assert (run.code, run.out, run.err) == (130, "", "")
    assert not client.kept


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("bench", "--size", "1GiB"), 1),
        (("bench", "fly"), 2),
        (("bench", "--size", "much"), 2),
        (("bench", "--rounds", "0"), 2),
        (("bench", "--path", "nowhere"), 2),
        (("bench", "load"), 2),
    ],
)
def test_what_cannot_be_is_one_error(
    tcctl: Tcctl, client: TrialClient, arguments: tuple[str, ...], code: int
) -> None:
    run = tcctl(*arguments, "-o", "json")
    assert (run.code, run.out) == (code, "")
    assert run.error["message"]


def test_a_person_sees_which_round_it_is(tcctl: Tcctl, client: TrialClient) -> None:
    tcctl.is_terminal = True
    assert "round 1 of 1" in tcctl("bench", "put", *SMALL).err
    assert tcctl("bench", "put", "-q", *SMALL).err == ""


def test_short_times_keep_their_fraction() -> None:
    assert [format_seconds_exactly(s) for s in (0.0012, 0.25, 2.5)] == ["1.2 ms", "250 ms", "2.5 s"]
