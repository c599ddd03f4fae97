"""Movers of one machine: the receiver reads out of the peer's segment by its descriptor.

A peer's mover listens on a unix socket without a path, whose name follows from cluster and node.
Who connects asks for an artifact and gets the descriptor of its segment, and from time to time
which chunks are there; the bytes it copies itself (`preadv`), one copy, no network. The connection
holds the segment. Both ends must belong to the same user, or be root: the kernel says who the other
one is.
"""
