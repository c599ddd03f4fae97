"""Names of spaces: equal for equal facts, different for any difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.engines.vllm.connector.space import (
    block_keys,
    describe_configuration,
    name_space,
)
from tensorcast.schema.blocks import BlockKey, pack_space, unpack_key

FACTS = {"weights": "a1", "dtype": "float32", "block_size": 128, "quantization": None}
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20))


def test_the_order_of_facts_does_not_matter():
    assert name_space("m", FACTS) == name_space("m", dict(reversed(FACTS.items())))


@given(st.sampled_from(sorted(FACTS)), VALUES)
def test_any_other_fact_is_another_space(name, value):
    other = {**FACTS, name: value}
    is_same = repr(other) == repr(FACTS)
    assert (name_space("m", other) == name_space("m", FACTS)) == is_same


@given(st.text(max_size=100))
def test_every_model_gives_a_space_that_keys_can_have(model):
    space = name_space(model, FACTS)
    assert pack_space(space)
    assert space.rpartition(":")[2] == name_space("m", FACTS).rpartition(":")[2]


def test_where_a_model_came_from_is_no_fact():
    here = {"_name_or_path": "/a", "transformers_version": "5", "rope_theta": 1e4}
    there = {"_name_or_path": "/b", "transformers_version": "6", "rope_theta": 1e4}
    assert describe_configuration(here) == describe_configuration(there)
    assert describe_configuration(here) != describe_configuration({**here, "rope_theta": 1e5})


def test_each_block_has_a_key_for_each_rank_and_part():
    hashes = [b"a" * 32, b"b" * 32]
    keys = block_keys("s", hashes, [0, 1], 2)
    assert [unpack_key(key) for key in keys] == [
        BlockKey("s", hash_, part, rank) for hash_ in hashes for rank in (0, 1) for part in (0, 1)
    ]
