"""What a file says of itself is believed only as far as this release knows it."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast.schema.api_audit import Life
from tensorcast.schema.chain import GENESIS
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.ids import Seq
from tensorcast.schema.log_copies import FORMAT, Heading, check_heading

HEADING = Heading(
    tensorcast_log=FORMAT,
    cluster="c",
    previous=GENESIS.hex(),
    lives=(Life(log_epoch=1, last=Seq(3)),),
)


def test_a_heading_of_this_format_passes():
    assert check_heading(HEADING, "file") is HEADING


def test_another_format_and_a_hash_that_is_none_are_refused():
    newer = msgspec.structs.replace(HEADING, tensorcast_log=FORMAT + 1)
    with pytest.raises(InvalidArgument, match="file has format 2"):
        check_heading(newer, "file")
    for previous in ("", "zz", "00" * 31, "00" * 33):
        with pytest.raises(Corrupt, match="hash in the first line"):
            check_heading(msgspec.structs.replace(HEADING, previous=previous), "file")
