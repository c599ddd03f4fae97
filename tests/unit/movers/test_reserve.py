"""Room on the disk that is kept for a bad day."""

from __future__ import annotations

from pathlib import Path

from tensorcast.movers.reserve import Reserve


def test_room_is_taken_given_up_once_and_taken_again(tmp_path: Path):
    path = tmp_path / "reserve"
    reserve = Reserve(path, 8192)
    assert reserve.refill()
    assert path.stat().st_blocks * 512 >= 8192
    assert reserve.release()
    assert not path.exists()
    assert not reserve.release()
    assert reserve.refill()
    assert path.exists()


def test_a_disk_without_the_room_is_left_as_it_was(tmp_path: Path):
    reserve = Reserve(tmp_path / "reserve", 1 << 60)
    assert not reserve.refill()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.release()
