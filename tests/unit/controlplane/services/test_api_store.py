"""What the archiver is told when somebody asks for it."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

import pytest

from samples import BEGIN
from tensorcast.controlplane.services.api_store import archive_arguments
from tensorcast.schema.api_store import StartJob
from tensorcast.schema.errors import Conflict, InvalidArgument
from tensorcast.schema.ids import Seq

WHERE = SimpleNamespace(archive_dir="/old")
NOWHERE = SimpleNamespace(archive_dir=None)


def test_a_folder_that_is_named_goes_before_the_one_of_the_control_plane():
    by_seq = StartJob(name="archive", before_seq=Seq(7), folder="/new")
    assert archive_arguments(by_seq, WHERE) == ("/new", "--before-seq=7")
    assert archive_arguments(by_seq, NOWHERE) == ("/new", "--before-seq=7")
    by_time = StartJob(name="archive", before_time=BEGIN)
    assert archive_arguments(by_time, WHERE) == ("/old", f"--before-time={BEGIN.isoformat()}")


def test_what_is_old_and_where_it_goes_must_be_said():
    with pytest.raises(Conflict, match="not known where archives go"):
        archive_arguments(StartJob(name="archive", before_seq=Seq(7)), NOWHERE)
    for request in (
        StartJob(name="archive"),
        StartJob(name="archive", before_seq=Seq(7), before_time=BEGIN),
        StartJob(name="archive", before_time=datetime(2030, 1, 1)),
    ):
        with pytest.raises(InvalidArgument):
            archive_arguments(request, WHERE)
