"""The way between two ports, by tables: no adapter is needed."""

import msgspec
import pytest

from tensorcast.movers.transports.rdma.route import Route, addresses, choose_route
from tensorcast.movers.transports.rdma.wire import Address, Card
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.nics import ETHERNET, NATIVE, Gid, Port

V2, V1 = "RoCE v2", "IB/RoCE v1"
OLD = Gid(index=0, address="fe80::a", kind=V1)
LINK = Gid(index=1, address="fe80::a", kind=V2)
V6 = Gid(index=2, address="2001:db8::a", kind=V2)
V4 = Gid(index=3, address="::ffff:10.0.0.1", kind=V2)
ALL = (OLD, LINK, V6, V4)
NATIVE_GID = Gid(index=0, address="fe80::1:2:3", kind=V1)
SETTINGS = RdmaSettings(traffic_class=106, service_level=3)


def port(*gids: Gid, link: str = ETHERNET, lid: int = 0) -> Port:
    return Port(number=1, is_active=True, link=link, gbit_s=100, lid=lid, gids=gids)


def card(*told: tuple[str, str], link: str = ETHERNET, lid: int = 0) -> Card:
    """A peer's, with these addresses and kinds."""
    known = [Address(gid=gid, kind=kind) for gid, kind in told]
    first = known[0] if known else Address(gid="", kind="")
    return Card(
        number=5,
        packet=6,
        link=link,
        lid=lid,
        gid=first.gid,
        gid_kind=first.kind,
        others=tuple(known[1:]),
        mtu=5,
        reads_answered=16,
        reads_started=16,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "source", "gid"),
    [
        (ALL, [("::ffff:10.0.0.2", V2), ("2001:db8::b", V2)], V4, "::ffff:10.0.0.2"),
        (ALL, [("2001:db8::b", V2), ("fe80::b", V2)], V6, "2001:db8::b"),
        (ALL, [("fe80::b", V2), ("fe80::b", V1)], LINK, "fe80::b"),
        (ALL, [("fe80::b", V1)], OLD, "fe80::b"),
        ((V6, OLD), [("::ffff:10.0.0.2", V2), ("fe80::b", V1)], OLD, "fe80::b"),
    ],
)
def test_on_ethernet_the_best_kind_that_both_have_is_used(ours, theirs, source, gid):
    assert choose_route("a", port(*ours), card(*theirs), SETTINGS) == Route(
        source=source, gid=gid, traffic_class=106, service_level=3
    )


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_an_index_that_is_set_leaves_no_choice(index):
    settings = msgspec.structs.replace(SETTINGS, gid_index=index)
    theirs = card(("::ffff:10.0.0.2", V2), ("2001:db8::b", V2), ("fe80::b", V2), ("fe80::b", V1))
    assert choose_route("a", port(*ALL), theirs, settings).source == ALL[index]
    assert addresses(port(*ALL), settings) == (
        Address(gid=ALL[index].address, kind=ALL[index].kind),
    )


def test_a_peer_is_told_one_address_of_each_kind_best_first():
    more = Gid(index=4, address="::ffff:10.1.0.1", kind=V2)
    told = addresses(port(*ALL, more), SETTINGS)
    assert [one.gid for one in told] == [gid.address for gid in (V4, V6, LINK, OLD)]


def test_within_an_infiniband_subnet_the_lid_says_where():
    ours = port(NATIVE_GID, link=NATIVE, lid=4)
    theirs = card(("fe80::7:8:9", V1), link=NATIVE, lid=17)
    assert choose_route("a", ours, theirs, SETTINGS) == Route(lid=17, service_level=3)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (port(V4), card(("2001:db8::b", V2)), "no GID that can talk to the peer's.*ipv4"),
        (port(), card(("2001:db8::b", V2)), "its own: none"),
        (port(V4), card(link=NATIVE, lid=3), "is on Ethernet, the peer's on InfiniBand"),
        (port(NATIVE_GID, link=NATIVE, lid=4), card(link=NATIVE), "no LID"),
        (
            port(NATIVE_GID, link=NATIVE, lid=4),
            card(("fec0::7:8:9", V1), link=NATIVE, lid=17),
            "another InfiniBand subnet",
        ),
    ],
)
def test_where_there_is_no_way_it_is_said_why(ours, theirs, why):
    with pytest.raises(Unavailable, match=why):
        choose_route("a", ours, theirs, SETTINGS)
