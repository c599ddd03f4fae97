"""Samples of benchmarks, for the tests of what is made of them."""

from __future__ import annotations

from harness.results import Entrant, Sample, SuiteResult

GIB = 1 << 30


def sample(contender: str = "a", work: str = "w", turn: int = 1, **more: object) -> Sample:
    known = {"seconds": 1.0, "bytes": GIB, "cpu_s": 0.5, "others_cpu_s": 0.2, "load": 1.0}
    return Sample(contender=contender, work=work, turn=turn, **{**known, **more})


def suite(*samples: Sample, **kinds: str) -> SuiteResult:
    entrants = [Entrant(name=name, kind=kind, over="tcp") for name, kind in kinds.items()]
    return SuiteResult(
        date="2026-11-30",
        seed=1,
        rounds=3,
        works={"w": "the work"},
        entrants=entrants,
        samples=list(samples),
    )
