"""Checkpoint files, good and hostile. They are small files in a folder of the test."""

from __future__ import annotations

import json
import os
import struct
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from intakes import written
from tensorcast.client import filling
from tensorcast.client.files import find_files, open_safetensors
from tensorcast.client.filling import write
from tensorcast.client.layout import take_in_tensors
from tensorcast.client.publishing import take_in
from tensorcast.client.torchfile import read_torch_file
from tensorcast.schema.errors import Cancelled, Corrupt, InvalidArgument, NotFound

TENSORS = {
    "a.weight": torch.arange(12.0).view(3, 4),
    "a.bias": torch.arange(3, dtype=torch.bfloat16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros((0, 5)),
    "flags": torch.tensor([True, False, True]),
}


def read(paths) -> tuple[bytes, object]:
    """The byte space that a put of these paths would write, and its identity."""
    with take_in(paths) as intake:
        return written(intake)


def content(memory: bytes, index) -> dict[str, bytes]:
    return {s.name: memory[s.offset : s.offset + s.size_bytes] for s in index}


def raw(tensor: torch.Tensor) -> bytes:
    return (
        bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""
    )


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def f32(begin: int, end: int, shape: list[int]) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def test_a_file_is_read_tensor_by_tensor(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    memory, sealed = read(path)
    index = sealed.manifest.index
    assert content(memory, index) == {name: raw(t) for name, t in TENSORS.items()}
    assert {s.name: s.shape for s in index} == {n: tuple(t.shape) for n, t in TENSORS.items()}


def test_a_file_and_its_tensors_make_the_same_artifact(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors")
    _, sealed = read(tmp_path / "x.safetensors")
    intake = take_in_tensors({s.name: TENSORS[s.name] for s in sealed.manifest.index})
    assert written(intake)[1] == sealed


def shards(folder, weight_map=None, name="model.safetensors.index.json"):
    save_file({"x": torch.ones(3), "y": torch.zeros(2)}, folder / "one.safetensors")
    save_file({"z": torch.full((4,), 2.0)}, folder / "two.safetensors")
    true = {"x": "one.safetensors", "y": "one.safetensors", "z": "two.safetensors"}
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map or true}))


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "other.safetensors.index.json"])
def test_a_folder_with_an_index_gives_its_shards(tmp_path, name):
    shards(tmp_path, name=name)
    memory, sealed = read(str(tmp_path))
    assert sorted(content(memory, sealed.manifest.index)) == ["x", "y", "z"]


def test_a_folder_with_a_whole_file_gives_that(tmp_path):
    shards(tmp_path)
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    assert [path.name for path in find_files([tmp_path])] == ["model.safetensors"]


def test_a_folder_without_either_gives_all_files(tmp_path):
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert [p.name for p in find_files([tmp_path])] == ["one.safetensors", "two.safetensors"]


def test_shards_may_be_links_into_a_cache(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    shards(tmp_path / "snapshot")
    moved = tmp_path / "blobs" / "0123"
    (tmp_path / "snapshot" / "one.safetensors").rename(moved)
    (tmp_path / "snapshot" / "one.safetensors").symlink_to(moved)
    assert len(read(tmp_path / "snapshot")[1].manifest.index) == 3


@pytest.mark.parametrize(
    ("weight_map", "told"),
    [
        ({"x": "../one.safetensors"}, "not a plain file name"),
        ({"x": "/etc/passwd"}, "not a plain file name"),
        ({"x": ".."}, "not a plain file name"),
        ({"x": ""}, "not a plain file name"),
        ({"x": "a\\b.safetensors"}, "not a plain file name"),
        ({"x": "three.safetensors"}, "three.safetensors, which is missing"),
        (
            {"x": "two.safetensors", "y": "one.safetensors", "z": "two.safetensors"},
            "'x' is in two.safetensors, but it is in one.safetensors",
        ),
        (
            {
                "x": "one.safetensors",
                "y": "one.safetensors",
                "z": "two.safetensors",
                "q": "two.safetensors",
            },
            "'q' is in two.safetensors, but it is in none",
        ),
        ({"x": "one.safetensors", "z": "two.safetensors"}, "holds 'y', which"),
    ],
)
def test_an_index_that_lies_is_corrupt(tmp_path, weight_map, told):
    shards(tmp_path, weight_map)
    with pytest.raises(Corrupt) as caught:
        read(tmp_path)
    assert told in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {}}',
        b"[" * 100_000,
    ],
    ids=["empty", "list", "cut", "no map", "no text", "no tensors", "deep"],
)
def test_an_index_that_is_none_is_corrupt(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(Corrupt, match=r"model\.safetensors\.index\.json"):
        read(tmp_path)


def test_shards_that_hold_a_tensor_twice_are_corrupt(tmp_path):
    shards(tmp_path)
    save_file({"z": torch.ones(1), "y": torch.ones(1)}, tmp_path / "two.safetensors")
    with pytest.raises(Corrupt, match=r"'y' is in .*one\.safetensors and in .*two\.safetensors"):
        read(tmp_path)


def test_files_that_hold_a_tensor_twice_are_corrupt(tmp_path):
    for name in ("one", "two"):
        save_file({"x": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(Corrupt, match="'x' is in"):
        read([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "nothing": b"",
        "short": b"\0\0\0",
        "a header of 2^63 bytes": safetensors({}, length=1 << 63),
        "a header of 90 MB": safetensors({}, length=90_000_000),
        "a header beyond the file": safetensors({}, length=3),
        "no JSON": safetensors(b"{{{{"),
        "no object": safetensors([1]),
        "deep JSON": safetensors(b"[" * 200_000),
        "not UTF-8": safetensors(b'{"\xff": 1}'),
        "data cut off": safetensors({"a": f32(0, 16, [4])}, bytes(15)),
        "data too long": safetensors({"a": f32(0, 16, [4])}, bytes(17)),
        "beyond the end": safetensors({"a": f32(0, 1 << 40, [1 << 38])}, bytes(16)),
        "overlap": safetensors({"a": f32(0, 8, [2]), "b": f32(4, 12, [2])}, bytes(12)),
        "the same bytes": safetensors({"a": f32(0, 8, [2]), "b": f32(0, 8, [2])}, bytes(8)),
        "a gap": safetensors({"a": f32(0, 8, [2]), "b": f32(12, 20, [2])}, bytes(20)),
        "backwards": safetensors({"a": f32(8, 0, [2])}, bytes(8)),
        "negative": safetensors({"a": f32(-8, 0, [2])}, bytes(8)),
        "a wrong size": safetensors({"a": f32(0, 12, [2])}, bytes(12)),
        "a negative shape": safetensors({"a": f32(0, 8, [-2])}, bytes(8)),
        "a huge shape": safetensors({"a": f32(0, 8, [1 << 62, 1 << 62])}, bytes(8)),
        "an unknown dtype": safetensors(
            {"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)
        ),
        "a name twice": safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
            bytes(2),
        ),
        "no name": safetensors({"": f32(0, 8, [2])}, bytes(8)),
        "a zero byte in a name": safetensors({"a\0b": f32(0, 8, [2])}, bytes(8)),
        "a field too many": safetensors({"a": {**f32(0, 8, [2]), "code": "x"}}, bytes(8)),
        "no offsets": safetensors({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        "metadata that is no text": safetensors({"__metadata__": {"a": 1}}),
    }.items(),
)
def test_a_file_that_breaks_the_format_is_corrupt(tmp_path, name, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=r"x\.safetensors"):
        read(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "a\\b"])
def test_names_with_path_separators_are_refused(tmp_path, name):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({name: f32(0, 8, [2])}, bytes(8)))
    with pytest.raises(Corrupt, match="path separator"):
        read(path)


def made(path):
    path.touch()
    return path


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda folder: folder / "no.safetensors", NotFound, "There is no file"),
        (lambda folder: folder / "no" / "x.safetensors", NotFound, "There is no file"),
        (lambda folder: folder, NotFound, "holds no checkpoint"),
        (lambda folder: made(folder / "x.txt"), InvalidArgument, "no checkpoint file by its name"),
        (lambda folder: [], InvalidArgument, "No file is named"),
        (lambda folder: [3], InvalidArgument, "A int cannot be put"),
        (
            lambda folder: [made(folder / "a.pt"), made(folder / "b.safetensors")],
            InvalidArgument,
            "alone",
        ),
    ],
)
def test_what_cannot_be_a_checkpoint_is_told(tmp_path, make, kind, told):
    with pytest.raises(kind) as caught:
        read(make(tmp_path))
    assert told in caught.value.message


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(InvalidArgument, match="no regular file"):
        read(tmp_path / "x.safetensors")


def test_two_indexes_are_one_too_many(tmp_path):
    shards(tmp_path, name="a.safetensors.index.json")
    shards(tmp_path, name="b.safetensors.index.json")
    with pytest.raises(InvalidArgument, match="several index files"):
        read(tmp_path)


@pytest.mark.parametrize(
    "change", [lambda path: os.truncate(path, 500), lambda path: os.utime(path, ns=(1, 1))]
)
def test_a_file_that_changes_meanwhile_is_corrupt(tmp_path, change):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    with open_safetensors([path]) as intake:
        change(path)
        with pytest.raises(Corrupt, match="changed while it was read"):
            written(intake)


@pytest.fixture
def memory():
    """Makes new memory for an intake."""
    made: list[int] = []

    def make(intake) -> int:
        made.append(os.memfd_create("test"))
        os.ftruncate(made[-1], intake.size_bytes)
        return made[-1]

    yield make
    for descriptor in made:
        os.close(descriptor)


def test_a_stopped_put_ends_with_no_thread_left(memory):
    intake = take_in_tensors({"a": torch.ones(3_000_000)})
    stop = threading.Event()
    stop.set()
    before = threading.active_count()
    with pytest.raises(Cancelled):
        write(memory(intake), intake, is_zero=True, stop=stop)
    assert threading.active_count() == before


def test_progress_ends_at_the_whole(memory):
    intake = take_in_tensors({"a": torch.ones(1_000_000)})
    seen: list[tuple[int, int]] = []
    write(
        memory(intake),
        intake,
        is_zero=True,
        stop=threading.Event(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(seen) == 4
    assert seen == sorted(seen)
    assert seen[-1] == (4_000_000, 4_000_000)
    assert filling.THREADS_MAX >= 2


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_torch_file_is_read_by_torch(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    tied = torch.arange(6.0)
    torch.save({"a": tied, "b": tied, "c": torch.ones(2, 2).t()}, path)
    _, sealed = read(path)
    index = {spec.name: spec for spec in sealed.manifest.index}
    assert index["a"].offset == index["b"].offset
    assert index["c"].shape == (2, 2)


def test_an_old_torch_file_is_read_too(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert len(read(tmp_path / "x.pt")[1].manifest.index) == 1


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/tensorcast-was-here",)


@pytest.mark.parametrize("value", [Hostile(), {"a": Hostile()}, torch.nn.Linear(1, 1)])
def test_a_torch_file_runs_no_code(tmp_path, value):
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(Corrupt, match="more than tensors"):
        read(tmp_path / "x.pt")
    assert not os.path.exists("/tmp/tensorcast-was-here")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 not really", b"\x80\x02."])
def test_a_broken_torch_file_is_corrupt(tmp_path, data):
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(Corrupt, match=r"cannot be read as a torch file|more than tensors"):
        read(tmp_path / "x.pt")


def test_junk_is_told_in_words(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"junk, not a pickle")
    with pytest.raises(Corrupt) as caught:
        read_torch_file(tmp_path / "x.pt")
    assert not any(letter.isdigit() for letter in caught.value.message.removeprefix(str(tmp_path)))


def test_a_torch_file_must_be_a_state_dict(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match="holds a list"):
        read_torch_file(tmp_path / "x.pt")
    torch.save({"model": {"a": torch.ones(1)}}, tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match="'model' is of type"):
        read(tmp_path / "x.pt")
    with pytest.raises(NotFound, match="There is no file"):
        read(tmp_path / "no.pt")


def test_load_file_agrees(tmp_path):
    """Our reading of a file is that of the format's own library."""
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    memory, sealed = read(path)
    theirs = load_file(path)
    assert {n: raw(t) for n, t in theirs.items()} == content(memory, sealed.manifest.index)
