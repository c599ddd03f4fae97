"""KV blocks on a real disk: within the budget, back after a crash, and never a wrong byte."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import xxhash

from block_samples import key
from stores import until
from tensorcast.movers.blocks.base import NullReporter
from tensorcast.movers.tiers.block_files import SUFFIX, BlockFiles
from tensorcast.schema.ids import Tier

MIB = 1 << 20
SIZE = 1 << 16


class Told(NullReporter):
    """Believes what a spill tells."""

    def __init__(self) -> None:
        self.held: dict[bytes, int] = {}
        self.broken: list[bytes] = []

    def stored(self, tier, blocks) -> None:
        assert tier is Tier.DISK
        self.held.update(blocks)

    def damaged(self, tier, keys) -> None:
        self.broken += keys
        self.evicted(tier, keys)

    def evicted(self, tier, keys) -> None:
        assert tier is Tier.DISK
        for one in keys:
            self.held.pop(one, None)


def content(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def put(spill: BlockFiles, number: int, size: int = SIZE) -> bool:
    data = content(number, size)
    return spill.write(key(number), xxhash.xxh3_64_digest(data), memoryview(data))


def get(spill: BlockFiles, number: int, size: int = SIZE) -> bytes | None:
    target = bytearray(size)
    return bytes(target) if spill.read(key(number), memoryview(target)) else None


class Spills:
    """Lives of a spill in one folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spill: BlockFiles | None = None
        self.told = Told()

    def begin(self, bytes_max: int = 64 * MIB) -> BlockFiles:
        """Ends the life that is there, and begins the next."""
        self.end()
        self.told = Told()
        self.spill = BlockFiles(self.folder, bytes_max, self.told)
        self.spill.start()
        return self.spill

    def end(self) -> None:
        if self.spill is not None:
            self.spill.close()

    async def quiet(self) -> None:
        """Waits until everything is written and what was there is known."""
        spill = self.spill
        await until(lambda: spill._is_scanned and not spill.stats().pending_bytes)

    def bytes(self) -> int:
        """What the files take, those that are just being removed not counted."""
        found = 0
        for path in self.files():
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))


@pytest.fixture
def spills(tmp_path):
    spills = Spills(tmp_path / "blocks")
    yield spills
    spills.end()


async def test_blocks_come_back_as_they_were_also_after_a_stop(spills):
    spill = spills.begin()
    for number in range(100):
        assert put(spill, number)
        assert put(spill, number)
        assert get(spill, number) == content(number)  # written or not
    await spills.quiet()
    assert spills.told.held == {key(number): SIZE for number in range(100)}
    for _ in range(2):
        assert [get(spill, number) for number in range(100)] == list(map(content, range(100)))
        assert spill.contains(key(5))
        assert spill.size(key(5)) == SIZE
        assert not spill.contains(key(100))
        assert spill.size(key(100)) == 0
        assert get(spill, 100) is None
        assert get(spill, 5, SIZE // 2) is None
        spill = spills.begin()
        await spills.quiet()
        assert spills.told.held == {key(number): SIZE for number in range(100)}


async def test_what_was_removed_stays_away(spills):
    spill = spills.begin()
    for number in range(20):
        put(spill, number)
    await spills.quiet()
    spill.remove([key(number) for number in range(10)] + [key(99)])
    put(spill, 3)
    put(spill, 50)
    spill.remove([key(50)])  # perhaps before it was written
    assert get(spill, 50) is None
    left = {key(number) for number in (3, *range(10, 20))}
    assert set(spill.keys_of(b"")) == left
    assert spill.keys_of(key(3)) == [key(3)]
    for _ in range(2):
        await spills.quiet()
        assert set(spills.told.held) == left
        assert get(spill, 2) is None
        assert get(spill, 3) == content(3)
        spill = spills.begin()


async def test_the_oldest_go_when_the_budget_is_reached(spills):
    spill = spills.begin(8 * MIB)
    await spills.quiet()  # until it knows what is there it takes no more than 2 MiB
    for number in range(500):  # 31 MiB
        assert put(spill, number)
        assert spills.bytes() <= 8 * MIB
    await spills.quiet()
    there = [number for number in range(500) if spill.contains(key(number))]
    assert there == list(range(500 - len(there), 500))
    assert 90 <= len(there) <= 128
    assert set(spills.told.held) == {key(number) for number in there}
    assert all(get(spill, number) == content(number) for number in there)
    assert spill.stats().dropped == 500 - len(there)
    spill = spills.begin(2 * MIB)  # it was made smaller
    await spills.quiet()
    assert spill.stats().file_bytes <= 2 * MIB
    assert 10 <= len(spills.told.held) == spill.stats().blocks <= 32


async def test_a_torn_end_costs_the_last_block_only(spills):
    spill = spills.begin()
    for number in range(10):
        put(spill, number)
    spills.end()
    (path,) = spills.files()
    whole = path.stat().st_size
    for cut in (1, SIZE, SIZE + 40):
        os.truncate(path, whole - cut)
        spill = spills.begin()
        await spills.quiet()
        assert [get(spill, number) is not None for number in range(10)] == [True] * 9 + [False]
        put(spill, 9)
        spills.end()
        os.truncate(path, whole)
        spills.files()[-1].unlink()


async def test_a_flipped_bit_is_found_and_the_block_dropped(spills):
    spill = spills.begin()
    for number in range(3):
        put(spill, number)
    await spills.quiet()
    (path,) = spills.files()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 5)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte[0] ^ 4,)))
    assert get(spill, 2) is None
    assert not spill.contains(key(2))
    assert spill.stats().damaged == 1
    assert spills.told.broken == [key(2)]
    assert set(spills.told.held) == {key(0), key(1)}
    assert get(spill, 1) == content(1)
    assert put(spill, 2)
    assert get(spill, 2) == content(2)


async def test_what_is_no_file_of_ours_is_left_alone(spills):
    spills.folder.mkdir()
    strange = spills.folder / f"strange{SUFFIX}"
    strange.write_bytes(b"x")
    (spills.folder / f"{7:016x}{SUFFIX}").write_bytes(b"TCKB" + bytes(100))
    spill = spills.begin()
    put(spill, 1)
    await spills.quiet()
    assert strange.read_bytes() == b"x"
    assert [path.name for path in spills.files()] == [f"{8:016x}{SUFFIX}", strange.name]


async def test_a_full_disk_refuses_and_recovers(spills, monkeypatch):
    monkeypatch.setattr("tensorcast.movers.tiers.block_files.REFUSE_S", 0.2)
    spill = spills.begin()
    put(spill, 0)
    await spills.quiet()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * SIZE, hard))
    try:
        for number in range(1, 4):
            put(spill, number)
            await spills.quiet()
        assert spill.stats().refused
        assert get(spill, 0) == content(0)
        assert spills.files()[0].stat().st_size == spill.stats().file_bytes <= 2 * SIZE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await until(lambda: put(spill, 9))
    await spills.quiet()
    assert get(spill, 9) == content(9)
    assert {key(0), key(9)} <= set(spills.told.held)


async def test_a_block_that_is_too_large_or_comes_to_a_closed_spill_is_refused(spills):
    spill = spills.begin(4 * MIB)
    assert not put(spill, 1, 2 * MIB)
    assert not put(spill, 1, 0)
    spill.close()
    spill.close()
    assert not put(spill, 2)
    assert spill.stats().refused == 3


async def test_threads_read_while_files_are_dropped(spills):
    spill = spills.begin(4 * MIB)
    wrong: list[int] = []
    ended = threading.Event()

    def read() -> None:
        chance = random.Random(1)
        while not ended.is_set():
            number = chance.randrange(400)
            found = get(spill, number)
            if found is not None and found != content(number):
                wrong.append(number)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(400):
            put(spill, number)
            if number % 7 == 5:
                spill.remove([key(number - 3)])
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert spill.stats().damaged == 0


CRASH = """
import sys, random, xxhash
from pathlib import Path
from block_samples import key
from tensorcast.movers.blocks.base import NullReporter
from tensorcast.movers.tiers.block_files import BlockFiles

spill = BlockFiles(Path(sys.argv[1]), 32 << 20, NullReporter())
spill.start()
for number in range(int(sys.argv[2]), 1 << 30):
    data = random.Random(number).randbytes(1 << 16)
    spill.write(key(number), xxhash.xxh3_64_digest(data), memoryview(data))
    if number % 50 == 0:
        print(number, flush=True)
"""


def start_writer(folder: Path, first: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CRASH, str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )


async def test_a_killed_writer_leaves_nothing_wrong(spills):
    """Killed while it writes, again and again: what is there is right, and there is much."""
    last = 0
    for _ in range(3):
        process = start_writer(spills.folder, last + 1)
        for line in process.stdout:
            last = int(line)
            if last % 150 == 0:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        spill = spills.begin(32 * MIB)
        await spills.quiet()
        there = [number for number in range(last + 1000) if spill.contains(key(number))]
        assert len(there) > 20
        assert all(get(spill, number) == content(number) for number in there)
        assert spill.stats().damaged == 0
        spills.end()
