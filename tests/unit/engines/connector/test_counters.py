"""What the connector counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorcast.engines.vllm.connector.counters import NAMES, Counters, add_up

PAGE = Path(__file__).resolve().parents[4] / "docs" / "vllm.md"


def test_sums_are_taken_once():
    counters = Counters()
    counters.add("lookups", 1)
    counters.add("lookups", 2)
    counters.add("saved_bytes", 0)
    assert counters.take() == {"lookups": 3}
    assert counters.take() == {}


def test_a_name_that_nobody_knows_is_a_mistake():
    with pytest.raises(KeyError):
        Counters().add("lookup", 1)


def test_sums_of_several_workers_are_added_up():
    assert add_up({"lookups": 1, "load_s": 0.5}, {"load_s": 0.25}) == {"lookups": 1, "load_s": 0.75}


def test_every_counter_is_in_the_docs():
    page = PAGE.read_text()
    for name, meaning in NAMES.items():
        assert f"| `vllm:tensorcast_kv_{name}_total` | {meaning[0].lower()}{meaning[1:]} |" in page
