from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema import socket
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.socket import (
    FRAME_BYTES_MAX,
    LENGTH,
    Answer,
    Hello,
    Request,
    Welcome,
    body_bytes,
    decode_answer,
    decode_request,
    encode_frame,
)


@pytest.mark.parametrize("cls", get_args(Request))
@given(data=st.data())
def test_requests_survive_the_wire(cls, data):
    request = data.draw(values(cls))
    frame = encode_frame(request)
    assert body_bytes(frame[: LENGTH.size]) == len(frame) - LENGTH.size
    assert decode_request(frame[LENGTH.size :]) == request


@pytest.mark.parametrize("cls", get_args(Answer))
@given(data=st.data())
def test_answers_survive_the_wire(cls, data):
    answer = data.draw(values(cls))
    assert decode_answer(encode_frame(answer)[LENGTH.size :]) == answer


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read():
    assert body_bytes(LENGTH.pack(FRAME_BYTES_MAX)) == FRAME_BYTES_MAX
    with pytest.raises(Corrupt, match="limit"):
        body_bytes(LENGTH.pack(FRAME_BYTES_MAX + 1))


@given(st.binary(max_size=60))
def test_other_bytes_are_corrupt(body):
    with pytest.raises(Corrupt, match="cannot be read"):
        decode_request(body)
    with pytest.raises(Corrupt, match="cannot be read"):
        decode_answer(body)


def test_a_request_is_no_answer():
    hello = encode_frame(Hello(actor="user:ada@desk", pid=1))[LENGTH.size :]
    with pytest.raises(Corrupt, match="different releases"):
        decode_answer(hello)
    welcome = encode_frame(Welcome(cluster="c", node="n1", epoch=1))[LENGTH.size :]
    with pytest.raises(Corrupt):
        decode_request(welcome)


def test_this_module_is_about_messages_and_opens_no_socket():
    assert not hasattr(socket, "AF_UNIX")
