"""The way that a queue pair is given, over real verbs: which GIDs, and how its packets look."""

from __future__ import annotations

import msgspec
import pytest

from conformance.contents import MIB, Shelf, make_content, manifest_of, plain_index
from conformance.transport import ARTIFACT, PEER, collect, make_pull
from rdma_ends import Pair, asking, connected, ipv6, serving
from tensorcast.movers.core.transfer import Completed
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.statuses import SUCCESS
from tensorcast.storage.nics import read_nics

pytestmark = pytest.mark.rdma


def told(pair: Pair):
    """What the kernel has of our queue pair."""
    flags = verbs.enums
    mask = flags.IBV_QP_AV | flags.IBV_QP_PATH_MTU | flags.IBV_QP_MAX_QP_RD_ATOMIC
    return pair.ours._pair.query(mask | flags.IBV_QP_TIMEOUT | flags.IBV_QP_RETRY_CNT)[0]


def index_of(family: str, name: str = "rxe0") -> int:
    (nic,) = [nic for nic in read_nics() if nic.name == name]
    return next(gid.index for gid in nic.ports[0].gids if gid.family == family)


def test_settings_reach_the_queue_pair():
    settings = {"traffic_class": 104, "mtu_bytes": 1024, "reads_max": 8, "retries": 3}
    with connected(**settings, ack_exponent=13) as pair:
        found = told(pair)
        assert found.ah_attr.traffic_class == 104
        assert (found.path_mtu, found.max_rd_atomic) == (3, 8)
        assert (found.timeout, found.retry_cnt) == (13, 3)
        assert pair.read(pair.source.region.rkey) == SUCCESS
    with connected() as pair:
        assert told(pair).path_mtu == pair.ours.device.abilities.mtu == 5


def test_small_messages_are_inline():
    with connected() as pair:
        assert pair.ours.inline_bytes > 0
        assert pair.ours._pair.query(verbs.enums.IBV_QP_CAP)[0].cap.max_inline_data > 0


def test_odp_is_left_where_the_adapter_has_none():
    with connected(odp=True) as pair:
        assert not pair.ours.device.uses_odp
        assert pair.read(pair.source.region.rkey) == SUCCESS


@pytest.mark.parametrize("family", ["ipv4", "ipv6", "link"])
def test_bytes_come_over_any_kind_of_gid(family):
    with ipv6(), connected(gid_index=index_of(family)) as pair:
        assert {pair.ours.route.source.family, pair.theirs.route.source.family} == {family}
        assert pair.read(pair.source.region.rkey) == SUCCESS


@pytest.mark.parametrize("family", ["ipv6", "link"])
async def test_the_answering_end_follows_the_asking_one(family):
    """One is told which GID to use; the other would rather have taken that of IPv4."""
    size = 2 * MIB + 5
    shelf, content = Shelf(), make_content(plain_index(size), size)
    manifest = manifest_of(plain_index(size), content)
    shelf.put(ARTIFACT, manifest, content)
    memory = bytearray(size)
    with (
        ipv6(),
        serving(shelf) as (server, lender),
        asking(gid_index=index_of(family)) as transport,
    ):
        assert lender.devices[0].settings.gid_index is None
        region = transport.register(memoryview(memory))
        channel = await transport.connect(PEER, server.address)
        (rail,) = channel._rails.values()
        assert rail._endpoint.route.source.family == family
        channel.post([make_pull(manifest, 0, manifest.chunks_total)], region)
        (end,) = await collect(channel, 1, timeout_s=60)
        assert isinstance(end, Completed)
        await channel.aclose()
        region.close()
        await transport.aclose()
    assert memory == content


def test_a_wrong_address_is_an_error_of_ours():
    with connected() as pair:
        card = msgspec.structs.replace(pair.theirs.card(), link="InfiniBand")
        with pytest.raises(Exception, match="is on Ethernet"):
            pair.ours.connect(card)
