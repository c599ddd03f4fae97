"""How every process proves to the servers who it is.

One room for what both the log and the client need of it: neither may import the other.
"""
