"""The data plane: one mover process a node.

A mover holds the node's replicas in memory (`memory/`) and on disk (`tiers/`), pulls bytes from
other movers (`transports/`) as the pure machine in `core/` says, hands segments to the readers of
its node, and writes what happened to the log. It never imports torch and never asks the control
plane: they meet in the log.
"""
