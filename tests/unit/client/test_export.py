"""Tensors into safetensors files, read back by the format's own library."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from intakes import written
from tensorcast.client import export
from tensorcast.client.export import write_safetensors
from tensorcast.client.layout import take_in_tensors
from tensorcast.client.memory import map_segment
from tensorcast.client.publishing import take_in
from tensorcast.schema.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
)
from tensorcast.schema.origins import note_origin
from tensorcast.schema.safetensors import header_bytes, parse_header
from tensorcast.schema.views import Slice, View, resolve

WHOLE = torch.arange(24.0).view(4, 6)
TENSORS = {
    "whole": WHOLE,
    "tied": WHOLE,
    "turned": WHOLE.t(),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros((2, 0)),
}


def export_to(
    path, tensors=TENSORS, *, view=None, force=False, stop=None, progress=None, notes=None
) -> str:
    intake = take_in_tensors(tensors)
    segment = os.memfd_create("test")
    os.write(segment, written(intake)[0])
    read, lifeline = os.pipe()
    os.close(read)
    return write_safetensors(
        map_segment((segment, lifeline), intake.size_bytes),
        resolve(view or View(), intake.index),
        path,
        force=force,
        stop=stop or threading.Event(),
        progress=progress,
        notes=notes or {},
    )


def test_what_is_written_is_what_was_put(tmp_path):
    written = export_to(tmp_path / "out.safetensors")
    found = load_file(written)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)
    with safe_open(written, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert list(tmp_path.iterdir()) == [tmp_path / "out.safetensors"]


def test_a_part_says_what_it_was_made_from_and_whoever_puts_it_knows(tmp_path):
    note = note_origin("a" * 40, "view names=whole")
    written = export_to(tmp_path / "out.safetensors", view=View(names=("whole",)), notes=note)
    with safe_open(written, "pt") as file:
        assert file.metadata() == {"format": "pt", **note}
    with take_in(written) as intake:
        assert intake.labels == note
    with take_in(export_to(tmp_path / "all.safetensors")) as intake:
        assert intake.labels == {}


def test_every_tensor_lies_at_a_multiple_of_its_element(tmp_path):
    written = export_to(tmp_path / "out.safetensors")
    data = Path(written).read_bytes()
    length = header_bytes(data[:8], len(data), "out")
    for tensor in parse_header(data[8 : 8 + length], len(data), "out").tensors:
        width = {"F32": 4, "BF16": 2, "BOOL": 1}[tensor.dtype]
        assert tensor.place.offset % width == 0


def test_a_view_writes_only_its_part(tmp_path):
    view = View(names=("whole", "turned"), slices=(("whole|turned", Slice(1, 1, 2)),))
    found = load_file(export_to(tmp_path / "out.safetensors", view=view))
    assert torch.equal(found["whole"], WHOLE[:, 1:3])
    assert torch.equal(found["turned"], WHOLE.t()[:, 1:3])


def test_no_tensors_make_a_valid_file(tmp_path):
    assert load_file(export_to(tmp_path / "out.safetensors", {})) == {}


@pytest.mark.parametrize("name", ["", "/"])
def test_a_folder_gets_a_file_of_the_usual_name(tmp_path, name):
    assert export_to(f"{tmp_path}{name}") == str(tmp_path / "model.safetensors")


def test_a_path_with_a_slash_at_its_end_becomes_a_folder(tmp_path):
    assert export_to(f"{tmp_path}/a/b/") == str(tmp_path / "a" / "b" / "model.safetensors")


def test_a_file_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "out.safetensors"
    path.write_text("precious")
    with pytest.raises(InvalidArgument, match="exists"):
        export_to(path)
    assert path.read_text() == "precious"
    export_to(path, force=True)
    assert len(load_file(path)) == len(TENSORS)


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(NotFound, match="There is no folder"):
        export_to(tmp_path / "no" / "out.safetensors")


def test_a_folder_that_takes_no_files_is_told():
    """/proc is there, but nobody can make a file in it."""
    with pytest.raises(PermissionDenied, match="/proc/y cannot be written"):
        export_to("/proc/y")


@pytest.mark.parametrize("method", ["exists", "is_dir"])
def test_a_folder_that_may_not_be_looked_into_is_told(tmp_path, monkeypatch, method):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(PermissionDenied, match="cannot be written"):
        export_to(tmp_path / "y")


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """The translation of the error; a real full disk is among the integration tests."""
    error = export._translate(OSError(errno.ENOSPC, "full"), tmp_path / "out.safetensors")
    assert isinstance(error, OutOfCapacity)
    assert "no room" in error.message


def test_a_stopped_export_leaves_nothing_behind(tmp_path):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        export_to(tmp_path / "out.safetensors", stop=stop)
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_at_the_whole_file(tmp_path):
    seen: list[tuple[int, int]] = []
    written = export_to(tmp_path / "o.safetensors", progress=lambda *now: seen.append(now))
    size = os.path.getsize(written)
    assert seen[-1] == (size, size)


def test_a_killed_export_leaves_nothing_behind(tmp_path):
    def die(_done: int, _total: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        export_to(tmp_path / "out.safetensors", progress=die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_unnamed_files_is_written_to_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorcast.client.export._open_unnamed", lambda _: None)
    seen: list[str] = []
    export_to(
        tmp_path / "out.safetensors",
        progress=lambda *_: seen.extend(path.name for path in tmp_path.iterdir()),
    )
    assert seen[0].startswith(".out.safetensors.")
    assert list(tmp_path.iterdir()) == [tmp_path / "out.safetensors"]


def test_a_new_file_has_the_permissions_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        written = export_to(tmp_path / "out.safetensors")
    finally:
        os.umask(before)
    assert os.stat(written).st_mode & 0o777 == 0o640
