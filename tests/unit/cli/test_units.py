from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.cli import units
from tensorcast.schema.errors import InvalidArgument

NOW = datetime(2031, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (86 << 20, "86.0 MiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_fits(size: int, text: str) -> None:
    assert units.format_size(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 << 30),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        ("1048576", 1 << 20),
        ("2 KB", 2000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 GiBs", "1e9", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no size"):
        units.parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_size_in_bytes_is_itself(size: int) -> None:
    assert units.parse_size(str(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


def test_a_duration_has_a_limit() -> None:
    assert units.parse_seconds("99999999d") == units.DURATION_S_MAX
    with pytest.raises(InvalidArgument):
        units.parse_seconds("soon")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.035, "35 ms"), (4.25, "4.2 s"), (200, "3 m 20 s"), (3600, "1 h"), (180_000, "2 d 2 h")],
)
def test_durations_are_shown_short(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=12), "12s"),
        (timedelta(minutes=5), "5m"),
        (timedelta(hours=30), "1d"),
        (timedelta(seconds=-3), "0s"),
    ],
)
def test_ages(age: timedelta, text: str) -> None:
    assert units.format_age(NOW - age, NOW) == text


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("10m", NOW - timedelta(minutes=10)),
        ("2h ago", NOW - timedelta(hours=2)),
        ("2031-01-31T12:00:00Z", datetime(2031, 1, 31, 12, tzinfo=UTC)),
        ("2031-01-31 12:00", datetime(2031, 1, 31, 12, tzinfo=UTC)),
        ("2031-01-31T12:00:00+02:00", datetime(2031, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_moments(text: str, moment: datetime) -> None:
    assert units.parse_time(text, NOW) == moment


def test_a_position_is_a_number_or_a_moment() -> None:
    assert units.parse_position("42", NOW) == 42
    assert units.parse_position("1h", NOW) == NOW - timedelta(hours=1)
    with pytest.raises(InvalidArgument, match="no time"):
        units.parse_position("yesterday", NOW)


def test_times_are_shown_in_utc() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=5)))
    assert units.format_time(local) == "2031-05-06T12:00:00.000Z"
    assert units.format_second(local) == "2031-05-06T12:00:00Z"


def test_labels() -> None:
    assert units.parse_labels(["step=1", "note=a=b"]) == {"step": "1", "note": "a=b"}
    for wrong in ("step", "=1"):
        with pytest.raises(InvalidArgument, match="no label"):
            units.parse_labels([wrong])


def test_names_are_split_at_commas() -> None:
    assert units.split_names("n1, n2,,n3") == ("n1", "n2", "n3")


def test_rates() -> None:
    assert units.format_rate(1 << 30) == "1.0 GiB/s"
