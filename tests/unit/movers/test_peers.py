"""The shared record of the peers' health."""

from __future__ import annotations

from tensorcast.movers.core.health import Standing
from tensorcast.movers.peers import Peers
from tensorcast.schema.api import PeerInfo
from tensorcast.schema.ids import Epoch, NodeId

A, ONE = NodeId("a"), Epoch(1)


def test_what_one_transfer_learns_all_know():
    now = [100.0]
    peers = Peers(clock=lambda: now[0], jitter=lambda: 0.5)
    assert peers.now_s() == 100.0
    assert peers.standing(A, ONE) is Standing.GOOD
    peers.fail(A, ONE, "it fell silent")
    assert peers.standing(A, ONE) is Standing.QUARANTINED
    assert peers.report() == (
        PeerInfo(
            node=A, standing="quarantined", failures=1, reason="it fell silent", quarantined_s=1.0
        ),
    )
    now[0] += 1.0
    assert peers.standing(A, ONE) is Standing.PROBATION
    assert peers.report()[0].quarantined_s == 0.0
    assert peers.forgiven() == {(A, ONE)}
    peers.succeed(A, ONE, 1e6)
    assert peers.standing(A, ONE) is Standing.GOOD
    assert (peers.rate(A, ONE), peers.report()) == (1e6, ())
