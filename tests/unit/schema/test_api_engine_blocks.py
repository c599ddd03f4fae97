import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema.api_engine_blocks import (
    EngineView,
    HoldersQuery,
    PrefixHolder,
    ReportBlocks,
    Reported,
    ViewQuery,
)


@pytest.mark.parametrize(
    "cls", [ReportBlocks, Reported, ViewQuery, EngineView, HoldersQuery, PrefixHolder]
)
@given(data=st.data())
def test_messages_survive_the_wire(cls, data):
    message = data.draw(values(cls))
    assert msgspec.json.decode(msgspec.json.encode(message), type=cls) == message
