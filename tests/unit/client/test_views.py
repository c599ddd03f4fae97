from __future__ import annotations

import pytest

from tensorcast.client.views import format_view, parse_view
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.views import Slice, View


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("", View()),
        (" ; ", View()),
        ("names=a,b.*", View(names=("a", "b.*"))),
        ("names=a;names=b", View(names=("a", "b"))),
        (
            "shard=1/2;rule=.*q_proj.weight:0;rule=.*o_proj.weight:1",
            View.shard(rank=1, world=2, rules={".*q_proj.weight": 0, ".*o_proj.weight": 1}),
        ),
        ("slice=(?:a|b):1:2:3", View(slices=(("(?:a|b)", Slice(1, 2, 3)),))),
        (
            "names=w; slice=w:0:5:1",
            View(names=("w",), slices=(("w", Slice(0, 5, 1)),)),
        ),
    ],
)
def test_a_view_is_read(text, view):
    assert parse_view(text) == view
    assert parse_view(format_view(view)) == view


@pytest.mark.parametrize(
    "text",
    [
        "w",
        "names",
        "names=",
        "other=1",
        "shard=0/2",
        "rule=a:0",
        "shard=2/2;rule=a:0",
        "shard=a/2;rule=a:0",
        "shard=0/2;shard=1/2;rule=a:0",
        "shard=0/0;rule=a:0",
        "shard=0/2;rule=:0",
        "shard=0/2;rule=a",
        "shard=0/2;rule=a:-1",
        "slice=a:1:2",
        "slice=:1:2:3",
        "slice=a:x:2:3",
    ],
)
def test_what_is_no_view_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_view(text)


@pytest.mark.parametrize("text", ["shard=3/2", "shard=3/2;rule=a:0"])
def test_a_shard_that_there_is_not_is_told_as_such(text):
    with pytest.raises(InvalidArgument, match="There is no shard 3 of 2"):
        parse_view(text)
