import math

import pytest

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plain import check_finite, find_endless


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 2.5, "x", None, True]}, None),
        (math.nan, ""),
        ({"a": {"b": [0, -math.inf]}}, "a.b[1]"),
        ([(1, math.inf)], "[0][1]"),
    ],
)
def test_the_place_of_what_json_cannot_hold(value, place):
    assert find_endless(value) == place


def test_it_is_told_where():
    check_finite({"loss": 0.5}, "The data of a signal")
    with pytest.raises(InvalidArgument, match=r"The data of a signal .* \(at loss\): NaN"):
        check_finite({"loss": math.nan}, "The data of a signal")
