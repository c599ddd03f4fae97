"""Logs of released versions must decode, upcast and fold for ever, to what they folded to then."""

from functools import reduce
from pathlib import Path

import msgspec
import pytest

import story
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import decode, decode_event, encode, encode_data
from tensorcast.schema.events import EVENT_TYPES, UnknownEvent
from tensorcast.schema.ids import Seq
from tensorcast.schema.upcast import current_version

HERE = Path(__file__).parent

LOGS = sorted(HERE.glob("v*.ndjson"))


def read(path):
    return [decode(line, Seq(i)) for i, line in enumerate(path.read_bytes().splitlines(), 1)]


def lost(now, then, where="view"):
    """What was there then and is not, or is different, now. New fields are welcome."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name, value in then.items():
            if name not in now:
                yield f"{where}.{name} is missing"
            else:
                yield from lost(now[name], value, f"{where}.{name}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, value in enumerate(then):
            yield from lost(now[i], value, f"{where}[{i}]")
    elif now != then:
        yield f"{where}: {then!r} then, {now!r} now"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_folds_to_what_it_folded_to_then(path):
    log = read(path)
    view = reduce(project, log, ClusterView())
    then = msgspec.json.decode(path.with_suffix(".view.json").read_bytes())
    assert list(lost(story.to_json(view), then)) == []
    assert view.skipped == 0
    assert view.at == len(log)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_event_of_a_recorded_log_is_known(path):
    for recorded in read(path):
        assert not isinstance(recorded.event, UnknownEvent), recorded
        assert decode_again(recorded) == recorded.event


def decode_again(recorded):
    """As the persister keeps it and the replay reads it back: type, version and data apart."""
    return decode_event(recorded.type, current_version(recorded.type), encode_data(recorded.event))


def test_the_newest_recorded_log_has_every_type_of_event():
    types = {recorded.type for recorded in read(LOGS[-1])}
    assert set(EVENT_TYPES) - types == set(), "Tell them in story.py; record at the next release."


def test_this_release_writes_the_bytes_of_the_newest_recorded_log():
    """Fails when the wire form changes: then a new version of the event and an upcast are due.

    A field that is new, with a default, is fine: delete the newest log and record it again as long
    as its release is not out.
    """
    written = b"".join(encode(story.to_draft(recorded)) + b"\n" for recorded in story.record())
    assert written == LOGS[-1].read_bytes()


def test_a_release_is_recorded_once(tmp_path, monkeypatch):
    monkeypatch.setattr(story, "LOGS", tmp_path)
    story.write("9.9")
    assert (tmp_path / "v9.9.view.json").read_bytes()
    with pytest.raises(FileExistsError):
        story.write("9.9")
