"""What the first process of an engine has told of its end."""

from __future__ import annotations

import os
import subprocess
import sys

from tensorcast.client.context import Context
from tensorcast.engines.ending import NOTE_VARIABLE, write_note
from tensorcast.engines.identity import LIFE_VARIABLE
from tensorcast.engines.leaving import note_engine

LEAVER = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"


def run(code: str) -> None:
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)


def first_process(tmp_path, then: str) -> bytes:
    """What the leaver is told by a first process that does `then` and ends."""
    heard = tmp_path / "heard"
    (tmp_path / "leaver.py").write_text(
        f"import sys\nopen({str(heard)!r}, 'wb').write(sys.stdin.buffer.read())"
    )
    run(
        "import os, sys, subprocess\n"
        "from tensorcast.engines import ending\n"
        "from tensorcast.engines.identity import Identity, LIFE_VARIABLE\n"
        "from tensorcast.engines.ending import NOTE_VARIABLE, write_note\n"
        f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n"
        "ending.LEAVER = 'leaver'\n"
        "os.environ[LIFE_VARIABLE] = 'one'\n"
        "ending.expect_end(Identity('e', 'one', ''), os.environ)\n" + then
    )
    return heard.read_bytes() if heard.exists() else b""


def test_what_a_child_notes_is_told_when_the_first_process_ends(tmp_path):
    child = (
        "from tensorcast.engines.ending import write_note; import os, signal;"
        "write_note(b'x', os.environ); write_note(b'me', os.environ);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert first_process(tmp_path, f"subprocess.run([sys.executable, '-c', {child!r}])") == b"me"


def test_nothing_is_told_by_who_is_killed_or_forked_or_was_told_nothing(tmp_path):
    assert first_process(tmp_path, "") == b""
    fork = "write_note(b'me', os.environ)\nif os.fork(): os._exit(0)"
    assert first_process(tmp_path, fork) == b""


def test_a_note_is_written_into_nothing_but_the_note_of_this_life(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with file.open() as opened:
        path = f"/proc/{os.getpid()}/fd/{opened.fileno()}"
        assert not write_note(b"x", {NOTE_VARIABLE: path, LIFE_VARIABLE: "one"})
    assert file.read_bytes() == b"mine"
    note = os.memfd_create("tensorcast-engine-one")
    path = f"/proc/{os.getpid()}/fd/{note}"
    assert not write_note(b"x", {NOTE_VARIABLE: path, LIFE_VARIABLE: "two"})
    assert not write_note(b"x", {})
    context = Context(cluster="c", nats_url="nats://h")
    assert note_engine(context, "e", "one", {NOTE_VARIABLE: path, LIFE_VARIABLE: "one"})
    assert b'"nats://h"' in os.pread(note, 1000, 0)
    os.close(note)
