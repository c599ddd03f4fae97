"""Checkpoints in a real S3-compatible server: read, written, and everything that can go wrong."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from safetensors.torch import save, save_file

import tensorcast as tc
from intakes import written
from s3 import S3Server, s3_server
from tensorcast.client import files
from tensorcast.client.export import measure, write_safetensors
from tensorcast.client.files import find_files, open_safetensors
from tensorcast.client.filling import digest
from tensorcast.schema.errors import (
    Cancelled,
    Corrupt,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tensorcast.schema.tensors import lay_out
from tensorcast.schema.views import Selected
from tensorcast.storage import objects
from tensorcast.storage.objects import ObjectReader, open_store

TENSORS = {
    "a.weight": torch.arange(512 * 1024.0).view(512, 1024),
    "a.bias": torch.arange(100, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.zeros((0, 5)),
}


@pytest.fixture(scope="module")
def shared():
    with s3_server() as server:
        server.make_bucket("models")
        yield server


@pytest.fixture
def server(shared, monkeypatch) -> S3Server:
    """The server of this module; the environment names it."""
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    return shared


def upload(server: S3Server, path: str, content: bytes) -> str:
    return server.upload("models", path, content)


def check(found, wanted=TENSORS) -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


# ---- in ----------------------------------------------------------------------------------------


def test_an_object_is_loaded(server):
    url = upload(server, "one/model.safetensors", save(TENSORS))
    check(tc.load(url))
    check(tc.load("s3://models/one"))
    check(tc.load("s3://models/one/", mode="copy", threads=3))
    targets = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    tc.load_into(url, targets)
    check(targets)
    with pytest.raises(InvalidArgument, match="cannot be mapped"):
        tc.load(url, mode="map")


def test_shards_are_loaded_as_their_index_says(server):
    names = list(TENSORS)
    shards = {"one.safetensors": names[:1], "two.safetensors": names[1:]}
    for file, held in shards.items():
        upload(server, f"sharded/{file}", save({name: TENSORS[name] for name in held}))
    weight_map = {name: file for file, held in shards.items() for name in held}
    index = json.dumps({"weight_map": weight_map}).encode()
    upload(server, "sharded/model.safetensors.index.json", index)
    check(tc.load("s3://models/sharded"))
    weight_map["a.weight"] = "two.safetensors"
    index = json.dumps({"weight_map": weight_map}).encode()
    upload(server, "sharded/model.safetensors.index.json", index)
    with pytest.raises(Corrupt, match="but it is in none"):
        tc.load("s3://models/sharded")


def test_only_what_a_view_needs_is_read(server, monkeypatch):
    url = upload(server, "view/model.safetensors", save(TENSORS))
    monkeypatch.setattr(objects, "HEAD_BYTES", 4096)
    read_bytes = []
    read = objects.Store.read

    def count(self, path, version, position, size):
        read_bytes.append(size)
        return read(self, path, version, position, size)

    monkeypatch.setattr(objects.Store, "read", count)
    view = tc.View.slice(r"a\.weight", dim=0, start=256, length=16)
    check(
        tc.load(url, view=tc.View(names=(r"a\.weight",), slices=view.slices)),
        {"a.weight": TENSORS["a.weight"][256:272]},
    )
    assert sum(read_bytes) <= 4096 + 16 * 4096


def test_a_web_server_is_read(server):
    policy = {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": ["arn:aws:s3:::public", "arn:aws:s3:::public/*"],
            }
        ]
    }
    server.make_bucket("public")
    server.request("PUT", "/public?policy", json.dumps(policy).encode())
    server.upload("public", "m/model.safetensors", save(TENSORS))
    check(tc.load(f"{server.endpoint}/public/m/model.safetensors"))
    check(tc.load(f"{server.endpoint}/public/m"))


def test_a_put_takes_an_object_in(server):
    url = upload(server, "put/model.safetensors", save(TENSORS))
    with open_safetensors(find_files([url])) as intake:
        found = bytearray(intake.size_bytes)
        for piece in intake.pieces:
            assert piece.read is not None
            piece.read(memoryview(found)[piece.place.offset : piece.place.end], 0)
        intake.confirm()
    spec = next(spec for spec in intake.index if spec.name == "a.weight")
    whole = torch.frombuffer(found, dtype=torch.float32, count=512 * 1024, offset=spec.offset)
    assert torch.equal(whole.view(512, 1024), TENSORS["a.weight"])


# ---- out ---------------------------------------------------------------------------------------


def test_a_put_asks_for_no_more_than_a_load_does(server, monkeypatch):
    """Large tensors that lie in several ranges, and many small ones in one of them."""
    many = {"large": torch.arange(5 << 20, dtype=torch.float32)}  # 20 MiB
    many |= {f"small.{number:03}": torch.full((1001,), float(number)) for number in range(500)}
    url = upload(server, "many/model.safetensors", save(many))
    sizes: list[int] = []
    read = objects.Store.read

    def count(store, path, version, position, size):
        sizes.append(size)
        return read(store, path, version, position, size)

    monkeypatch.setattr(objects.Store, "read", count)
    check(tc.load(url), many)
    loaded = len(sizes)
    sizes.clear()
    with open_safetensors(find_files([url])) as intake:
        content, sealed = written(intake, dirt=b"x")
        put = len(sizes)
        assert digest(intake, stop=threading.Event()) == sealed
    for spec in intake.index:
        assert content[spec.offset : spec.extent.end] == many[spec.name].numpy().tobytes()
    assert put <= loaded + 1
    assert len(sizes) == 2 * put
    assert max(sizes) <= objects.RANGE_BYTES


def memory_of(size: int):
    index, size_bytes = lay_out([("w", "U8", (size,)), ("v", "I32", (25,))])
    memory = bytearray(size_bytes)
    for n in range(0, size, 1 << 20):
        memory[n : n + 1] = bytes([n >> 20 & 255])
    return memory, [Selected(spec) for spec in index]


def write(memory, selected, url, **options):
    options = {"force": False, "stop": threading.Event(), **options}
    return write_safetensors(memory, selected, url, **options)


def test_an_object_of_several_parts_is_written(server):
    memory, selected = memory_of(20 << 20)
    told = []
    url = write(memory, selected, "s3://models/out/", progress=lambda *now: told.append(now))
    assert url == "s3://models/out/model.safetensors"
    found = tc.load(url)
    assert bytes(found["w"].numpy()) == memory[: 20 << 20]
    assert told[-1] == (measure(url), measure(url))
    with pytest.raises(InvalidArgument, match="exists"):
        write(memory, selected, url)
    write(memory, selected, url, force=True)


def test_nothing_is_seen_of_a_write_that_is_cancelled(server):
    memory, selected = memory_of(20 << 20)
    stop = threading.Event()
    with pytest.raises(Cancelled):
        write(
            memory,
            selected,
            "s3://models/cancelled.safetensors",
            stop=stop,
            progress=lambda done, _: stop.set() if done > 10 << 20 else None,
        )
    assert not open_store("s3://models").exists("cancelled.safetensors")
    assert b"<Upload>" not in server.request("GET", "/models?uploads")


def test_the_first_writer_wins(server):
    store = open_store("s3://models")
    assert store.write_new("new/x", b"first")
    assert not store.write_new("new/x", b"second")
    assert store.read_whole("new/x", 100) == b"first"
    store.remove("new/x")
    store.remove("new/x")
    assert not store.exists("new/x")


# ---- what goes wrong ---------------------------------------------------------------------------


def test_what_is_not_there_is_told(server):
    with pytest.raises(NotFound, match=r"no bucket s3://absent"):
        tc.load("s3://absent/model.safetensors")
    with pytest.raises(NotFound, match=r"no object s3://models/no/model.safetensors"):
        tc.load("s3://models/no/model.safetensors")
    with pytest.raises(NotFound, match="holds no checkpoint"):
        tc.load("s3://models/no")
    memory, selected = memory_of(10)
    with pytest.raises(NotFound, match=r"no bucket s3://absent"):
        write(memory, selected, "s3://absent/x.safetensors", force=True)


@pytest.mark.parametrize("length", [0, 7, 200, -1])
def test_an_object_that_is_cut_off_is_corrupt(server, length):
    url = upload(server, "cut/model.safetensors", save(TENSORS)[:length])
    with pytest.raises(Corrupt, match=r"s3://models/cut/model\.safetensors"):
        tc.load(url)


def test_an_object_that_changes_meanwhile_is_corrupt(server):
    upload(server, "changing", bytes(1 << 20))
    reader = ObjectReader(open_store("s3://models"), "changing")
    upload(server, "changing", b"1" * (1 << 20))
    with pytest.raises(Corrupt, match="changed while it was read"):
        reader.read([memoryview(bytearray(1000))], 1 << 19)


def test_an_index_that_is_too_large_is_corrupt(server, monkeypatch):
    upload(server, "large/model.safetensors.index.json", b"x" * 1000)
    monkeypatch.setattr(files, "INDEX_BYTES_MAX", 999)
    with pytest.raises(Corrupt, match="larger than 999 bytes"):
        tc.load("s3://models/large")


@pytest.mark.slow
def test_strangers_are_refused(monkeypatch):
    with s3_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("models")
        url = upload(server, "model.safetensors", save(TENSORS))
        server.refuse_strangers()
        with pytest.raises(PermissionDenied, match=r"refuses access to s3://models"):
            tc.load(url)


@pytest.mark.slow
def test_a_server_that_dies_is_unavailable(monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "RETRIES_MAX", 1)
    with s3_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("models")
        url = upload(server, "model.safetensors", save(TENSORS))
        with open_safetensors(find_files([url])) as intake:
            server.stop()  # between the header and the bytes
            piece = max(intake.pieces, key=lambda piece: piece.place.size)
            assert piece.read is not None
            with pytest.raises(Unavailable, match=r"s3://models/model\.safetensors cannot be"):
                piece.read(memoryview(bytearray(1000)), 1 << 20)
        with pytest.raises(Unavailable, match="cannot be reached"):
            tc.load(url)
    save_file(TENSORS, tmp_path / "model.safetensors")
    check(tc.load(tmp_path))
