"""The lines of the broadcast benchmark become samples."""

from __future__ import annotations

from bench_samples import suite
from harness.goals import judge
from harness.results import Results
from suites.broadcast import take_in
from suites.goals import BROADCAST

LINES = [
    {"what": "broadcast", "receivers": 1, "mib": 256, "all_s": [2.0, 2.2]},
    {"what": "broadcast", "receivers": 4, "mib": 256, "all_s": [2.08, 2.31]},
    {"what": "broadcast", "receivers": 8, "mib": 256, "all_s": [2.4, 2.64]},
    {"what": "stripe", "sources": 1, "mib": 256, "all_s": [3.0, 3.0]},
    {"what": "stripe", "sources": 3, "mib": 256, "all_s": [1.0, 1.1]},
    {"what": "faults", "fault": "relay killed", "seconds": 4.5, "tries": 1, "received": 1.02},
    {"what": "something new"},
]


def test_ratios_are_of_the_same_round() -> None:
    found = suite()
    found.entrants.clear()
    take_in(found, LINES, 256)
    results = Results(suites={"broadcast": found})
    verdicts = [judge(goal, results) for goal in BROADCAST]
    assert [round(verdict.value, 3) for verdict in verdicts] == [1.045, 1.2, 0.35]
    assert [verdict.is_met for verdict in verdicts] == [True, False, True]
    assert found.works["relay killed"].startswith("relay killed in the middle of 256 MiB")
