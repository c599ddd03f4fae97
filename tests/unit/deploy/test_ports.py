"""Choosing ports."""

import pytest

from tensorcast.deploy.ports import choose_port, keep_or_choose
from tensorcast.schema.errors import Unavailable


def test_the_first_free_port_is_chosen():
    assert choose_port(candidates=[1, 2, 3], taken=[1], free=lambda port: port != 2) == 3


def test_no_free_port_is_said_so():
    with pytest.raises(Unavailable):
        choose_port(candidates=[1, 2], free=lambda _: False)


def test_a_free_port_is_kept():
    assert keep_or_choose(25_000, free=lambda _: True) == 25_000


@pytest.mark.parametrize("taken", [(), (25_000,)])
def test_a_taken_port_is_left(taken):
    chosen = keep_or_choose(25_000, taken=taken, free=lambda port: port != 25_000)
    assert chosen != 25_000
