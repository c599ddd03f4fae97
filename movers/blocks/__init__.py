"""KV blocks: thousands of small pieces in few slabs, found by key, shared, spilled and sent.

base.py        what the blocks of a node need from others: a reporter, a locator, a spill
store.py       put if absent, found and pinned by key; over state.py, index.py, slabs.py
intake.py      which of the blocks that are put are wanted, and when they can be read
ring.py        what applications have put without telling anybody
room.py        empty slots: new slabs, and what goes when there are none
desk.py        one request, one answer; server.py brings them over the node's own socket
exchange.py    the same for peers, with the bytes, over the data port
keeper.py      digests and spilling ahead of need
reports.py, projection.py    what this node tells the KV log, and what others told it
node.py        all of it, wired
"""
