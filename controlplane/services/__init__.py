"""The shells: each a loop that waits, asks `core` what follows, and does it."""
