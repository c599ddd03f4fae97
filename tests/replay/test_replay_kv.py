"""KV logs of released versions must decode and fold for ever, to what they folded to then."""

from pathlib import Path

import msgspec
import pytest

import kv_story
from tensorcast.schema.block_events import BLOCK_EVENT_TYPES, decode_blocks
from tensorcast.schema.events import UnknownEvent
from tensorcast.schema.ids import Seq

LOGS = sorted(Path(__file__).parent.glob("kv-*.ndjson"))


def types_of(path):
    lines = path.read_bytes().splitlines()
    recorded = [decode_blocks(line, Seq(number)) for number, line in enumerate(lines, 1)]
    assert not any(isinstance(one.event, UnknownEvent) for one in recorded)
    return {one.type for one in recorded}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_kv_log_folds_to_what_it_folded_to_then(path):
    then = msgspec.json.decode(path.with_suffix(".fold.json").read_bytes())
    now = kv_story.fold(path.read_bytes().splitlines())
    assert {name: now[name] for name in then} == then


def test_the_newest_recorded_kv_log_has_every_type_of_event():
    assert types_of(LOGS[-1]) == set(BLOCK_EVENT_TYPES), "Tell them in kv_story.py; record again."


def test_this_release_writes_the_bytes_of_the_newest_recorded_kv_log():
    written = b"".join(line + b"\n" for line in kv_story.record())
    assert written == LOGS[-1].read_bytes()


def test_a_release_is_recorded_once(tmp_path):
    kv_story.write("9.9", tmp_path)
    assert (tmp_path / "kv-9.9.fold.json").read_bytes()
    with pytest.raises(FileExistsError):
        kv_story.write("9.9", tmp_path)
