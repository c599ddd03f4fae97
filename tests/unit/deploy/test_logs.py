"""What the last words of a log mean."""

import pytest

from tensorcast.deploy.logs import explain, last_meaningful_line, last_sentence

POSTGRES = """\
2026-11-30 06:20:00.894 UTC [7938] LOG:  starting PostgreSQL 18.6
2026-11-30 06:20:00.894 UTC [7938] LOG:  could not bind IPv4 address "127.0.0.1"
2026-11-30 06:20:00.895 UTC [7938] FATAL:  could not create any TCP/IP sockets
2026-11-30 06:20:00.896 UTC [7938] LOG:  database system is shut down
"""
NATS = """\
[7] 2026/11/30 06:20:00.896819 [INF] Starting nats-server
[7] 2026/11/30 06:20:00.896819 [FTL] Error listening: listen tcp 127.0.0.1:1: address already in use
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "main.py", line 1, in <module>
  |     raise Error
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "main.py", line 7, in work
    |     raise ProgrammingError from error
    | sqlalchemy.exc.ProgrammingError: relation "events" does not exist
    +------------------------------------
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "main.py", line 1, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'

"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n\n", ""),
        (GROUP, 'sqlalchemy.exc.ProgrammingError: relation "events" does not exist'),
        ("all is well\nserving\n", "serving"),
        (POSTGRES, "FATAL:  could not create any TCP/IP sockets"),
        (NATS, "[FTL] Error listening: listen tcp 127.0.0.1:1: address already in use"),
        (TRACEBACK, "ModuleNotFoundError: No module named 'nothing'"),
        ("[1] FATAL:  no\n[2] FATAL:  the database system is starting up\n", "[1] FATAL:  no"),
        ("2026-11-30T06:20:00.841+00:00 ERROR: x is wrong\nbye\n", "ERROR: x is wrong"),
    ],
)
def test_last_meaningful_line(text, line):
    assert last_meaningful_line(text) == line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("listen tcp 127.0.0.1:1: bind: address already in use", "port is taken"),
        ("write /x: no space left on device", "disk is full"),
        ("could not write: No space left on device", "disk is full"),
        ("ModuleNotFoundError: No module named 'x'", "incomplete"),
        ('FATAL:  lock file "postmaster.pid" already exists', "former Postgres"),
        ("all is well", ""),
    ],
)
def test_explain(line, words):
    assert words in explain(line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02 03:04:05,678 ERROR The log is another one.", "The log is another one."),
        (
            "2026-01-02 03:04:05,678 ERROR tensorcast.movers.main Another mover uses it.",
            "Another mover uses it.",
        ),
        ("2026-01-02 03:04:05,678 INFO serving", ""),
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'", ""),
        ("", ""),
    ],
)
def test_only_a_sentence_of_ours_is_a_last_sentence(text, expected):
    assert last_sentence(text) == expected
