from __future__ import annotations

from datetime import UTC
from uuid import RFC_4122, UUID

from tensorcast.log.identity import new_event_id, now


def test_ids_are_uuids_of_version_7_that_sort_by_time():
    before = now()
    ids = [new_event_id() for _ in range(100)]
    assert len(set(ids)) == 100
    for text in ids:
        parsed = UUID(text)
        assert (parsed.version, str(parsed)) == (7, text)
        assert parsed.variant == RFC_4122
        assert abs((parsed.int >> 80) / 1000 - before.timestamp()) < 60
    assert [text[:10] for text in ids] == sorted(text[:10] for text in ids)


def test_the_time_is_in_utc():
    assert now().tzinfo is UTC
