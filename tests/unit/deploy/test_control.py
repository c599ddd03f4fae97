"""The lines between `up` and the supervisor."""

import msgspec
import pytest

from tensorcast.deploy.control import Reply, Request, ServiceStatus, decode_request, encode


@pytest.mark.parametrize("do", ["status", "reload", "stop"])
def test_a_request_is_one_line(do):
    line = encode(Request(do=do))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_request(line) == Request(do=do)


@pytest.mark.parametrize("line", [b"{}", b'{"do":"explode"}', b"\xff", b""])
def test_anything_else_is_refused(line):
    with pytest.raises(msgspec.DecodeError):
        decode_request(line)


def test_a_reply_survives_its_way():
    reply = Reply(services=(ServiceStatus(name="n1", state="up", pid=7, detail="two\nlines"),))
    line = encode(reply)
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line, type=Reply) == reply
