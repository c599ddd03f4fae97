"""The small parts of the connector: settings, names of files, counters, runs, addresses, the way to
the node."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tensorcast.client.blocks import Blocks
from tensorcast.engines.vllm.connector.addresses import Addresses
from tensorcast.engines.vllm.connector.counters import NAMES, Counters, add_up
from tensorcast.engines.vllm.connector.fingerprint import begin_naming, find_folder, name_files
from tensorcast.engines.vllm.connector.link import Link
from tensorcast.engines.vllm.connector.messages import StepReport
from tensorcast.engines.vllm.connector.settings import Settings, read_settings
from tensorcast.engines.vllm.connector.working import SHARE_BYTES, split_evenly
from tensorcast.schema.errors import Unavailable


def test_settings_are_read():
    assert read_settings({}) == Settings()
    assert read_settings({"node": "n1", "patience_s": 2}) == Settings(node="n1", patience_s=2)


@pytest.mark.parametrize(
    "wrong", [{"nod": "n1"}, {"node": 3}, {"weights": ""}, {"patience_s": "1"}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="kv_connector_extra_config"):
        read_settings(wrong)


def test_files_are_named_by_their_content(tmp_path: Path):
    assert name_files(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    assert name_files(tmp_path) is None
    (tmp_path / "a.safetensors").write_bytes(b"x" * 100)
    first = name_files(tmp_path)
    assert first is not None
    (tmp_path / "config.json").write_text("other")
    assert name_files(tmp_path) == first
    (tmp_path / "a.safetensors").write_bytes(b"x" * 99 + b"y")
    assert name_files(tmp_path) != first


def test_the_same_bytes_in_other_files_are_another_name(tmp_path: Path):
    for folder, cut in (("one", 3), ("other", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.bin").write_bytes(b"0123456789"[:cut])
        (tmp_path / folder / "b.bin").write_bytes(b"0123456789"[cut:])
    assert name_files(tmp_path / "one") != name_files(tmp_path / "other")


def test_a_model_that_is_not_here_has_no_name(tmp_path: Path):
    assert find_folder(str(tmp_path), None) == tmp_path
    assert begin_naming(str(tmp_path / "absent"), None).result(30) is None


def test_counters_are_taken_once():
    counters = Counters()
    counters.add("loaded_blocks", 2)
    counters.add("loaded_blocks", 3)
    counters.add("saved_blocks", 0)
    assert counters.take() == {"loaded_blocks": 5}
    assert counters.take() == {}
    assert add_up({"a": 1}, {"a": 2, "b": 3}) == {"a": 3, "b": 3}
    with pytest.raises(KeyError):
        counters.add("nonsense", 1)
    assert all(text[0].isupper() for text in NAMES.values())


def test_reports_of_several_workers_become_one():
    report = StepReport({0: "a"}, {1: 1, 2: 1}, set(), {"r"})
    report.add(StepReport({1: "b"}, {1: 1}, {1}, set()))
    assert report == StepReport({0: "a", 1: "b"}, {1: 2, 2: 1}, {1}, {"r"})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("each", [1, SHARE_BYTES // 3, SHARE_BYTES, 9 * SHARE_BYTES])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_loads_are_cut_without_gaps(count, each, threads):
    ranges = split_evenly(count, each, threads)
    assert [n for first, stop in ranges for n in range(first, stop)] == list(range(count))
    assert len(ranges) <= threads
    assert all(first < stop for first, stop in ranges)


def test_addresses_are_kept_and_a_silent_control_plane_is_left_alone():
    asked: list[int] = []

    def ask() -> dict[str, str]:
        asked.append(1)
        if len(asked) == 1:
            raise Unavailable("away", hint="wait")
        return {"n1": "here:1"}

    addresses = Addresses(ask)
    assert addresses.find("n1") is None
    assert addresses.find("n1") is None
    assert len(asked) == 1


def test_a_node_that_is_away_is_told_once_and_not_asked_for_a_moment(caplog):
    tries: list[int] = []

    def connect() -> Blocks:
        tries.append(1)
        raise Unavailable("The mover is away.", hint="wait")

    link = Link(connect)
    with caplog.at_level(logging.WARNING):
        assert link.find_states([b"k"]) is None
        assert link.is_resting
        assert link.find_states([b"k"]) is None
        assert link.put([b"k"], []) is None
        assert link.get_into([b"k"], []) == [False]
    assert len(tries) == 1
    assert caplog.text.count("The mover is away.") == 1
    link.close()


class OneNode:
    """Blocks of which this node has none, and another one that may be silent."""

    def __init__(self) -> None:
        self.peers = self
        self.asked: list[str | None] = []
        self.is_silent = True

    def is_resting(self, address: str) -> bool:
        return self.is_silent

    def get_into(self, keys, targets, address=None):
        self.asked.append(address)
        return [address is not None] * len(keys)


def test_a_node_that_was_silent_a_moment_ago_is_not_waited_for_once_more():
    """Not for what a request was told of either: the waits of a load would add up."""
    blocks = OneNode()
    link = Link(lambda: blocks, Addresses(lambda: {"n1": "here:1"}))
    assert link.get_into([b"k"], [None], "n1") == [False]
    blocks.is_silent = False
    assert link.get_into([b"k"], [None], "n1") == [True]
    assert blocks.asked == [None, None, "here:1"]
