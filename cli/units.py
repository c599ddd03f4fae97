"""Text that people type and read: sizes, durations, moments. Pure; the clock is an argument."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tensorcast.schema.errors import InvalidArgument

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_S_MAX = 10 * 365 * 86400.0


def format_size(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    size, unit = float(size_bytes), 0
    while abs(size) >= 1024 and unit < len(_BYTES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_BYTES[unit]}"


def format_rate(bytes_per_s: float) -> str:
    """1.5e9 -> "1.4 GiB/s"."""
    return f"{format_size(bytes_per_s)}/s"


def format_seconds(duration_s: float) -> str:
    """The two largest units that matter: "35 ms", "4.2 s", "3 m 20 s", "2 d 4 h"."""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    shown = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(shown[:2])


def format_age(then: datetime, now: datetime) -> str:
    """How long ago, in one unit: "12s", "5m", "3h", "2d"."""
    age_s = max(0, int((now - then).total_seconds()))
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if age_s >= length_s:
            return f"{age_s // length_s}{unit}"
    return f"{age_s}s"


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_second(moment: datetime) -> str:
    """RFC 3339 in UTC, for tables: the position tells the order within a second."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def parse_size(text: str) -> int:
    """Bytes of "4GiB", "512M", "1.5g" or "1048576". A unit is a power of 1024, except that "GB"
    and the like are powers of 1000. Raises InvalidArgument."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is no size.", hint="Write it as 512MiB or 4GiB.")
    number, unit, binary = match.groups()
    is_decimal = bool(unit) and not binary and text.strip().lower().endswith("b")
    exponent = " kmgtp".index(unit.lower()) if unit else 0
    return int(float(number) * (1000 if is_decimal else 1024) ** exponent)


def parse_seconds(text: str) -> float:
    """Seconds of "30", "500ms", "2m" or "1h". Raises InvalidArgument."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is no duration.", hint="Write it as 30s, 5m or 2h.")
    number, unit = match.groups()
    return min(float(number) * _SECONDS[(unit or "s").lower()], DURATION_S_MAX)


def parse_time(text: str, now: datetime) -> datetime:
    """A moment: RFC 3339 ("2026-01-31T12:00:00Z"; without a zone it is UTC), "now", or how long
    ago ("10m", "2h ago"). Raises InvalidArgument."""
    plain = text.strip()
    if plain.lower() == "now":
        return now
    ago = plain.lower().removesuffix("ago").strip()
    if _DURATION.fullmatch(ago) and not ago.isdigit():
        return now - timedelta(seconds=parse_seconds(ago))
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError as error:
        raise InvalidArgument(
            f"{text!r} is no time.",
            hint="Write it as 2026-01-31T12:00:00Z, or how long ago: 10m, 2h.",
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_position(text: str, now: datetime) -> int | datetime:
    """A position in the log ("42") or a moment (see `parse_time`). Raises InvalidArgument."""
    if text.strip().isdigit():
        return int(text)
    try:
        return parse_time(text, now)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{text!r} is no position in the log and no time.",
            hint="Write it as 42, as 2026-01-31T12:00:00Z, or how long ago: 10m, 2h.",
        ) from error


def parse_labels(pairs: list[str]) -> dict[str, str]:
    """Labels from "name=value" texts. Raises InvalidArgument."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"{pair!r} is no label.", hint="Write it as name=value.")
        labels[name] = value
    return labels


def split_names(text: str) -> tuple[str, ...]:
    """The names in "n1,n2"."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
