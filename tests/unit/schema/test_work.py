from typing import get_args

import msgspec
import pytest

from samples import artifact_id
from tensorcast.schema.ids import NodeId, Tier
from tensorcast.schema.work import (
    Evict,
    Load,
    Materialize,
    Persist,
    Verify,
    Work,
    kind_of,
    target_tier,
)

A = artifact_id("a")
KINDS = [
    (Materialize(artifact=A, sources=(NodeId("n1"),)), "materialize", Tier.DRAM),
    (Materialize(artifact=A, tier=Tier.DISK), "materialize", Tier.DISK),
    (Load(artifact=A), "load", Tier.DRAM),
    (Persist(artifact=A), "persist", Tier.DISK),
    (Evict(artifact=A, tier=Tier.DRAM, reason="full"), "evict", None),
    (Verify(artifact=A, tier=Tier.DISK), "verify", None),
]


@pytest.mark.parametrize(("work", "kind", "tier"), KINDS)
def test_kinds_of_work(work, kind, tier):
    assert kind_of(work) == kind
    assert target_tier(work) == tier
    assert msgspec.json.decode(msgspec.json.encode(work), type=Work) == work


def test_the_table_above_is_complete():
    assert {type(work) for work, _, _ in KINDS} == set(get_args(Work))
