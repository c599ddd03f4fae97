from datetime import datetime

import pytest

from samples import BEGIN, artifact_id, event_id, record
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import ArtifactPinned

EVENT = ArtifactPinned(artifact=artifact_id("a"))


def test_a_draft_is_frozen():
    draft = Draft(id=event_id(1), at=BEGIN, actor="timers", event=EVENT)
    with pytest.raises(AttributeError, match="immutable"):
        draft.actor = "user:eve@desk"


def test_a_record_is_frozen():
    with pytest.raises(AttributeError, match="immutable"):
        record(EVENT).seq = 2


def test_a_time_without_a_zone_is_no_time():
    with pytest.raises(ValueError, match="time zone"):
        Draft(id=event_id(1), at=datetime(2030, 1, 1), actor="timers", event=EVENT)
