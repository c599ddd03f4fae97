"""What a node says of its place in the network: labels and bandwidth, as text. Pure."""

from __future__ import annotations

import re
from typing import Final

from tensorcast.schema.errors import InvalidArgument

LABELS_MAX: Final = 32
LABEL_CHARS_MAX: Final = 63
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z/]*)", re.IGNORECASE)
_UNITS: Final = {
    "": 1.0,
    "kbit": 1e3 / 8,
    "mbit": 1e6 / 8,
    "gbit": 1e9 / 8,
    "tbit": 1e12 / 8,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
}


def parse_labels(text: str) -> dict[str, str]:
    """The labels of `rack=r1,host=h7`. Raises InvalidArgument."""
    labels: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not _is_label(name) or not _is_label(value) or name in labels:
            raise InvalidArgument(
                f"TENSORCAST_LABELS has {part!r}.",
                hint="Write each label once, as in rack=r1,host=h7: letters, digits, . _ / and -.",
            )
        labels[name] = value
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(
            f"TENSORCAST_LABELS has {len(labels)} labels.", hint=f"{LABELS_MAX} is the limit."
        )
    return labels


def _is_label(text: str) -> bool:
    return len(text) <= LABEL_CHARS_MAX and _LABEL.fullmatch(text) is not None


def parse_bandwidth(text: str) -> int:
    """Bytes a second of `125000000`, `1gbit` or `12.5 GB/s`; 0 for nothing. Raises
    InvalidArgument."""
    if not text.strip():
        return 0
    found = _BANDWIDTH.fullmatch(text.strip())
    unit = found[2].lower().removesuffix("/s") if found else "?"
    if found is None or unit not in _UNITS or not (rate := float(found[1]) * _UNITS[unit]) >= 1:
        raise InvalidArgument(
            f"TENSORCAST_BANDWIDTH is {text!r}.",
            hint="Write bytes a second, or a number with kbit, mbit, gbit, MB/s or GB/s.",
        )
    return int(rate)
