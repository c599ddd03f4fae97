import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema.api import parse_reply, reply_ok
from tensorcast.schema.api_signals import Emit, Emitted, TopicInfo, TopicsQuery


@pytest.mark.parametrize("cls", [Emit, Emitted, TopicInfo, TopicsQuery])
@given(data=st.data())
def test_messages_survive_the_wire(cls, data):
    message = data.draw(values(cls))
    assert msgspec.json.decode(msgspec.json.encode(message), type=cls) == message
    assert parse_reply(reply_ok(message), cls) == message


def test_a_question_for_all_topics_is_empty():
    assert msgspec.json.decode(b"{}", type=TopicsQuery) == TopicsQuery()
