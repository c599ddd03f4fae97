import pytest

from tensorcast.movers.transports.registry import CONSTRUCTORS, choose, make_transport
from tensorcast.schema.errors import Unavailable


@pytest.mark.parametrize("name", list(CONSTRUCTORS))
def test_every_transport_can_be_made(name):
    assert make_transport(name, "c", "n1").name == name


def test_an_unknown_one_is_refused():
    with pytest.raises(Unavailable, match="no transport 'pigeon'"):
        make_transport("pigeon", "c", "n1")


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [(["tcp"], ["rdma", "tcp"], "tcp"), (["tcp"], [], None), (["pigeon"], ["pigeon"], None)],
)
def test_the_best_shared_one_is_chosen(ours, theirs, chosen):
    assert choose(ours, theirs) == chosen
