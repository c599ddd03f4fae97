"""The log as a port: append with expectations, read from a position.

`port.py` is the contract, `memory.py` and `jetstream.py` keep it. The control plane and the movers
both write here; they never import each other.
"""
