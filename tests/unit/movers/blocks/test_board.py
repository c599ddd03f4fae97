"""The board between the mover that writes it and an application that reads it."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator

import pytest

from tensorcast.client.blocks_board import CHUNK, CHUNKS, Board, Pins, register_for_barriers
from tensorcast.movers.blocks.board import BlockBoard
from tensorcast.movers.blocks.session import Batch, Session
from tensorcast.schema.block_board import PIN_BYTES, ROWS_MIN
from tensorcast.schema.block_wire import ENTRY, PLACE
from tensorcast.schema.blocks import pack_keys

PLACE_1 = 1 << 40

pytestmark = pytest.mark.skipif(
    not register_for_barriers(), reason="this machine has no board: no barriers"
)


def keys_of(count: int, first: int = 0) -> list[bytes]:
    return pack_keys("m", [number.to_bytes(16, "big") for number in range(first, first + count)])


def entries_of(count: int) -> list[bytes]:
    return [ENTRY.pack(PLACE_1 + number * 4096, 4096) for number in range(count)]


@pytest.fixture
def written() -> Iterator[BlockBoard]:
    board = BlockBoard(1 << 20)
    yield board
    board.close()


@pytest.fixture
def read(written: BlockBoard) -> Board:
    fd = written.open_read_only()
    board = Board(fd, written.size_bytes)
    os.close(fd)
    return board


@pytest.fixture
def pins() -> Iterator[tuple[Pins, Session]]:
    """An application's pins, and the session that sees them."""
    fd = os.memfd_create("pins")
    os.ftruncate(fd, PIN_BYTES)
    session = Session("user:ada@test")
    session.words = memoryview(mmap.mmap(fd, PIN_BYTES)).cast("Q")
    yield Pins(fd), session
    os.close(fd)


def places_of(session: Session) -> set[int]:
    return {PLACE.unpack(place)[0] for place in session.places_read()} - {0}


def test_what_is_added_is_found_where_it_is(written: BlockBoard, read: Board):
    keys, entries = keys_of(32), entries_of(32)
    assert read.look_up(keys) is None
    written.add(keys, entries)
    found = read.look_up(keys)
    assert found is not None
    assert [ENTRY.pack(*pair) for pair in zip(*found, strict=True)] == entries
    assert read.look_up(list(reversed(keys))) is not None
    assert not read.shows_none(keys)
    assert not read.shows_none([*keys_of(1, 99), keys[-1]])
    assert read.shows_none(keys_of(1, 99))
    assert read.look_up([*keys, *keys_of(1, 99)]) is None


def test_what_is_removed_is_not_found_and_the_number_rises(written: BlockBoard, read: Board):
    keys = keys_of(10)
    written.add(keys, entries_of(10))
    before = read.removals
    written.remove(keys[:1])
    assert read.removals > before
    assert read.look_up(keys[:1]) is None
    assert read.look_up(keys[1:]) is not None
    written.remove(keys_of(5, 1000))  # never there
    written.add(keys[:1], entries_of(1))
    assert read.look_up(keys) is not None


def test_a_full_row_leaves_blocks_out_and_breaks_nothing(written: BlockBoard, read: Board):
    count = ROWS_MIN * 8
    keys = keys_of(count)
    written.add(keys, entries_of(count))
    found = [key for key in keys if read.look_up([key]) is not None]
    assert ROWS_MIN * 2 < len(found) <= ROWS_MIN * 4
    for key in found:
        place, size = ENTRY.unpack(entries_of(count)[keys.index(key)])
        assert read.look_up([key]) == ((place,), (size,))
    assert read.look_up(found) is not None  # most of them not in their row's first cell
    written.remove(keys)
    assert all(read.look_up([key]) is None for key in keys)


def test_a_cell_that_is_half_written_is_not_found(written: BlockBoard, read: Board):
    keys = keys_of(1)
    written.add(keys, [bytes(12)])  # the print is there, place and size are still zeros
    assert read.look_up(keys) is None


def test_pins_are_seen_by_the_mover(pins: tuple[Pins, Session]):
    ours, session = pins
    places = array("Q", [PLACE_1 + n for n in range(40)])
    ours.pin_shortly(places)
    assert places_of(session) == set(places)
    ours.unpin_shortly(40)
    assert places_of(session) == set()
    assert ours.hold(7, places)
    assert ours.hold(8, array("Q", [5]))
    assert places_of(session) == {*places, 5}
    assert ours.let_go(7)
    assert not ours.let_go(7)
    assert places_of(session) == {5}


def test_pins_run_out_and_come_back(pins: tuple[Pins, Session]):
    ours, session = pins
    held = 0
    while ours.hold(held + 1, array("Q", [held + 1] * CHUNK)):
        held += 1
    assert held == CHUNKS
    assert places_of(session) == set(range(1, held + 1))
    ours.let_go(3)
    assert not ours.hold(held + 1, array("Q", [9] * (CHUNK + 1)))
    assert ours.hold(held + 1, array("Q", [4242]))
    assert 4242 in places_of(session)


def test_the_mark_ends_batches_up_to_it(pins: tuple[Pins, Session]):
    ours, session = pins
    session.batches = {tag: Batch([], [], 0, (), tag != 3) for tag in (1, 2, 3, 4)}
    assert session.ended() == []
    ours.set_mark(3)
    assert session.ended() == [1, 2]
