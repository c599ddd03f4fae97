import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema import api
from tensorcast.schema.api import parse_reply, reply_error, reply_ok
from tensorcast.schema.errors import Corrupt, NotFound, TensorCastError, to_body

MESSAGES = [
    cls
    for cls in vars(api).values()
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct) and cls.__module__ == api.__name__
    if not cls.__name__.startswith("_")
]


@pytest.mark.parametrize("cls", MESSAGES)
@given(data=st.data())
def test_messages_survive_the_wire(cls, data):
    message = data.draw(values(cls))
    assert msgspec.json.decode(msgspec.json.encode(message), type=cls) == message


@pytest.mark.parametrize("cls", [c for c in MESSAGES if c.__name__.endswith("Info")])
@given(data=st.data())
def test_an_answer_comes_out_of_its_reply(cls, data):
    answer = data.draw(values(cls))
    assert parse_reply(reply_ok(answer), cls) == answer
    assert parse_reply(reply_ok((answer, answer)), tuple[cls, ...]) == (answer, answer)


def test_an_empty_answer():
    assert parse_reply(reply_ok(None), type(None)) is None


def test_an_error_comes_out_as_an_error():
    body = to_body(NotFound("There is no key 'k'.", hint="Look.", artifact="a"))
    with pytest.raises(NotFound, match="There is no key") as caught:
        parse_reply(reply_error(body), api.KeyInfo)
    assert caught.value.artifact == "a"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"ok": 7}', b'{"ok":{"key":1}}'])
def test_any_other_reply_is_corrupt(payload):
    with pytest.raises(Corrupt, match="cannot be read"):
        parse_reply(payload, api.KeyInfo)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(payload):
    with pytest.raises(TensorCastError):
        parse_reply(payload, api.KeyInfo)
