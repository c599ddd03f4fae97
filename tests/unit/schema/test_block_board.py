"""The arithmetic of the board: rows by prints, and room for what a budget holds."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tensorcast.schema import block_board as board


@given(st.integers(0, 1 << 40))
@example((1 << 37) + 1)
def test_there_is_a_row_for_each_part_of_the_budget(budget: int):
    rows = board.count_rows(budget)
    assert rows & (rows - 1) == 0
    assert rows >= board.ROWS_MIN
    assert rows * board.BYTES_A_ROW >= budget
    assert rows == board.ROWS_MIN or rows * board.BYTES_A_ROW < 2 * budget


@given(st.lists(st.binary(min_size=14, max_size=101), max_size=40))
def test_a_print_says_which_row(keys: list[bytes]):
    prints = [board.key_print(key) for key in keys]
    assert all(len(one) == board.PRINT_BYTES for one in prints)
    numbers = board.row_numbers(prints)
    assert numbers == tuple(int.from_bytes(one[:4], "little") for one in prints)


def test_cells_fill_a_row_and_hold_an_entry():
    assert board.CELLS * board.CELL_BYTES == board.ROW_BYTES == 1 << board.ROW_SHIFT
    assert board.PRINT_BYTES + 12 == board.ENTRY_END <= board.CELL_BYTES
    assert board.PIN_BYTES % 4096 == 0
