"""Under which space blocks belong while weights change."""

from __future__ import annotations

from tensorcast.engines.vllm.connector.versions import Versions


def name(weights: str) -> str:
    return f"space-{weights}"


def test_nothing_is_shared_before_the_weights_are_known():
    versions = Versions(name)
    assert versions.space() is None
    versions.rename("files:1")
    assert versions.space() == "space-files:1"


def test_nothing_is_shared_before_all_other_facts_are_known():
    versions = Versions(name, is_open=False)
    versions.hear({0: "a"})
    assert versions.space() is None
    versions.is_open = True
    assert versions.space() == "space-a"


def test_what_workers_say_counts_more():
    versions = Versions(name, "files:1")
    versions.hear({0: "a"})
    assert (versions.space(), versions.weights) == ("space-a", "a")


def test_workers_that_do_not_agree_share_nothing():
    versions = Versions(name, "files:1")
    versions.hear({0: "a", 1: "a"})
    versions.hear({1: "b"})
    assert versions.space() is None
    versions.hear({0: "b"})
    assert versions.space() == "space-b"


def test_an_update_of_an_engine_whose_cache_was_cleared_leaves_it_clean():
    versions = Versions(name)
    versions.hear({0: "a"})
    versions.begin_step(has_tokens=True)
    versions.hear({0: "a"})
    versions.clear()
    versions.begin_step(has_tokens=True)  # the first step with the new weights
    versions.hear({0: "b"})
    assert versions.space() == "space-b"
    assert not versions.is_cache_mixed


def test_an_update_without_it_mixes_the_cache_until_it_is_cleared():
    versions = Versions(name)
    versions.hear({0: "a"})
    versions.begin_step(has_tokens=True)
    versions.hear({0: "a"})
    versions.begin_step(has_tokens=True)
    versions.hear({0: "b"})
    assert versions.is_cache_mixed
    versions.begin_step(has_tokens=True)
    versions.hear({0: "b"})
    assert versions.is_cache_mixed
    versions.clear()
    assert not versions.is_cache_mixed


def test_weights_that_nobody_knows_any_more_are_not_those_of_the_start():
    versions = Versions(name, "files:1")
    versions.hear({0: None})
    assert versions.space() == "space-files:1"
    versions.hear({0: "a"})
    versions.hear({0: None})
    assert versions.space() is None


def test_a_secluded_engine_has_a_space_of_its_own():
    versions = Versions(name, "files:1")
    versions.seclude("x")
    assert versions.space() == "space-files:1+x"
    versions.seclude("y")
    assert versions.space() == "space-files:1+y"
    versions.hear({0: "a"})  # weights of which it is known what they are
    assert versions.space() == "space-a"
