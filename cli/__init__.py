"""`tcctl`: the command line.

`main` parses and maps errors to exit codes, `commands/` ask the client or `deploy` and return an
`Answer`, `render` prints it. A command never prints; nothing here knows how bytes move.
"""
