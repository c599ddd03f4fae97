from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench_samples import GIB, sample, suite
from harness.results import (
    Results,
    load,
    merge,
    save,
    summaries,
    summarize,
)


def test_a_summary_is_of_medians() -> None:
    found = summarize(
        [
            sample(seconds=2.0, p50_us=10.0, facts={"own": 1.0}),
            sample(seconds=1.0, p50_us=30.0, cpu_s=0.7, facts={"own": 5.0}),
            sample(seconds=4.0, p50_us=20.0, cpu_s=0.9),
        ]
    )
    assert (found.rounds, found.seconds, found.cpu, found.p50_us) == (3, 2.0, 0.7, 20.0)
    assert found.rate == pytest.approx(GIB / 2e9)
    assert (found.low, found.high) == pytest.approx((GIB / 4e9, GIB / 1e9))
    assert found.low < found.quartiles[0] < found.rate < found.quartiles[1] < found.high
    assert found.facts == {"own": 3.0}
    assert found.noise == pytest.approx(0.1)


def test_one_round_is_its_own_spread() -> None:
    found = summarize([sample()])
    assert found.low == found.rate == found.high == found.quartiles[0]
    assert found.p99_us is None


def test_summaries_are_by_contender_and_work() -> None:
    found = summaries(suite(sample("a"), sample("b"), sample("a", "v"), sample("a", turn=2)))
    assert {key: summary.rounds for key, summary in found.items()} == {
        ("a", "w"): 2,
        ("b", "w"): 1,
        ("a", "v"): 1,
    }


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    results = Results(machine={"cores": "2"}, suites={"p2p": suite(sample(), a="ours")})
    save(results, tmp_path / "new" / "r.json")
    assert load(tmp_path / "new" / "r.json") == results
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["r.json"]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"suites": [1]}')
    with pytest.raises(msgspec.ValidationError):
        load(tmp_path / "r.json")


def test_parts_are_merged_by_suite() -> None:
    old = Results(machine={"cores": "1"}, suites={"kv": suite(), "p2p": suite()})
    new = Results(machine={"cores": "2"}, suites={"kv": suite(sample())})
    merged = merge(old, new)
    assert merged.machine == {"cores": "2"}
    assert (len(merged.suites["kv"].samples), len(merged.suites["p2p"].samples)) == (1, 0)
