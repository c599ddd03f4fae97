import msgspec
import pytest

from samples import BEGIN
from tensorcast.schema.api_access import AccessInfo
from tensorcast.schema.namespaces import Namespace, Right


def test_messages_survive_the_wire():
    info = AccessInfo(
        namespace=Namespace("team"), who="*", rights=(Right.READ, Right.KEYS), changed_at=BEGIN
    )
    assert msgspec.json.decode(msgspec.json.encode(info), type=AccessInfo) == info


def test_an_unknown_right_is_no_right():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(
            b'{"namespace":"t","who":"a","rights":["fly"],"changed_at":"2030-01-01T00:00:00Z"}',
            type=AccessInfo,
        )
