"""Segments: the shared memory behind replicas, its budget, and handing it to readers."""
