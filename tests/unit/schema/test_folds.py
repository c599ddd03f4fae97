"""The name of a fold changes with what a state holds, and with nothing else."""

from __future__ import annotations

import msgspec
import pytest

import story
from tensorcast.schema import folds
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.events import aggregate_of
from tensorcast.schema.folds import MAPS, STATES, fold_name


def test_every_map_of_states_is_there():
    kinds = [name for name in ClusterView.__struct_fields__ if name in STATES]
    assert kinds == list(STATES)


def test_a_field_more_is_another_fold(monkeypatch: pytest.MonkeyPatch):
    before = fold_name.__wrapped__()
    assert before == fold_name()

    fields = [("reason", str, "")]
    Lease = msgspec.defstruct("Lease", fields, bases=(STATES["leases"],), frozen=True)
    monkeypatch.setitem(STATES, "leases", Lease)
    assert fold_name.__wrapped__() != before


def test_words_are_not_the_fold(monkeypatch: pytest.MonkeyPatch):
    before = fold_name.__wrapped__()
    Same = msgspec.defstruct("Node", [], bases=(STATES["nodes"],), frozen=True)
    Same.__doc__ = "Said otherwise."
    monkeypatch.setitem(STATES, "nodes", Same)
    assert folds.fold_name.__wrapped__() == before


def test_each_kind_has_a_map_with_states():
    assert {aggregate_of(recorded.event)[0] for recorded in story.record()} <= set(MAPS)
    assert set(MAPS.values()) | {"parked"} == set(STATES)
