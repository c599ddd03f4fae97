import resource
import signal

import pytest

from conformance.contents import MIB, make_content, manifest_of, plain_index
from tensorcast.movers.memory.hibernate import (
    list_images,
    map_image,
    read_image,
    remove_image,
    verify_image,
    write_image,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, NotFound, OutOfCapacity, PermissionDenied, Unavailable

SIZE = 3 * MIB + 5
ARTIFACT = "ab" * 20


@pytest.fixture(scope="module")
def content():
    return bytes(make_content(plain_index(SIZE), SIZE))


@pytest.fixture(scope="module")
def manifest(content):
    return manifest_of(plain_index(SIZE), content)


def test_an_image_comes_back_as_it_was(tmp_path, manifest, content):
    folder = tmp_path / "hibernate"
    write_image(folder, ARTIFACT, manifest, memoryview(content + b"not part of it"))
    assert list_images(folder) == (ARTIFACT,)
    memory = bytearray(b"\xff" * (SIZE + 10))
    assert read_image(folder, ARTIFACT, manifest, memoryview(memory)) == ChunkSet.full(4)
    assert memory[:SIZE] == content
    assert memory[SIZE:] == b"\xff" * 10
    remove_image(folder, ARTIFACT)
    remove_image(folder, ARTIFACT)
    assert list_images(folder) == ()


@pytest.mark.parametrize(("damage", "sound"), [("cut", [0, 1]), ("bit", [0, 1, 3])])
def test_damage_is_found(tmp_path, manifest, content, damage, sound):
    write_image(tmp_path, ARTIFACT, manifest, memoryview(content))
    path = tmp_path / f"{ARTIFACT}.image"
    stored = bytearray(path.read_bytes())
    stored[2 * MIB + 9] ^= 4
    path.write_bytes(stored[: 2 * MIB + 9] if damage == "cut" else stored)
    found = read_image(tmp_path, ARTIFACT, manifest, memoryview(bytearray(SIZE)))
    assert found == ChunkSet.of(sound)


def test_an_image_is_verified_and_mapped_where_it_lies(tmp_path, manifest, content):
    write_image(tmp_path, ARTIFACT, manifest, memoryview(content))
    assert verify_image(tmp_path, ARTIFACT, manifest) == ChunkSet.full(4)
    with map_image(tmp_path, ARTIFACT, manifest) as mapped:
        assert mapped == content
    path = tmp_path / f"{ARTIFACT}.image"
    path.write_bytes(content[: 2 * MIB + 9])
    assert verify_image(tmp_path, ARTIFACT, manifest) == ChunkSet.of([0, 1])
    with pytest.raises(Corrupt, match="too short"), map_image(tmp_path, ARTIFACT, manifest):
        pass


def test_what_is_not_there_is_said_so(tmp_path, manifest):
    assert list_images(tmp_path / "nothing") == ()
    with pytest.raises(NotFound, match=ARTIFACT):
        read_image(tmp_path, ARTIFACT, manifest, memoryview(bytearray(SIZE)))


def test_a_full_disk_leaves_nothing_behind(tmp_path, manifest, content, file_size_limit):
    with file_size_limit(2 * MIB), pytest.raises(OutOfCapacity, match="The disk is full"):
        write_image(tmp_path, ARTIFACT, manifest, memoryview(content))
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_crash_are_removed(tmp_path):
    (tmp_path / f".writing-{ARTIFACT}.image").write_bytes(b"half")
    assert list_images(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error_in_words(tmp_path, manifest, content):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises((Unavailable, PermissionDenied), match="Cannot write"):
        write_image(tmp_path / "file", ARTIFACT, manifest, memoryview(content))


@pytest.fixture
def file_size_limit():
    return FileSizeLimit


class FileSizeLimit:
    """Within it, files cannot grow beyond a size: as on a full disk."""

    def __init__(self, size_bytes):
        self._size_bytes = size_bytes

    def __enter__(self):
        self._signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size_bytes, self._before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, self._signal)
