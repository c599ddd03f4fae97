"""Reading and writing files and object stores at the speed of the machine.

Knows bytes, files and stores; nothing of artifacts, of the log or of movers. Imports `schema` alone
(for errors and ranges), so that the SDK and the movers read checkpoints with the same code.
"""
