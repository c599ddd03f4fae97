"""What the doctor says of two Soft-RoCE adapters, with settings and without."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rdma_ends import cut_link

TCCTL = str(Path(sys.executable).parent / "tcctl")
pytestmark = pytest.mark.rdma


def doctor(
    before: Callable[[], None] | None = None, **environ: str
) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and state and words of each check."""
    done = subprocess.run(
        [TCCTL, "-o", "json", "doctor", "rdma"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environ,
        preexec_fn=before,
    )
    rows = json.loads(done.stdout)
    told = {row["name"]: (row["state"], f"{row['found']} {row.get('mend', '')}") for row in rows}
    return done.returncode, told


def limit_locked_memory() -> None:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def test_settings_are_heeded():
    status, told = doctor()
    assert status == 0
    assert told["adapters"][1].strip() == "movers use rxe0, rxe1"
    assert told["pyverbs"][0] == "ok"
    status, told = doctor(TENSORCAST_RDMA="rxe1")
    assert (status, told["rxe0/1"][1]) == (
        0,
        "not used: another one was asked for To use it all the same, name it in TENSORCAST_RDMA.",
    )
    for wrong in (
        {"TENSORCAST_RDMA": "mlx5_9"},
        {"TENSORCAST_RDMA_GID_INDEX": "99"},
        {"TENSORCAST_RDMA_MTU": "9000"},
    ):
        status, told = doctor(**wrong)
        assert (status, told["adapters"][0]) == (1, "fail"), wrong
    status, told = doctor(TENSORCAST_RDMA="off")
    assert (status, list(told)) == (0, ["adapters"])


def test_who_may_lock_any_memory_has_no_limit():
    status, told = doctor(limit_locked_memory)
    assert (status, told["locked memory"]) == (0, ("ok", "no limit "))


def test_a_link_that_is_down_is_named_and_leaves_nothing_to_use():
    with cut_link():
        status, told = doctor()
    assert status == 1
    assert told["adapters"][0] == "fail"
    assert "`ip link set v" in told["rxe0/1"][1]
