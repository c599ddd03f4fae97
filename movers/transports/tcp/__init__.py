"""Pulls over TCP: `sendfile` at the source, `recv_into` the segment at the target.

`wire.py` is the protocol (pure), `server.py` serves, `client.py` is the transport of movers,
`stream.py` one connection of a channel, `sockets.py` options and deadlines.
"""
