"""A policy that never answers ends the process that tries it, and is named."""

import subprocess
import sys

import msgspec
import pytest

from tensorcast.controlplane.core.catalog import CATALOG
from tensorcast.controlplane.services.watchdog import Watchdog, _place
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import encode
from tensorcast.schema.envelope import Draft

from samples import BEGIN, event_id  # isort: skip
from tensorcast.schema.events import NodeJoined
from tensorcast.schema.ids import Epoch, NodeId

SLEEPS = """
import time
from tensorcast.controlplane.core.policies.base import Configured


class Sleeps(Configured):
    name = "sleeps"

    def react(self, view, recorded):
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass
"""
RAISES = """
from tensorcast.controlplane.core.policies.base import Configured


class Raises(Configured):
    name = "raises"

    def react(self, view, recorded):
        return view.nodes["nobody"]
"""


@pytest.fixture
def backtest(tmp_path):
    events = [
        NodeJoined(node=NodeId(name), epoch=Epoch(1), address="x:1", tiers={}, transports=("tcp",))
        for name in ("n1", "n2")
    ]
    lines = ['{"tensorcast_log":1}']
    for seq, event in enumerate(events, 1):
        draft = Draft(id=event_id(seq), at=BEGIN, actor="user:ada@desk", event=event)
        lines.append(f'{{"seq":{seq},"log_epoch":1,"event":{encode(draft).decode()}}}')
    log = tmp_path / "log.ndjson"
    log.write_text("\n".join([*lines, f'{{"end":{len(events)}}}']) + "\n")

    def run(code, *options):
        file = tmp_path / "policy.py"
        file.write_text(code)
        program = "tensorcast.controlplane.simulator.main"
        command = [sys.executable, "-m", program, str(log), str(file), *options]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.returncode, msgspec.json.decode(done.stdout)

    return run


def test_a_policy_that_never_returns_is_given_up(backtest):
    code, answer = backtest(SLEEPS, "--decision-timeout", "0.5")
    assert (code, answer["error"]["code"]) == (1, "timeout")
    told = answer["error"]["message"]
    assert told.startswith("Policy sleeps did not answer event ")
    assert "within 0.5 s: it is at line 12 of policy.py" in told


def test_a_policy_that_raises_is_told_with_its_first_event_and_line(backtest):
    code, answer = backtest(RAISES)
    assert code == 0
    (fault,) = answer["instead"]["faults"]
    assert (fault["policy"], fault["seq"], fault["type"]) == ("raises", 1, "node.joined")
    assert fault["detail"] == "KeyError: 'nobody' (policy.py, line 9)"


def test_watched_policies_answer_as_before():
    dog = Watchdog(60.0, print)
    watched = dog.watch(CATALOG)
    names = [policy.name for policy in watched.running(ClusterView())]
    assert names == [policy.name for policy in CATALOG.running(ClusterView())]
    assert watched.is_essential("replicate")
    assert _place(None) == ""
