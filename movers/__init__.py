"""The data plane: one mover process on each node holds replicas and moves their bytes.

In the order of a start: `settings` -> `journal` (what the last life still owes the log) -> the log
-> `agent` (joins, takes its memory back, runs operations) -> `sockets` (applications of the node)
and the data port (other movers). `main` wires them; `core` decides, everything else does.
"""
