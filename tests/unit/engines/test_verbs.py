"""What a call says is read, or refused in a sentence."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast.engines.vllm.verbs import read
from tensorcast.schema.errors import InvalidArgument


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 1


def test_arguments_are_read():
    assert read({"name": "a"}, Wanted) == Wanted("a")


@pytest.mark.parametrize("said", [{}, {"name": 1}, {"name": "a", "more": 1}, None, []])
def test_what_is_wrong_is_told(said):
    with pytest.raises(InvalidArgument, match="cannot be understood"):
        read(said, Wanted)
