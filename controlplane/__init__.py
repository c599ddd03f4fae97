"""The control plane: services that read the log and write to it; none of them owns any state.

persister   log -> Postgres (history and read models), exactly once
scheduler   log -> policies -> operations, any number at once
timers      silence of nodes and lease holders -> events
api         questions and commands of clients, over NATS

`core` decides and does nothing; `services` are the shells around it; `main` wires them.
"""
