"""The services' log files: where to look, when they rotate, and what their last words mean."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROTATE_BYTES = 16 * 1024 * 1024
TAIL_BYTES = 32 * 1024

_STAMP = re.compile(
    r"^(\[\d+\]\s+)?\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?: ?(?:Z|(?!INFO)[A-Z]{3,4}\b|[+-]\d\d:?\d\d))?\]?\s*(\[\d+\]\s*)?"
)
_GRAVE = re.compile(
    r"\b(FATAL|PANIC|ERROR|CRITICAL)\b|\[(FTL|ERR)\]|^[\w.]*(Error|Exception|Unavailable)\b"
    r"|cannot run|No module named|Killed|Segmentation"
)
_OWN_ERROR = re.compile(r"ERROR (tensorcast[\w.]* )?(?P<sentence>.+)")
# Answers of a Postgres that is on its way up to those who ask too early.
_HARMLESS = re.compile(r"the database system is (starting up|not yet accepting)")
_EMPTY = re.compile(r"^[\s~^|=+-]*$")
# How Python draws an exception that is one of a group.
_MARGIN = re.compile(r"^\s*\| (?=\S)")

_MEANINGS = (
    (r"address already in use|could not bind", "its port is taken by another program"),
    (r"No space left on device|disk quota exceeded|insufficient storage", "the disk is full"),
    (r"Too many open files", "the limit of open files is too low (`ulimit -n`)"),
    (r"Cannot allocate memory|out of memory|MemoryError", "the machine has no memory left"),
    (r"No module named|ModuleNotFoundError|ImportError", "the installation is incomplete"),
    (r"password authentication failed|[Aa]uthorization [Vv]iolation", "its password was refused"),
    (r"Connection refused|ConnectionRefused", "a server that it needs does not answer"),
    (r"Permission denied|PermissionError", "it may not use a file that it needs"),
    (r"postmaster\.pid|pre-existing shared memory", "a former Postgres is still shutting down"),
    (r"cannot run|No such file or directory", "a file or program that it needs is missing"),
)


def rotate(path: Path, *, size_bytes_max: int = ROTATE_BYTES) -> bool:
    """Move a log that has grown too long to `<name>.1` (one old log is kept)."""
    try:
        if path.stat().st_size <= size_bytes_max:
            return False
    except FileNotFoundError:
        return False
    path.replace(path.with_name(path.name + ".1"))
    return True


def read_tail(path: Path, *, size_bytes: int = TAIL_BYTES) -> str:
    """The end of a log; "" when there is none or it may not be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def last_meaningful_line(text: str, *, lines_max: int = 60) -> str:
    """The line of a log that says most about an end: the last grave one, else the last one.

    Time stamps are taken off; "" for an empty log.
    """
    lines = [_bare(line) for line in text.splitlines() if not _EMPTY.match(line)][-lines_max:]
    grave = list(filter(is_grave, lines))
    return (grave or lines or [""])[-1].strip()


def _bare(line: str) -> str:
    return _MARGIN.sub("", _STAMP.sub("", line))


def last_sentence(text: str) -> str:
    """The sentence with which one of our own processes has given up; "" when its log ends in
    another way, for example with a traceback."""
    said = _OWN_ERROR.match(last_meaningful_line(text))
    return said["sentence"] if said else ""


def is_grave(line: str) -> bool:
    """Whether a log line (without its time stamp) tells of a failure."""
    return bool(_GRAVE.search(line)) and not _HARMLESS.search(line)


def explain(line: str) -> str:
    """What a log line means in plain words; "" when it is not one that we know."""
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, line, re.IGNORECASE):
            return meaning
    return ""


def last_words(path: Path) -> str:
    """The last meaningful line of a log file with its meaning, as one phrase; "" if empty."""
    line = last_meaningful_line(read_tail(path))
    meaning = explain(line)
    if not line:
        return ""
    return f"{meaning} ({line})" if meaning else line
