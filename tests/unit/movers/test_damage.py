"""Damage is told in one sentence that names the chunks."""

from __future__ import annotations

import pytest

from samples import N1, artifact_id, manifest
from tensorcast.movers.damage import explain_damage, explain_disk, name_chunks
from tensorcast.movers.reports import Life
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import CorruptReplica, LoseReplica
from tensorcast.schema.errors import Corrupt, NotFound, PermissionDenied


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([3], "chunk 3"),
        ([1, 2, 3, 9], "chunks 1-3, 9"),
        (range(0, 40, 2), "chunks 0, 2, 4, 6, 8, 10, 12, 14 and more"),
    ],
)
def test_the_first_chunks_are_named(chunks, words):
    assert name_chunks(ChunkSet.of(chunks)) == words


def test_a_sentence_says_where():
    assert explain_damage(ChunkSet.of([2]), manifest(4), "the disk", N1) == (
        "1 of 4 chunks in the disk of node n1 does not match its digest: chunk 2."
    )


@pytest.mark.parametrize("error", [Corrupt("Too short."), PermissionDenied("No.")])
def test_a_file_that_cannot_be_read_has_no_chunk(error):
    report = explain_disk(error, artifact_id("a"), manifest(4), Life(N1))
    assert isinstance(report, CorruptReplica)
    assert report.chunks == ChunkSet.full(4)
    assert "node n1" in report.detail


def test_a_file_that_is_not_there_is_a_replica_lost():
    report = explain_disk(NotFound("Nothing."), artifact_id("a"), manifest(4), Life(N1))
    assert isinstance(report, LoseReplica)
