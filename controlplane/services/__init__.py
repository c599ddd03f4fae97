"""The shells: each is a loop that waits, asks `core` or `schema` what follows, and does it."""
