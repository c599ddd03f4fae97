"""RDMA by libibverbs (through pyverbs): the receiver READs chunks out of the peer's segments.

A channel has one or several rails: reliable connected queue pairs, each between one device of ours
and one of the peer's (`rail.py`, served by `server.py`). A rail is set up over a connection to the
peer's data port, which stays open and tells at once when the peer is gone. Small messages on the
queue pair ask for the range of a pull and grant it (`wire.py`, `mailbox.py`); the key that a grant
gives is good for that pull, that queue pair and that life of the peer only. `device.py` picks
adapters, `endpoint.py` owns a queue pair, `region.py` what is registered.

Every failure is a completion. A rail that fails is opened anew once; its pulls go to the channel's
other rails, and when there are none left they break: the transfer goes on over TCP.
"""
